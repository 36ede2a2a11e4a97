package prefill_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver/drivertest"
	"github.com/tandem-serving/tandem/services/prefill"
)

func checkBlocks(t *testing.T, list *workerv1.ListBlocksResponse, signals *drivertest.Signals) {
	t.Helper()
	got := slices.Sorted(slices.Values(list.GetBlockHashes()))
	want, events := signals.Blocks()
	if !slices.Equal(got, want) || list.GetSequence() != events || list.GetEpoch() != workerEpoch {
		t.Errorf("%d blocks at event %d of epoch %d; published were %d at %d", len(got), list.GetSequence(), list.GetEpoch(), len(want), events)
	}
	if len(want) == 0 {
		t.Error("nothing was published")
	}
}

// TestCancelAtAnyTime cancels a request a millisecond later each time, with
// another one before it in the queue.
func TestCancelAtAnyTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		whole := 0
		for after := time.Millisecond; after < 100*time.Millisecond; after += time.Millisecond {
			seed := int(after / time.Millisecond)
			other := p.reserve(30, 0)
			othersCall := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 2*seed), 5), Ticket: other.ticket})
			synctest.Wait()
			r := p.reserve(40, 0)
			ctx, cancel := context.WithTimeout(t.Context(), after)
			if seed%2 == 0 { // by the client's own will, the other half by its deadline
				ctx, cancel = context.WithCancel(t.Context())
				time.AfterFunc(after, cancel)
			}
			a := g.run(ctx, &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(40, 2*seed+1), 5), Ticket: r.ticket})
			cancel()
			switch code := status.Code(a.err); {
			case a.err == nil:
				whole++
				p.holdsKVOf(r, prompt(40, 2*seed+1), 0)
			case seed%2 == 0 && code != codes.Canceled, seed%2 == 1 && code != codes.DeadlineExceeded:
				t.Errorf("cancelled after %v: %v", after, a.err)
			default:
				synctest.Wait()
				if !r.ended() {
					if after > 0 { // else the request may not have reached the worker
						t.Errorf("cancelled after %v: the reservation goes on", after)
					}
					p.receiver.Cancel(r.ticket.GetTransferId())
				}
			}
			if b := g.read(othersCall, false); b.err != nil || b.first.GetTokenId() != firstToken(t, prompt(30, 2*seed)) {
				t.Errorf("cancelled after %v: the other request got %v, error %v", after, b.first, b.err)
			}
			g.idle()
		}
		if whole == 0 || whole > 80 {
			t.Errorf("%d of 100 requests ended before they were cancelled", whole)
		}
		g.works(p, 500)
	})
}

func TestCancelBeforeTheReceiverAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		silent := g.network.listen("silent:1")
		defer func() { _ = silent.Close() }()
		r := p.reserve(30, 0)
		r.ticket.Addresses = []string{"silent:1"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		a := g.run(ctx, &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: r.ticket})
		wantError(t, "request", a.err, codes.DeadlineExceeded, "")
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
		if g.layers.Computed() != 0 {
			t.Error("something was computed")
		}
		g.idle()
		time.Sleep(10 * time.Second) // until the silent one is given up
		p.receiver.Cancel(r.ticket.GetTransferId())
		g.works(p, 6)
	})
}

func TestCancelWhileTheReceiverIsStuck(t *testing.T) {
	for _, c := range []struct {
		name       string
		firstToken bool
	}{{"before the first token", false}, {"when only the transfer is left", true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				p := g.newPeer("decode-1", 11)
				r := p.reserve(60, 0)
				p.pages.shut()
				ctx, cancel := context.WithCancel(t.Context())
				stream := g.call(ctx, &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(60, 1), 5), Ticket: r.ticket})
				if c.firstToken {
					if a := g.read(stream, true); a.err != nil {
						t.Fatal(a.err)
					}
					synctest.Wait() // until the commit is sent, too
				} else {
					time.Sleep(stepTime + stepTime/2)
				}
				cancel()
				wantError(t, "request", lastError(stream), codes.Canceled, "")
				synctest.Wait()
				if load, _ := g.service.Driver().Load(); load.BlocksFree == load.BlocksTotal {
					t.Error("blocks were given back before the receiver acknowledged")
				}
				p.pages.open()
				if c.firstToken { // the commit was on its way before the abort
					p.holdsKVOf(r, prompt(60, 1), 0)
				} else if reason := r.aborted(t); reason != kvtransferv1.AbortReason_ABORT_REASON_CANCELLED {
					t.Errorf("aborted with %v", reason)
				}
				g.idle()
				g.works(p, 6)
			})
		})
	}
}

// TestStuckReceiverIsGivenUp: the sender's patience bounds how long a prompt's
// blocks are held.
func TestStuckReceiverIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		r := p.reserve(30, 0)
		p.pages.shut()
		began := time.Now()
		a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: r.ticket})
		wantError(t, "request", a.err, codes.Unavailable, api.ReasonTransferFailed)
		if took := time.Since(began); a.first == nil || took > 15*time.Second {
			t.Errorf("first token %v after %v", a.first, took)
		}
		g.idle()
		p.pages.open()
		// The commit had reached it before the sender gave up: whether it or the broken
		// connection is read first is chance, but what was committed is whole.
		if _, err := r.end(t); err == nil {
			p.holdsKVOf(r, prompt(30, 1), 0)
		}
		g.works(p, 6)
	})
}

func TestReceiverDiesMidTransfer(t *testing.T) {
	for _, after := range []time.Duration{0, 2 * time.Millisecond, 6 * time.Millisecond, 20 * time.Millisecond, 24 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				p := g.newPeer("decode-1", 11)
				r := p.reserve(30, 0)
				p.pages.shut() // so that it cannot be over before
				stream := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: r.ticket})
				synctest.Wait()
				time.Sleep(after)
				died := time.Now()
				g.network.kill("decode-1:1")
				a := g.read(stream, false)
				wantError(t, "request", a.err, codes.Unavailable, api.ReasonTransferFailed)
				if took := time.Since(died); took > time.Second {
					t.Errorf("noticed after %v", took)
				}
				g.idle()
				p.pages.open()
				g.works(g.newPeer("decode-1", 12), 6) // its next start
			})
		})
	}
}

// TestReceiverDiesWhenItIsNotNeeded: the request is complete with its first
// token.
func TestReceiverDiesWhenItIsNotNeeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		r := p.reserve(30, 0)
		p.pages.shut()
		stream := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 1), Ticket: r.ticket})
		if a := g.read(stream, true); !a.first.GetLast() {
			t.Fatalf("first token %v, error %v", a.first, a.err)
		}
		g.network.kill("decode-1:1")
		if event, err := stream.Recv(); err != nil || event.GetSent() == nil {
			t.Errorf("event %v, error %v", event, err)
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Errorf("ended with %v", err)
		}
		g.idle()
	})
}

func TestReceiverCancelsTheReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		r := p.reserve(60, 0)
		stream := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(60, 1), 5), Ticket: r.ticket})
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		before := g.layers.Computed()
		p.receiver.Cancel(r.ticket.GetTransferId())
		_, err := stream.Recv()
		wantError(t, "request", err, codes.Unavailable, api.ReasonTransferFailed)
		if r.end(t); g.layers.Computed() > before+layers {
			t.Error("the prompt was computed to its end for nobody")
		}
		g.idle()
		g.works(p, 6)
	})
}

func TestEngineFailure(t *testing.T) {
	for _, failing := range []int{1, 2, 3, 5} { // which layer, over all steps
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t)
			p := g.newPeer("decode-1", 11)
			r := p.reserve(30, 0)
			var layer atomic.Int64
			g.layers.Hold(func(context.Context, time.Duration) error {
				if int(layer.Add(1)) == failing {
					return errors.New("the device fell off the bus")
				}
				return nil
			})
			a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: r.ticket})
			wantError(t, "request", a.err, codes.Unavailable, api.ReasonEngineFailed)
			if reason := r.aborted(t); reason != kvtransferv1.AbortReason_ABORT_REASON_FAILED {
				t.Errorf("aborted with %v", reason)
			}
			g.layers.Hold(nil)
			g.idle()
			g.works(p, 1) // the same prompt: nothing of the failed step may be in the cache
		})
	}
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		held := make(chan struct{})
		g.layers.Hold(func(ctx context.Context, _ time.Duration) error {
			select {
			case <-held:
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		refused := 0
		for i := range 1 + 7 + maxWaiting + 2 { // one runs, and seven have places in the next step
			r := p.reserve(16, 0)
			stream := g.call(ctx, &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(16, i), 5), Ticket: r.ticket})
			synctest.Wait()
			if r.ended() {
				refused++
				_, err := stream.Recv()
				wantError(t, "request", err, codes.ResourceExhausted, api.ReasonQueueFull)
				if _, known := rpc.RetryAfter(err); !known {
					t.Error("it does not say when to come again")
				}
			}
		}
		if refused != 2 {
			t.Errorf("%d were refused, want 2", refused)
		}
		cancel()
		synctest.Wait()
		close(held)
		g.idle()
		g.layers.Hold(nil)
		g.works(p, 60)
	})
}

func TestPromptThatNeverFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		n := poolBlocks*blockTokens + 1
		r := p.reserve(n, 0)
		a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(n, 1), 5), Ticket: r.ticket})
		wantError(t, "request", a.err, codes.InvalidArgument, api.ReasonInvalidField)
		if reason := r.aborted(t); reason != kvtransferv1.AbortReason_ABORT_REASON_FAILED {
			t.Errorf("aborted with %v", reason)
		}
		g.idle()
	})
}

// lastError reads a stream to its end.
func lastError(stream grpc.ServerStreamingClient[workerv1.PrefillEvent]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func wantNames(t *testing.T, err error, flag string) {
	t.Helper()
	if (err == nil) != (flag == "") || err != nil && !strings.HasPrefix(err.Error(), flag+": ") {
		t.Errorf("error %v, which should name %q", err, flag)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name  string
		cfg   prefill.Config
		names string
	}{
		{"good", prefill.Config{Limits: worker.Limits{ChunkTokens: 64, MaxWaiting: 1, OutputShare: 1}}, ""},
		{"no chunk", prefill.Config{Limits: worker.Limits{MaxWaiting: 1}}, "prefill-chunk-tokens"},
		{"negative chunk", prefill.Config{Limits: worker.Limits{ChunkTokens: -32, MaxWaiting: 1}}, "prefill-chunk-tokens"},
		{"chunk of no whole blocks", prefill.Config{Limits: worker.Limits{ChunkTokens: 33, MaxWaiting: 1}}, "prefill-chunk-tokens"},
		{"no queue", prefill.Config{Limits: worker.Limits{ChunkTokens: 64}}, "prefill-max-waiting"},
	} {
		t.Run(c.name, func(t *testing.T) { wantNames(t, c.cfg.Validate(32), c.names) })
	}
}
