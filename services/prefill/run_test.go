package prefill_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/services/prefill"
)

func TestPromptsGiveFirstTokenAndKV(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		for seed, n := range []int{1, 3, 4, 5, 16, 17, 37, 64, 100} {
			tokens := prompt(n, seed)
			r := p.reserve(n, 0)
			a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket})
			if a.err != nil {
				t.Fatalf("prompt of %d: %v", n, a.err)
			}
			steps := time.Duration((n + chunkTokens - 1) / chunkTokens)
			switch want := firstToken(t, tokens); {
			case a.first.GetTokenId() != want || a.first.GetLast() || a.first.GetReason() != inferencev1.FinishReason_FINISH_REASON_UNSPECIFIED:
				t.Errorf("prompt of %d: first token %v, want %d and nothing more", n, a.first, want)
			case time.Duration(a.first.GetComputeNs()) != steps*stepTime:
				t.Errorf("prompt of %d: computed for %v in %d steps", n, time.Duration(a.first.GetComputeNs()), steps)
			}
			if a.started.GetCachedTokens() != 0 || a.started.GetQueueNs() != 0 {
				t.Errorf("prompt of %d: started %v", n, a.started)
			}
			if sampled, _ := r.end(t); len(sampled) != 1 || uint32(sampled[0]) != a.first.GetTokenId() {
				t.Errorf("prompt of %d: committed with %v, first token %d", n, sampled, a.first.GetTokenId())
			}
			p.holdsKVOf(r, tokens, 0)
			if want := uint64(len(r.blocks) * layers * g.engine.Capacity().Layout.SliceBytes); a.sent.GetBytes() != want {
				t.Errorf("prompt of %d: %d bytes sent, want %d", n, a.sent.GetBytes(), want)
			}
			// From the first layer of the first step to the end of the last step.
			if want := steps*stepTime - stepTime/layers; time.Duration(a.sent.GetTransferNs()) != want || a.sent.GetExposedNs() != 0 {
				t.Errorf("prompt of %d: transfer of %v, exposed %v; want %v and 0", n, time.Duration(a.sent.GetTransferNs()), a.sent.GetExposedNs(), want)
			}
			g.idle()
		}
	})
}

func TestFirstTokenDoesNotWaitForTheTransfer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		tokens := prompt(30, 1)
		r := p.reserve(len(tokens), 0)
		p.pages.shut()
		stream := g.call(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket})
		if a := g.read(stream, true); a.first.GetTokenId() != firstToken(t, tokens) {
			t.Errorf("first token %v, error %v", a.first, a.err)
		}
		synctest.Wait()
		if r.ended() {
			t.Error("the transfer ended although no byte could land")
		}
		if load, _ := g.service.Driver().Load(); load.BlocksFree == load.BlocksTotal {
			t.Error("the blocks were given back while they are still sent")
		}
		const exposed = 300 * time.Millisecond
		time.Sleep(exposed)
		p.pages.open()
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(event.GetSent().GetExposedNs()); got != exposed {
			t.Errorf("exposed for %v, want %v", got, exposed)
		}
		p.holdsKVOf(r, tokens, 0)
		g.idle()
	})
}

// slowEnds is an engine that takes rest for what of the last layer comes after its
// keys and values, and head for the first token.
type slowEnds struct {
	engine.Engine
	rest, head time.Duration
}

func (e slowEnds) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	done := batch.LayersDone
	batch.LayersDone = func() {
		time.Sleep(e.rest)
		done()
		time.Sleep(e.head)
	}
	return e.Engine.Step(ctx, batch)
}

func TestTailBeginsWhenTheLastLayerIsComputed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rest, head = 70 * time.Millisecond, 20 * time.Millisecond
		g := newWorker(t, newNetwork(), "prefill-1", func(_ *prefill.Config, deps *prefill.Deps) {
			deps.Engine = slowEnds{deps.Engine, rest, head}
		})
		p := g.newPeer("decode-1", 11)
		tokens := prompt(chunkTokens, 1)
		r := p.reserve(len(tokens), 0)
		a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket})
		if a.err != nil {
			t.Fatal(a.err)
		}
		if tail := time.Duration(a.sent.GetTailNs()); tail != head {
			t.Errorf("the commit came %v after the last layer, want %v", tail, head)
		}
		if took, want := time.Duration(a.sent.GetTransferNs()), stepTime-stepTime/layers+rest+head; took != want {
			t.Errorf("the transfer took %v, want %v", took, want)
		}
		g.idle()
	})
}

func TestHeldBlocksAreNotSent(t *testing.T) {
	for _, c := range []struct{ tokens, held int }{{40, 1}, {40, 3}, {40, 9}, {40, 10}, {41, 10}, {37, 9}, {3, 0}, {16, 4}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				p := g.newPeer("decode-1", 11)
				tokens := prompt(c.tokens, 2)
				for _, round := range []string{"computed", "from the prefix cache"} {
					r := p.reserve(c.tokens, c.held)
					a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket})
					if a.err != nil || a.first.GetTokenId() != firstToken(t, tokens) {
						t.Fatalf("%s: first token %v, error %v", round, a.first, a.err)
					}
					p.holdsKVOf(r, tokens, c.held)
					sent := len(r.blocks) - c.held
					if want := uint64(sent * layers * g.engine.Capacity().Layout.SliceBytes); a.sent.GetBytes() != want {
						t.Errorf("%s: %d bytes sent, want %d", round, a.sent.GetBytes(), want)
					}
					if took := a.sent.GetTransferNs() + a.sent.GetTailNs(); sent == 0 && took != 0 {
						t.Errorf("%s: nothing was sent for %v", round, time.Duration(took))
					}
					for layer := range layers {
						for _, block := range r.blocks[:c.held] {
							view := p.engine.Pages().View(layer, block)
							if !bytes.Equal(view, make([]byte, len(view))) {
								t.Errorf("%s: block %d was written although it is held", round, block)
							}
						}
					}
					g.idle()
				}
			})
		})
	}
}

// TestCachedBlocksAreSentToo: no step computes them, the receiver needs them all
// the same.
func TestCachedBlocksAreSentToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		long := prompt(45, 3)
		for _, c := range []struct {
			name         string
			tokens       []uint32
			cached, held int
		}{
			{"nothing is cached", long, 0, 0},
			{"all but the end is cached", long, 44, 0},
			{"a prefix is cached", append(append([]uint32{}, long[:21]...), 9, 9, 9), 20, 0},
			{"the last token is computed in any case", long[:40], 36, 0},
			{"the receiver holds less", long, 44, 4},
			{"the receiver holds as much", long, 44, 11},
		} {
			before := g.layers.Computed()
			r := p.reserve(len(c.tokens), c.held)
			a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(c.tokens, 5), Ticket: r.ticket})
			if a.err != nil {
				t.Fatalf("%s: %v", c.name, a.err)
			}
			if int(a.started.GetCachedTokens()) != c.cached {
				t.Errorf("%s: %d tokens were cached, want %d", c.name, a.started.GetCachedTokens(), c.cached)
			}
			if a.first.GetTokenId() != firstToken(t, c.tokens) {
				t.Errorf("%s: first token %d, want %d", c.name, a.first.GetTokenId(), firstToken(t, c.tokens))
			}
			if steps := (g.layers.Computed() - before) / layers; c.cached > 0 && steps != 1 {
				t.Errorf("%s: computed in %d steps", c.name, steps)
			}
			p.holdsKVOf(r, c.tokens, c.held)
			g.idle()
		}
	})
}

func TestFirstTokenThatEndsTheRequest(t *testing.T) {
	tokens := prompt(30, 4)
	for _, c := range []struct {
		name   string
		change func(t *testing.T, task *workerv1.Task)
		reason inferencev1.FinishReason
	}{
		{"max_tokens 1", func(_ *testing.T, task *workerv1.Task) { task.MaxTokens = 1 }, inferencev1.FinishReason_FINISH_REASON_LENGTH},
		{"the last of a restarted request", func(_ *testing.T, task *workerv1.Task) { task.Generated, task.MaxTokens = 4, 5 }, inferencev1.FinishReason_FINISH_REASON_LENGTH},
		{"stop token", func(t *testing.T, task *workerv1.Task) { task.StopTokenIds = []uint32{3, firstToken(t, tokens)} }, inferencev1.FinishReason_FINISH_REASON_STOP},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				p := g.newPeer("decode-1", 11)
				r := p.reserve(len(tokens), 0)
				request := &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket}
				c.change(t, request.GetTask())
				a := g.run(t.Context(), request)
				if a.err != nil || !a.first.GetLast() || a.first.GetReason() != c.reason || a.first.GetTokenId() != firstToken(t, tokens) {
					t.Errorf("first token %v, error %v", a.first, a.err)
				}
				if reason := r.aborted(t); reason != kvtransferv1.AbortReason_ABORT_REASON_FINISHED {
					t.Errorf("the transfer was aborted with %v", reason)
				}
				g.idle()
				g.works(p, 5)
			})
		})
	}
}

func TestManyPromptsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		one, two := g.newPeer("decode-1", 11), g.newPeer("decode-2", 12)
		var all sync.WaitGroup
		for i := range maxWaiting {
			p := []*peer{one, two}[i%2]
			tokens := prompt(20+3*i, 10+i)
			r := p.reserve(len(tokens), 0)
			all.Go(func() {
				a := g.run(context.Background(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket})
				if a.err != nil || a.first.GetTokenId() != firstToken(t, tokens) {
					t.Errorf("prompt %d: %v, error %v", i, a.first, a.err)
				}
				p.holdsKVOf(r, tokens, 0)
			})
		}
		all.Wait()
		g.idle()
	})
}

func TestListBlocksIsWhatTheEventsAddUpTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		for seed := range 8 { // more than the pool holds, so that blocks are removed too
			tokens := prompt(41, 20+seed)
			r := p.reserve(len(tokens), 0)
			if a := g.run(t.Context(), &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(tokens, 5), Ticket: r.ticket}); a.err != nil {
				t.Fatal(a.err)
			}
			g.idle()
			list, err := g.worker.ListBlocks(t.Context(), &workerv1.ListBlocksRequest{})
			if err != nil {
				t.Fatal(err)
			}
			checkBlocks(t, list, g.signals)
		}
	})
}
