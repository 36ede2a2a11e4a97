package prefill_test

import (
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A prefix of more than half of the pool is fetched if the rest of its prompt fits too.
func TestLongPrefixIsFetched(t *testing.T) {
	for _, c := range []struct {
		name   string
		blocks int // whole ones of the prompt, which has three tokens more
	}{
		{"more than half", poolBlocks/2 + 1},
		{"all but the last block", poolBlocks - 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, g, p, tokens := long(t, c.blocks)
				began := time.Now()
				started := g.right(p, tokens, source("store-1", c.blocks))
				if started.GetFetchedTokens() != uint32(c.blocks*blockTokens) || g.fetches("fetched") != 1 {
					t.Errorf("%v", started)
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("took %v", took)
				}
				time.Sleep(time.Minute)
				g.idle()
			})
		})
	}
}

// long is a worker that may fetch a long prompt from a store.
func long(t *testing.T, blocks int) (s *shop, g *rig, p *peer, tokens []uint32) {
	t.Helper()
	s = newShop(t, "store-1")
	one := s.worker("prefill-1", nil)
	g = s.worker("prefill-2", nil)
	p = one.newPeer("decode-1", 11)
	tokens = prompt(blocks*blockTokens+3, 1)
	one.right(p, tokens, nil)
	time.Sleep(time.Second)
	g.warm(p)
	return s, g, p, tokens
}

// frozen is a connection of a peer that hangs after so many bytes.
type frozen struct {
	net.Conn
	left *atomic.Int64
	thaw chan struct{} // closed when it may go on
}

func (f frozen) Write(b []byte) (int, error) {
	now := int64(len(b))
	if left := f.left.Add(-now); left < 0 {
		now = max(now+left, 0)
		if n, err := f.Conn.Write(b[:now]); err != nil {
			return n, err
		}
		<-f.thaw
		n, err := f.Conn.Write(b[now:])
		return int(now) + n, err
	}
	return f.Conn.Write(b)
}

// A store that hangs while it sends what fills nearly the whole pool holds the prompt up
// until nothing of that can land any more: for two leases of the transfer at the most,
// wherever it hangs.
func TestStoreThatHangsWhileItSends(t *testing.T) {
	const blocks, lease = poolBlocks - 1, 3 * time.Second
	var longest time.Duration
	fetched := false
	for bytes := int64(0); bytes < 1<<24 && !fetched; bytes = max(256, bytes*2) {
		synctest.Test(t, func(t *testing.T) {
			s, g, p, tokens := long(t, blocks)
			var left atomic.Int64
			left.Store(bytes)
			thaw := make(chan struct{})
			defer close(thaw)
			s.network.mu.Lock()
			s.network.wrap = map[string]func(net.Conn) net.Conn{"prefill-2:1": func(c net.Conn) net.Conn { return frozen{c, &left, thaw} }}
			s.network.mu.Unlock()
			began := time.Now()
			started := g.right(p, tokens, source("store-1", blocks))
			took := time.Since(began)
			longest = max(longest, took)
			if took > 2*lease+time.Second {
				t.Errorf("%d bytes: took %v", bytes, took)
			}
			fetched = started.GetFetchedTokens() != 0
			if result := map[bool]string{true: "fetched", false: "slow"}[fetched]; g.fetches(result) != 1 {
				t.Errorf("%d bytes: %v, which is not counted as %s", bytes, started, result)
			}
			time.Sleep(time.Minute)
			g.idle()
		})
	}
	if longest < lease || !fetched {
		t.Errorf("the longest took %v, fetched at last: %v", longest, fetched)
	}
}
