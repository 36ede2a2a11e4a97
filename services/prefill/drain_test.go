package prefill_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/services/prefill"
)

func TestDrainFinishesWhatRunsAndRefusesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		r, late := p.reserve(40, 0), p.reserve(4, 0)
		p.pages.shut()
		stream := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(40, 1), 5), Ticket: r.ticket})
		synctest.Wait()

		wrong, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Epoch: workerEpoch + 1})
		if err == nil {
			_, err = wrong.Recv()
		}
		wantError(t, "drain of another start", err, codes.FailedPrecondition, api.ReasonWrongEpoch)

		drain, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Epoch: workerEpoch})
		if err != nil {
			t.Fatal(err)
		}
		progress, err := drain.Recv()
		if err != nil || progress.GetSequences() != 1 || progress.GetTransfers() != 1 || progress.GetBlocksHeld() != 10 {
			t.Errorf("progress %v, error %v", progress, err)
		}
		wantError(t, "request during the drain", g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(4, 1), 5), Ticket: late.ticket}).err,
			codes.Unavailable, api.ReasonWorkerDraining)
		if late.ended() {
			t.Error("the refused request used its ticket")
		}
		p.receiver.Cancel(late.ticket.GetTransferId())
		p.pages.open()
		if a := g.read(stream, false); a.err != nil {
			t.Errorf("the running request ended with %v", a.err)
		}
		p.holdsKVOf(r, prompt(40, 1), 0)
		var last *workerv1.DrainProgress
		for {
			progress, err := drain.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			last = progress
		}
		if last.GetSequences() != 0 || last.GetTransfers() != 0 || last.GetBlocksHeld() != 0 {
			t.Errorf("drained with %v left", last)
		}
		g.idle()
	})
}

// drained drains the worker, until it has nothing left to do.
func (g *rig) drained() {
	g.t.Helper()
	drain, err := g.worker.Drain(g.t.Context(), &workerv1.DrainRequest{Epoch: workerEpoch})
	for err == nil {
		_, err = drain.Recv()
	}
	if !errors.Is(err, io.EOF) {
		g.t.Fatal(err)
	}
}

// What a worker keeps connected for the next request it gives up when it has drained:
// its process may stay for long, and the receivers have places for so many.
func TestDrainedWorkerEndsItsKVSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		g.works(p, 1)
		time.Sleep(time.Minute)
		if streams := p.receiver.Stats().Streams; streams != 1 {
			t.Errorf("a minute after a request there are %d streams, want 1", streams)
		}
		g.drained()
		synctest.Wait()
		if streams := p.receiver.Stats().Streams; streams != 0 {
			t.Errorf("the worker has drained and keeps %d streams", streams)
		}
		g.idle()
	})
}

// A put that opens its session when the worker has drained leaves none behind.
func TestPutAfterTheDrainEndsItsSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		store := s.open("store-1")
		g := newWorker(t, s.network, "prefill-1", func(cfg *prefill.Config, deps *prefill.Deps) {
			cfg.StorePuts, cfg.FetchBandwidth = 1, fast
			deps.Stores = s.watch
			deps.DialStore = func(address string) (*grpc.ClientConn, error) {
				time.Sleep(time.Second)
				return s.network.dial(address)
			}
		})
		p := g.newPeer("decode-1", 11)
		g.right(p, prompt(whole*blockTokens+3, 1), nil)
		g.right(p, prompt(whole*blockTokens+3, 2), nil) // has the first one put
		g.drained()
		synctest.Wait()
		if g.puts("put") != 0 || store.Streams() != 0 {
			t.Fatal("the put is over before the drain")
		}
		time.Sleep(2 * time.Second)
		if g.puts("put") != 1 || store.Streams() != 0 {
			t.Errorf("%d puts, and %d streams are left", g.puts("put"), store.Streams())
		}
		g.idle()
	})
}

func TestDrainWithGraceCuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		g.layers.Hold(func(ctx context.Context, _ time.Duration) error {
			timer := time.NewTimer(time.Minute) // a device that is very slow
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		r := p.reserve(40, 0)
		stream := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(40, 1), 5), Ticket: r.ticket})
		synctest.Wait()
		began := time.Now()
		if _, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Grace: durationpb.New(3 * time.Second)}); err != nil {
			t.Fatal(err)
		}
		a := g.read(stream, false)
		wantError(t, "request", a.err, codes.Unavailable, api.ReasonWorkerDraining)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("cut after %v", took)
		}
		r.aborted(t)
	})
}

// A prompt that waits for a store is cut like any other.
func TestDrainWithGraceCutsAFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t)
		g := s.worker("prefill-1", nil)
		p := g.newPeer("decode-1", 11)
		const grace = stepTime // the store may take as long as some steps
		g.warm(p)
		stop := s.hang("store-1")
		defer stop()
		r := p.reserve(whole*blockTokens+3, 0)
		stream := g.call(t.Context(), &workerv1.PrefillRequest{
			WorkerEpoch: workerEpoch, Task: task(prompt(whole*blockTokens+3, 1), 5), Ticket: r.ticket, Source: source("store-1", whole),
		})
		synctest.Wait()
		if declined, left := g.fetches("declined"), g.service.Driver().Remaining(); declined != 0 || left != 2 {
			t.Fatalf("%d fetches declined; %d sequences, want the prompt and what restores its blocks", declined, left)
		}
		began := time.Now()
		if _, err := g.worker.Drain(t.Context(), &workerv1.DrainRequest{Grace: durationpb.New(grace)}); err != nil {
			t.Fatal(err)
		}
		a := g.read(stream, false)
		wantError(t, "request", a.err, codes.Unavailable, api.ReasonWorkerDraining)
		if took := time.Since(began); took != grace {
			t.Errorf("cut after %v", took)
		}
		r.aborted(t)
	})
}

// TestStopWhileServing: whatever runs ends, and so does Run.
func TestStopWhileServing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		r := p.reserve(200, 0)
		_ = g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(100, 1), 5), Ticket: r.ticket})
		time.Sleep(30 * time.Millisecond)
	})
}
