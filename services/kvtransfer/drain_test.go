package kvtransfer_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
)

// draining begins a drain and checks its first report.
func draining(t *testing.T, client workerv1.WorkerClient, request *workerv1.DrainRequest, transfers uint32) grpc.ServerStreamingClient[workerv1.DrainProgress] {
	t.Helper()
	progress, err := client.Drain(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if first, err := progress.Recv(); err != nil || first.GetTransfers() != transfers {
		t.Errorf("first report: %v, %v; want %d transfers", first, err, transfers)
	}
	return progress
}

func drained(t *testing.T, progress grpc.ServerStreamingClient[workerv1.DrainProgress]) {
	t.Helper()
	var last *workerv1.DrainProgress
	for {
		next, err := progress.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		last = next
	}
	if last.GetTransfers() != 0 {
		t.Errorf("the last report is %v", last)
	}
}

func (r *registration) state() (state controlv1.WorkerState, closed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record.GetState(), r.closed
}

// What runs is finished, and nothing new begins. The record goes when nothing is
// left.
func TestDrainFinishesWhatRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
		other := startWorker(t, n, "prefill-2", layout())
		if _, err := s.put(w, prefix(5, 100), 0); err != nil {
			t.Fatal(err)
		}
		g := newGate()
		w.pages.Before(g.pass)
		done := fetching(t.Context(), w, s.peer, prefix(5, 100))
		<-g.reached
		_, client := s.raw(n)
		progress := draining(t, client, &workerv1.DrainRequest{Epoch: 77}, 1)
		for what, call := range map[string]func() error{
			"put": func() error { _, err := s.put(other, prefix(2, 200), 0); return err },
			"fetch": func() error {
				_, err := other.client.Fetch(t.Context(), s.peer, prefix(5, 100), kvcache.BlockRange(9, 5), 0)
				return err
			},
		} {
			if _, is := errors.AsType[*storeclient.BusyError](call()); !is {
				t.Errorf("a %s into the drain: %v", what, call())
			}
		}
		time.Sleep(3 * time.Second)
		if state, closed := s.record.state(); state != controlv1.WorkerState_WORKER_STATE_DRAINING || closed {
			t.Errorf("while a fetch runs: the record is %v, closed is %v", state, closed)
		}
		g.open()
		if err := <-done; err != nil {
			t.Errorf("the fetch that ran: %v", err)
		}
		drained(t, progress)
		synctest.Wait()
		if _, closed := s.record.state(); !closed {
			t.Error("the record is still there")
		}
		w.check(prefix(5, 100), kvcache.BlockRange(30, 5))
		s.awaitIdle()
	})
}

// What a store keeps connected for the next fetch it gives up with its record.
func TestDrainedStoreEndsItsSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
		if _, err := s.put(w, prefix(5, 100), 0); err != nil {
			t.Fatal(err)
		}
		if _, err := w.client.Fetch(t.Context(), s.peer, prefix(5, 100), kvcache.BlockRange(9, 5), 0); err != nil {
			t.Fatal(err)
		}
		if streams := w.receiver.Stats().Streams; streams != 1 {
			t.Errorf("the store has %d streams open after a fetch, want 1", streams)
		}
		_, client := s.raw(n)
		drained(t, draining(t, client, &workerv1.DrainRequest{Epoch: 77}, 0))
		time.Sleep(2 * time.Second)
		if streams := w.receiver.Stats().Streams; streams != 0 {
			t.Errorf("the store has drained and keeps %d streams", streams)
		}
		s.awaitIdle()
	})
}

// What is left after the grace is ended.
func TestDrainCutsAfterItsGrace(t *testing.T) {
	for _, direction := range []string{"put", "fetch"} {
		t.Run(direction, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{kind: "memory"}
				s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
				if _, err := s.put(w, prefix(5, 100), 0); err != nil {
					t.Fatal(err)
				}
				begun := make(chan struct{})
				slow := func() { // a copy takes two seconds
					select {
					case <-begun:
					default:
						close(begun)
					}
					time.Sleep(2 * time.Second)
				}
				w.pages.Before(slow)
				var done <-chan error
				if direction == "put" {
					done = putting(t.Context(), w, s.peer, prefix(5, 200))
				} else {
					done = fetching(t.Context(), w, s.peer, prefix(5, 100))
				}
				<-begun
				_, client := s.raw(n)
				progress := draining(t, client, &workerv1.DrainRequest{Grace: durationpb.New(3 * time.Second)}, 1)
				began := time.Now()
				if err := <-done; err == nil {
					t.Error("it was finished")
				}
				drained(t, progress)
				if took := time.Since(began); took < 2*time.Second || took > 8*time.Second {
					t.Errorf("it was ended after %v, want about 3s", took)
				}
				w.pages.Before(nil)
				s.awaitIdle()
			})
		})
	}
}

// The process is told to stop: what does not end in time is cut, and Run leaves
// nothing behind.
func TestStopInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{kind: "memory"}
		s, w := startStore(t, n, config(), 77), startWorker(t, n, "prefill-1", layout())
		if _, err := s.put(w, prefix(5, 100), 0); err != nil {
			t.Fatal(err)
		}
		g := newGate()
		w.pages.Before(g.pass)
		done := fetching(t.Context(), w, s.peer, prefix(5, 100))
		<-g.reached
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s.service.Drain(ctx, time.Second)
		if _, closed := s.record.state(); !closed {
			t.Error("the record is still there")
		}
		synctest.Wait() // until both ends know that it was cut
		g.open()
		if err := <-done; err == nil {
			t.Error("the fetch that was cut went well")
		}
		s.stop()
		s.service.Check(t)
	})
}
