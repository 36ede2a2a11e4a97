package kvtransfer_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
)

// gate blocks its callers until it is opened.
type gate struct {
	reached chan struct{} // closed when somebody waits
	once    sync.Once
	opened  chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), opened: make(chan struct{})} }

func (g *gate) pass() {
	g.once.Do(func() { close(g.reached) })
	<-g.opened
}

func (g *gate) open() { close(g.opened) }

// putting is a put that runs.
func putting(ctx context.Context, w *testWorker, to offload.Store, p offload.Prefix) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := w.client.Put(ctx, to, p, kvcache.BlockRange(0, len(p.Tokens)))
		done <- err
	}()
	return done
}

func fetching(ctx context.Context, w *testWorker, from offload.Store, p offload.Prefix) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := w.client.Fetch(ctx, from, p, kvcache.BlockRange(30, len(p.Tokens)), 0)
		done <- err
	}()
	return done
}

func TestStoreDiesInTheMiddle(t *testing.T) {
	for _, direction := range []string{"put", "fetch"} {
		t.Run(direction, func(t *testing.T) {
			everyNetwork(t, func(t *testing.T, n *network) {
				s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
				held := prefix(5, 100)
				if _, err := s.put(w, held, 0); err != nil {
					t.Fatal(err)
				}
				g := newGate()
				var done <-chan error
				if direction == "put" {
					more := prefix(5, 200)
					w.compute(more, kvcache.BlockRange(0, 5))
					w.pages.Before(g.pass)
					done = putting(t.Context(), w, s.peer, more)
				} else {
					w.pages.Before(g.pass)
					done = fetching(t.Context(), w, s.peer, held)
				}
				<-g.reached
				s.cut()
				g.open()
				if err := <-done; err == nil {
					t.Error("the store is dead, but there is no error")
				}
				w.pages.Before(nil)
				if direction == "fetch" {
					before := w.pages.Page(30)
					s.stop()
					if !bytes.Equal(w.pages.Page(30), before) {
						t.Error("written after Fetch had returned")
					}
				}
				if stats := w.receiver.Stats(); stats.Reserved+stats.Open+stats.Ending != 0 {
					t.Errorf("the worker still waits: %+v", stats)
				}
				// The next one, of another start, serves.
				again := startStore(t, n, config(), 78)
				if _, err := again.put(w, held, 0); err != nil {
					t.Errorf("put after the restart: %v", err)
				}
				if _, err := w.client.Fetch(t.Context(), again.peer, held, kvcache.BlockRange(30, 5), 0); err != nil {
					t.Errorf("fetch after the restart: %v", err)
				}
				w.check(held, kvcache.BlockRange(30, 5))
				again.awaitIdle()
			})
		})
	}
}

// A call that is cancelled returns once its pages are neither read nor written.
func TestCancelInTheMiddle(t *testing.T) {
	for name, begin := range map[string]func(ctx context.Context, w *testWorker, s offload.Store) <-chan error{
		"put": func(ctx context.Context, w *testWorker, s offload.Store) <-chan error {
			return putting(ctx, w, s, prefix(5, 200))
		},
		"fetch": func(ctx context.Context, w *testWorker, s offload.Store) <-chan error {
			return fetching(ctx, w, s, prefix(5, 100))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{kind: "memory"}
				s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
				if _, err := s.put(w, prefix(5, 100), 0); err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				g := newGate()
				w.pages.Before(g.pass)
				done := begin(ctx, w, s.peer)
				<-g.reached
				cancel()
				synctest.Wait()
				select {
				case err := <-done:
					t.Errorf("it returned while a page is in use: %v", err)
				default:
				}
				g.open()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want Canceled", err)
				}
				w.pages.Before(nil)
				s.awaitIdle()
				s.checkSignals(n, 5)
				if _, err := w.client.Fetch(t.Context(), s.peer, prefix(5, 100), kvcache.BlockRange(30, 5), 0); err != nil {
					t.Errorf("the next fetch: %v", err)
				}
				w.check(prefix(5, 100), kvcache.BlockRange(30, 5))
			})
		})
	}
}

// If nobody uses a ticket, its space is free again after a lease.
func TestTicketThatNobodyUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
		offers, _ := s.raw(n)
		l := layout()
		request := func(seed uint32, blocks int) *kvtransferv1.OfferRequest {
			r := &kvtransferv1.OfferRequest{
				StoreEpoch: 77, Layout: l.Proto(), Prefix: &kvtransferv1.Prefix{LayoutDigest: l.Digest()},
			}
			for i := range blocks {
				r.Prefix.TokenIds = append(r.Prefix.TokenIds, seed+uint32(i))
			}
			return r
		}
		if _, err := offers.Offer(t.Context(), request(100, storeBlocks)); err != nil {
			t.Fatal(err)
		}
		_, err := s.put(w, prefix(3, 200), 0)
		if busy, is := errors.AsType[*storeclient.BusyError](err); !is || busy.RetryAfter <= 0 {
			t.Errorf("all room is reserved: %v, want BusyError with a time", err)
		}
		if _, err := offers.Offer(t.Context(), request(100, 2)); status.Code(err) != codes.Aborted {
			t.Errorf("an offer of what is to come: %v, want ABORTED", err)
		}
		time.Sleep(lease + time.Second)
		synctest.Wait()
		s.awaitIdle()
		if _, err := s.put(w, prefix(3, 200), 0); err != nil {
			t.Errorf("after a lease: %v", err)
		}
		s.awaitIdle()
		s.checkSignals(n, 3)
	})
}

// An offer that nobody waits for any more takes no space.
func TestOfferThatIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startStore(t, &network{kind: "memory"}, config(), 77)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.service.Offer(ctx, offerOf(layout(), 1, 2, 3)); status.Code(err) != codes.Canceled {
			t.Errorf("the offer ended with %v", err)
		}
		synctest.Wait()
		if n := s.service.Transfers(); n > 0 {
			t.Errorf("%d transfers are under way", n)
		}
		s.service.Check(t)
	})
}

// A worker that falls silent in the middle of a put holds its blocks for a lease,
// and nothing of them is found.
func TestSilentWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
		p := prefix(5, 100)
		w.compute(p, kvcache.BlockRange(0, 5))
		g := newGate()
		w.pages.Before(g.pass)
		done := putting(t.Context(), w, s.peer, p)
		<-g.reached
		if s.service.Transfers() != 1 {
			t.Errorf("%d transfers are under way, want 1", s.service.Transfers())
		}
		time.Sleep(4 * lease)
		synctest.Wait()
		if s.service.Transfers() != 0 || s.service.Published() != 0 {
			t.Errorf("%d transfers, %d blocks held; want none", s.service.Transfers(), s.service.Published())
		}
		s.service.Check(t)
		g.open()
		if err := <-done; err == nil {
			t.Error("the put went well")
		}
	})
}
