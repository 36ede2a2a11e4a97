package kvtransfer_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
)

// Several workers put and fetch more than the store holds, and give up now and
// then. What is fetched is what was put, and nothing is left in the end.
func TestEvictionUnderLoad(t *testing.T) {
	everyNetwork(t, func(t *testing.T, n *network) {
		s := startStore(t, n, config(), 77)
		var workers sync.WaitGroup
		var fetched, lacking atomic.Int32
		for i := range 4 {
			w := startWorker(t, n, "prefill-"+string(rune('1'+i)), layout())
			workers.Go(func() {
				chance := rand.New(rand.NewPCG(1, uint64(i)))
				for range 60 {
					// Prefixes of six families, two of them twice as long as the others.
					family := chance.IntN(6)
					p := prefix(2+chance.IntN(4)*(1+family/4), int32(100*(1+family)))
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					if chance.IntN(10) == 0 {
						cancel()
					}
					var err error
					if chance.IntN(2) == 0 {
						blocks := kvcache.BlockRange(0, len(p.Tokens))
						w.compute(p, blocks)
						_, err = w.client.Put(ctx, s.peer, p, blocks)
					} else {
						blocks := kvcache.BlockRange(30, len(p.Tokens))
						if _, err = w.client.Fetch(ctx, s.peer, p, blocks, 0); err == nil {
							w.check(p, blocks)
							fetched.Add(1)
						}
					}
					stopped := ctx.Err() != nil
					cancel()
					_, isBusy := errors.AsType[*storeclient.BusyError](err)
					_, isMissing := errors.AsType[*storeclient.MissingError](err)
					if isMissing {
						lacking.Add(1)
					}
					if err != nil && !stopped && !isBusy && !isMissing && !errors.Is(err, storeclient.ErrHeld) && !errors.Is(err, storeclient.ErrArriving) {
						t.Errorf("%v", err)
					}
				}
			})
		}
		workers.Wait()
		s.awaitIdle()
		s.checkSignals(n, s.service.Published())
		if fetched.Load() == 0 || lacking.Load() == 0 {
			t.Errorf("fetched %d times and lacked %d: the test tests nothing", fetched.Load(), lacking.Load())
		}
	})
}

// Two workers put the same at once: one of them does, and what is held is held
// once.
func TestSamePrefixAtOnce(t *testing.T) {
	everyNetwork(t, func(t *testing.T, n *network) {
		s := startStore(t, n, config(), 77)
		workers := []*testWorker{startWorker(t, n, "prefill-1", layout()), startWorker(t, n, "prefill-2", layout())}
		for round := range 20 {
			p := prefix(4, int32(100*(1+round)))
			errs := make([]error, len(workers))
			var both sync.WaitGroup
			for i, w := range workers {
				w.compute(p, kvcache.BlockRange(0, 4))
				both.Go(func() { _, errs[i] = w.client.Put(t.Context(), s.peer, p, kvcache.BlockRange(0, 4)) })
			}
			both.Wait()
			s.awaitIdle()
			wins := 0
			for _, err := range errs {
				if err == nil {
					wins++
				} else if !errors.Is(err, storeclient.ErrArriving) && !errors.Is(err, storeclient.ErrHeld) {
					t.Errorf("%v, want ErrHeld or ErrArriving", err)
				}
			}
			if wins != 1 {
				t.Errorf("%d of two puts brought the blocks", wins)
			}
		}
		s.checkSignals(n, storeBlocks)
	})
}

// Fetches are bounded.
func TestTooManyFetches(t *testing.T) {
	n := &network{kind: "tcp"}
	cfg := config()
	cfg.MaxFetches = 1
	s, a, b := startStore(t, n, cfg, 77), startWorker(t, n, "prefill-1", layout()), startWorker(t, n, "prefill-2", layout())
	if _, err := s.put(a, prefix(3, 100), 0); err != nil {
		t.Fatal(err)
	}
	g := newGate()
	a.pages.Before(g.pass)
	done := fetching(t.Context(), a, s.peer, prefix(3, 100))
	<-g.reached
	_, err := b.client.Fetch(t.Context(), s.peer, prefix(3, 100), kvcache.BlockRange(9, 3), 0)
	if busy, is := errors.AsType[*storeclient.BusyError](err); !is || busy.RetryAfter <= 0 {
		t.Errorf("%v, want a BusyError with a time", err)
	}
	g.open()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := b.client.Fetch(t.Context(), s.peer, prefix(3, 100), kvcache.BlockRange(9, 3), 0); err != nil {
		t.Error(err)
	}
	b.check(prefix(3, 100), kvcache.BlockRange(9, 3))
}

// The worker that fetches dies: the store lets the blocks go.
func TestFetcherDies(t *testing.T) {
	everyNetwork(t, func(t *testing.T, n *network) {
		s, a := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
		if _, err := s.put(a, prefix(3, 100), 0); err != nil {
			t.Fatal(err)
		}
		b := startWorker(t, n, "prefill-2", layout())
		g := newGate()
		b.pages.Before(g.pass)
		ctx, cancel := context.WithCancel(t.Context())
		done := fetching(ctx, b, s.peer, prefix(3, 100))
		<-g.reached
		b.client.Close() // the call breaks off, as with the process
		s.awaitIdle()
		g.open()
		cancel()
		if err := <-done; err == nil {
			t.Error("the fetch went well")
		}
		if _, err := b.client.Fetch(t.Context(), s.peer, prefix(3, 100), kvcache.BlockRange(9, 3), 0); !errors.Is(err, storeclient.ErrClientClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := a.client.Fetch(t.Context(), s.peer, prefix(3, 100), kvcache.BlockRange(9, 3), 0); err != nil {
			t.Errorf("another's fetch: %v", err)
		}
	})
}

// An error names a store that is out of reach and its address, once. An address that does not
// answer is passed over.
func TestAddresses(t *testing.T) {
	n := &network{kind: "tcp"}
	s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
	listener, dead := n.listen(t)
	listener.Close()
	lost := offload.Store{ID: "lost", Epoch: 1, Addresses: []string{dead}}
	_, err := w.put(lost, prefix(3, 100), 0)
	if text := `put kv blocks: cannot reach store "lost": ` + dead + ": rpc error:"; err == nil || !strings.HasPrefix(err.Error(), text) {
		t.Errorf("put: %v, want %s", err, text)
	}
	_, err = w.client.Fetch(t.Context(), lost, prefix(3, 100), kvcache.BlockRange(9, 3), 0)
	if text := `fetch kv blocks: cannot reach store "lost": ` + dead + ": rpc error:"; err == nil || !strings.HasPrefix(err.Error(), text) {
		t.Errorf("fetch: %v, want %s", err, text)
	}
	both := s.peer
	both.Addresses = []string{dead, s.peer.Addresses[0]}
	if _, err := w.put(both, prefix(3, 100), 0); err != nil {
		t.Errorf("the second address: %v", err)
	}
	s.awaitIdle()
	if _, err := w.put(offload.Store{ID: "nowhere"}, prefix(3, 100), 0); err == nil {
		t.Error("put without an address")
	}
}
