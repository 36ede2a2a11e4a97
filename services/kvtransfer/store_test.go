package kvtransfer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
)

// eitherStore is a block store as its callers see it.
type eitherStore struct {
	peer      offload.Store
	awaitIdle func()
	// check compares the number of blocks that it says it holds.
	check func(want int)
}

// bothStores runs a test in a bubble against the service, and against the store that
// the tests of others use in its place: so those two answer alike.
func bothStores(t *testing.T, test func(t *testing.T, n *network, s eitherStore)) {
	for name, start := range map[string]func(t *testing.T, n *network) eitherStore{
		"service": func(t *testing.T, n *network) eitherStore {
			s := startStore(t, n, config(), 77)
			return eitherStore{s.peer, s.awaitIdle, func(want int) { s.checkSignals(n, want) }}
		},
		"kvtransfertest": func(t *testing.T, n *network) eitherStore {
			listener, address := n.listen(t)
			peer := offload.Store{ID: "store-1", Epoch: 77, Addresses: []string{address}}
			s, err := kvtransfertest.NewStore(kvtransfertest.StoreConfig{
				Peer: peer, Layout: layout(), Blocks: storeBlocks, MaxPuts: config().MaxPuts, Lease: lease, Dial: n.dial,
			})
			if err != nil {
				t.Fatal(err)
			}
			startProcess(t, listener, func(r grpc.ServiceRegistrar) { s.Register(r) }, s.Run)
			return eitherStore{peer, synctest.Wait, func(want int) {
				if held := len(s.Hashes()); held != want {
					t.Errorf("%d blocks are held, want %d", held, want)
				}
			}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{kind: "memory"}
				test(t, n, start(t, n))
			})
		})
	}
}

// put lets a worker put a prefix, and waits until the store has it.
func (s eitherStore) put(w *testWorker, p offload.Prefix, from kvcache.BlockID) (uint64, error) {
	bytes, err := w.put(s.peer, p, from)
	s.awaitIdle()
	return bytes, err
}

func TestPutThenFetch(t *testing.T) {
	everyNetwork(t, func(t *testing.T, n *network) {
		s := startStore(t, n, config(), 77)
		a, b := startWorker(t, n, "prefill-1", layout()), startWorker(t, n, "prefill-2", layout())
		p := prefix(5, 100)
		sent, err := s.put(a, p, 3)
		if err != nil || sent != 5*layers*sliceBytes {
			t.Fatalf("put: %d bytes, %v", sent, err)
		}
		s.awaitIdle()
		s.checkSignals(n, 5)

		// The second worker has the first two blocks itself, at another place.
		blocks := kvcache.BlockRange(20, 5)
		b.compute(p, blocks[:2])
		got, err := b.client.Fetch(t.Context(), s.peer, p, blocks, 2)
		if err != nil || got != 3*layers*sliceBytes {
			t.Fatalf("fetch: %d bytes, %v", got, err)
		}
		b.check(p, blocks)
		s.awaitIdle()

		if l := layout(); s.record.record.GetLayoutDigest() != l.Digest() || s.record.record.GetCapacity().GetBlocks() != storeBlocks ||
			s.record.record.GetModelDigest() != l.ModelDigest {
			t.Errorf("record: %v", s.record.record)
		}
	})
}

func TestOnlyWhatLacksIsSent(t *testing.T) {
	bothStores(t, func(t *testing.T, n *network, s eitherStore) {
		w := startWorker(t, n, "prefill-1", layout())
		p := prefix(6, 100)
		first := offload.Prefix{Salt: p.Salt, Tokens: p.Tokens[:4]}
		if _, err := s.put(w, first, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := s.put(w, first, 0); !errors.Is(err, storeclient.ErrHeld) {
			t.Errorf("the same again: %v, want ErrHeld", err)
		}
		if sent, err := s.put(w, p, 0); err != nil || sent != 2*layers*sliceBytes {
			t.Errorf("two more: %d bytes, %v", sent, err)
		}
		other := offload.Prefix{Salt: "other", Tokens: p.Tokens}
		if sent, err := s.put(w, other, 0); err != nil || sent != 6*layers*sliceBytes {
			t.Errorf("under another salt: %d bytes, %v", sent, err)
		}
		s.check(12)
		blocks := kvcache.BlockRange(20, 6)
		w.compute(p, blocks[:1])
		if got, err := w.client.Fetch(t.Context(), s.peer, p, blocks, 1); err != nil || got != 5*layers*sliceBytes {
			t.Errorf("fetch: %d bytes, %v", got, err)
		}
		w.check(p, blocks)
	})
}

func TestMissing(t *testing.T) {
	bothStores(t, func(t *testing.T, n *network, s eitherStore) {
		w := startWorker(t, n, "prefill-1", layout())
		ask := func(p offload.Prefix, want int) {
			t.Helper()
			_, err := w.client.Fetch(t.Context(), s.peer, p, kvcache.BlockRange(30, len(p.Tokens)), 0)
			missing, is := errors.AsType[*storeclient.MissingError](err)
			if !is || missing.Blocks != want {
				t.Errorf("%v, want %d blocks", err, want)
			}
		}
		ask(prefix(3, 100), 0) // it holds nothing at all
		if _, err := s.put(w, prefix(3, 100), 0); err != nil {
			t.Fatal(err)
		}
		ask(prefix(5, 100), 3)
		ask(prefix(3, 101), 0)
		ask(offload.Prefix{Salt: "other", Tokens: prefix(3, 100).Tokens}, 0)
		s.awaitIdle()
		if stats := w.receiver.Stats(); stats.Reserved+stats.Open+stats.Ending != 0 {
			t.Errorf("the worker still waits: %+v", stats)
		}
	})
}

func TestRestartedStore(t *testing.T) {
	bothStores(t, func(t *testing.T, n *network, s eitherStore) {
		w := startWorker(t, n, "prefill-1", layout())
		if _, err := s.put(w, prefix(3, 100), 0); err != nil {
			t.Fatal(err)
		}
		before := s.peer
		before.Epoch = 76
		if _, err := w.put(before, prefix(3, 200), 0); !errors.Is(err, storeclient.ErrRestarted) {
			t.Errorf("put: %v", err)
		}
		if _, err := w.client.Fetch(t.Context(), before, prefix(3, 100), kvcache.BlockRange(9, 3), 0); !errors.Is(err, storeclient.ErrRestarted) {
			t.Errorf("fetch: %v", err)
		}
		if _, err := w.client.Fetch(t.Context(), s.peer, prefix(3, 100), kvcache.BlockRange(9, 3), 0); err != nil {
			t.Errorf("fetch of this start's: %v", err)
		}
	})
}

// An offer of what is under way as another's is for later, since that may not come after all; what
// does not may be put again.
func TestWhatArrivesIsOfferedLater(t *testing.T) {
	for name, comes := range map[string]bool{"it comes": true, "it is given up": false} {
		t.Run(name, func(t *testing.T) {
			bothStores(t, func(t *testing.T, n *network, s eitherStore) {
				a, b := startWorker(t, n, "prefill-1", layout()), startWorker(t, n, "prefill-2", layout())
				a.compute(prefix(3, 100), kvcache.BlockRange(0, 3))
				g := newGate()
				a.pages.Before(g.pass)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				done := putting(ctx, a, s.peer, prefix(3, 100))
				<-g.reached
				for _, blocks := range []int{2, 3, 5} {
					if _, err := b.put(s.peer, prefix(blocks, 100), 0); !errors.Is(err, storeclient.ErrArriving) {
						t.Errorf("%d of 3 blocks that come: %v, want ErrArriving", blocks, err)
					}
				}
				if !comes {
					cancel()
					synctest.Wait()
				}
				g.open()
				if err := <-done; (err == nil) != comes {
					t.Fatal(err)
				}
				s.awaitIdle()
				lacking := map[bool]uint64{true: 2, false: 5}[comes]
				if sent, err := s.put(b, prefix(5, 100), 0); err != nil || sent != lacking*layers*sliceBytes {
					t.Errorf("more, afterwards: %d bytes, %v", sent, err)
				}
				s.check(5)
			})
		})
	}
}

// Puts are bounded.
func TestTooManyPuts(t *testing.T) {
	bothStores(t, func(t *testing.T, n *network, s eitherStore) {
		w := startWorker(t, n, "prefill-1", layout())
		g := newGate()
		w.pages.Before(g.pass)
		var puts []<-chan error
		for i := range config().MaxPuts {
			puts = append(puts, putting(t.Context(), w, s.peer, prefix(1, int32(100+i))))
			synctest.Wait()
		}
		_, err := w.client.Put(t.Context(), s.peer, prefix(1, 200), kvcache.BlockRange(20, 1))
		if busy, is := errors.AsType[*storeclient.BusyError](err); !is || busy.RetryAfter != 100*time.Millisecond {
			t.Errorf("%v, want a BusyError with a time", err)
		}
		g.open()
		for _, done := range puts {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		s.awaitIdle()
		s.check(len(puts))
	})
}
