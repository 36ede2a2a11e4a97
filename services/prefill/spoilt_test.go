package prefill_test

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/services/prefill"
)

// spoil makes a layer of every block that holds something no number. No step may run.
func (g *rig) spoil(layer int) {
	g.t.Helper()
	for block := range kvcache.BlockID(g.engine.Capacity().Blocks) {
		if slice := g.engine.Pages().View(layer, block); !bytes.Equal(slice, make([]byte, len(slice))) {
			copy(slice, bytes.Repeat([]byte{0xff}, len(slice)))
		}
	}
}

// spoiltOnTheWay gives senders what is not finite, and everybody else what is there.
type spoiltOnTheWay struct {
	engine.Pages
	ill atomic.Bool
}

func (p *spoiltOnTheWay) View(layer int, block kvcache.BlockID) []byte {
	if p.ill.Load() && layer == 1 {
		return bytes.Repeat([]byte{0xff}, p.Layout().SliceBytes)
	}
	return p.Pages.View(layer, block)
}

type spoiltEngine struct {
	*simulated.Engine
	pages engine.Pages
}

func (e spoiltEngine) Pages() engine.Pages { return e.pages }

// A prompt whose cached prefix is not finite gives no first token, its transfer is
// aborted, and the next try computes all of it.
func TestPrefixThatIsNotFinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		tokens := prompt(33, 1)
		g.right(p, tokens, nil)
		time.Sleep(time.Second)
		g.spoil(1)
		a, r := g.ask(context.Background(), p, tokens, nil)
		wantError(t, "a spoilt prefix", a.err, codes.DataLoss, api.ReasonNotFinite)
		if a.first != nil || r.aborted(t) != kvtransferv1.AbortReason_ABORT_REASON_FAILED {
			t.Errorf("first token %v", a.first)
		}
		if started := g.right(p, tokens, nil); started.GetCachedTokens() != 0 {
			t.Errorf("the next try: %v", started)
		}
		time.Sleep(time.Second)
		g.idle()
		if blocks, _ := g.signals.Blocks(); len(blocks) == 0 {
			t.Error("nothing is cached any more")
		}
	})
}

// What is not finite is not put into a store, and leaves the cache.
func TestWhatIsNotFiniteIsNotPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		store := s.open("store-1")
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		tokens := prompt(whole*blockTokens+3, 1)
		g.right(p, tokens, nil)
		time.Sleep(time.Second)
		g.spoil(2)
		stored, _ := g.signals.Blocks()
		g.right(p, prompt(whole*blockTokens+3, 2), nil) // has the first one put
		time.Sleep(time.Second)
		if g.puts("not_finite") == 0 {
			t.Fatal("nothing was offered")
		}
		if slices.ContainsFunc(store.Hashes(), func(hash kvcache.Hash) bool { return slices.Contains(stored, uint64(hash)) }) {
			t.Error("the store has what is not finite")
		}
		if left, _ := g.signals.Blocks(); slices.ContainsFunc(left, func(hash uint64) bool { return slices.Contains(stored, hash) }) {
			t.Error("the worker finds what is not finite")
		}
		if started := g.right(p, tokens, nil); started.GetCachedTokens() != 0 {
			t.Errorf("the next one: %v", started)
		}
		time.Sleep(time.Second)
		g.idle()
	})
}

// What a store gives that is not finite is computed instead, and the router hears that the store failed.
func TestWhatIsNotFiniteIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, "store-1")
		way := new(spoiltOnTheWay)
		one := newWorker(t, s.network, "prefill-1", func(cfg *prefill.Config, deps *prefill.Deps) {
			cfg.StorePuts, cfg.FetchBandwidth = 2, fast
			deps.Stores = s.watch
			way.Pages = deps.Engine.Pages()
			deps.Engine = spoiltEngine{deps.Engine.(*simulated.Engine), way}
		})
		two := s.worker("prefill-2", nil)
		p := one.newPeer("decode-1", 11)
		tokens := prompt(whole*blockTokens+3, 1)
		one.right(p, tokens, nil)
		time.Sleep(time.Second)
		way.ill.Store(true)
		one.ask(t.Context(), p, prompt(whole*blockTokens+3, 2), nil)
		time.Sleep(time.Second)
		if one.puts("put") == 0 {
			t.Fatal("nothing was put")
		}
		two.warm(p)
		started := two.right(p, tokens, source("store-1", whole))
		if started.GetFetchedTokens() != 0 || started.GetFetchVerdict().String() != "FETCH_VERDICT_FAILED" || two.fetches("not_finite") != 1 {
			t.Errorf("%v, %d fetches of what is not finite", started, two.fetches("not_finite"))
		}
		time.Sleep(time.Second)
		two.idle()
	})
}

// readPages are pages of which each slice takes a while to look at. Senders do not need that.
type readPages struct {
	engine.Pages
	each  time.Duration
	reads atomic.Int32
}

func (p *readPages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	p.reads.Add(1)
	time.Sleep(p.each)
	return p.Pages.Read(layer, blocks, dst)
}

// A worker looks only at what a store lacks and at what a store gave, and at no more of it once
// that is in vain.
func TestOnlyWhatMovesIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, "store-1")
		pages := new(readPages)
		one := s.worker("prefill-1", nil)
		two := newWorker(t, s.network, "prefill-2", func(cfg *prefill.Config, deps *prefill.Deps) {
			cfg.StorePuts, cfg.FetchBandwidth = 1, fast
			deps.Stores = s.watch
			pages.Pages = deps.Engine.Pages()
			deps.Engine = spoiltEngine{deps.Engine.(*simulated.Engine), pages}
		})
		p := one.newPeer("decode-1", 11)
		s.filled(one, p)
		two.right(p, prompt(whole*blockTokens+3, 1), nil)
		two.right(p, prompt(whole*blockTokens+3, 2), nil)
		time.Sleep(time.Second)
		if two.puts("held") == 0 || two.puts("put") != 0 || pages.reads.Load() != 0 {
			t.Fatalf("%d puts of what the store has, %d others, and %d reads", two.puts("held"), two.puts("put"), pages.reads.Load())
		}
		pages.each = time.Second
		two.right(p, prompt(whole*blockTokens+3, 3), nil)
		two.right(p, prompt(whole*blockTokens+3, 4), nil)
		time.Sleep(1500 * time.Millisecond)
		two.stop()
		if n := pages.reads.Load(); n != 2 {
			t.Errorf("%d reads, want those of 1.5 s before the end", n)
		}
	})
}

// A store is not left alone for what this worker is slow to look through.
func TestSlowCheckSaysNothingOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, "store-1")
		pages := &readPages{each: time.Second}
		g := newWorker(t, s.network, "prefill-1", func(cfg *prefill.Config, deps *prefill.Deps) {
			cfg.StorePuts, cfg.FetchBandwidth = 1, fast
			deps.Stores = s.watch
			pages.Pages = deps.Engine.Pages()
			deps.Engine = spoiltEngine{deps.Engine.(*simulated.Engine), pages}
		})
		p := g.newPeer("decode-1", 11)
		g.right(p, prompt(whole*blockTokens+3, 1), nil)
		g.right(p, prompt(whole*blockTokens+3, 2), nil) // has the first one put
		for began := time.Now(); g.puts("timeout") == 0; time.Sleep(100 * time.Millisecond) {
			if time.Since(began) > time.Minute {
				t.Fatal("no put takes too long")
			}
		}
		g.right(p, prompt(whole*blockTokens+3, 3), nil)
		time.Sleep(500 * time.Millisecond)
		if g.service.Driver().PoolStats().Held == 0 {
			t.Error("nothing else is put: the store is left alone")
		}
	})
}
