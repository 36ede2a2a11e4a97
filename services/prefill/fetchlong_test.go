package prefill_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// A prefix of more than half of the pool is fetched as long as the rest of its prompt
// has room beside it, and is computed if nothing comes.
func TestLongPrefixIsFetched(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks int // whole ones of the prompt, which has three tokens more
		hangs  bool
		result string
	}{
		{"more than half", poolBlocks/2 + 1, false, "fetched"},
		{"all but the last block", poolBlocks - 1, false, "fetched"},
		{"it hangs", poolBlocks - 1, true, "slow"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(t, "store-1")
				one := s.worker("prefill-1", nil)
				two, gate := s.gatedWorker("prefill-2")
				p := one.newPeer("decode-1", 11)
				tokens := prompt(c.blocks*blockTokens+3, 1)
				one.right(p, tokens, nil)
				time.Sleep(time.Second)
				two.warm(p)
				if c.hangs {
					gate.shut()
					time.AfterFunc(time.Second, gate.open)
				}
				began := time.Now()
				started := two.right(p, tokens, source("store-1", c.blocks))
				if fetched := int(started.GetFetchedTokens()); (fetched != 0) != (c.result == "fetched") || fetched != 0 && fetched != c.blocks*blockTokens {
					t.Errorf("%v", started)
				}
				if two.fetches(c.result) != 1 || two.fetches("no_room") != 0 {
					t.Errorf("%d fetches are %s, %d had no room", two.fetches(c.result), c.result, two.fetches("no_room"))
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("took %v", took)
				}
				time.Sleep(time.Minute)
				two.idle()
			})
		})
	}
}
