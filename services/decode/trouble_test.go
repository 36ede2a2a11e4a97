package decode_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/decode"
)

func TestBadTasks(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*workerv1.DecodeRequest)
		code   codes.Code
		field  string
	}{
		{"no task", func(r *workerv1.DecodeRequest) { r.Task = nil }, codes.InvalidArgument, "task"},
		{"another model", func(r *workerv1.DecodeRequest) { r.Task.ModelDigest = "d2" }, codes.FailedPrecondition, ""},
		{"another incarnation", func(r *workerv1.DecodeRequest) { r.WorkerEpoch = workerEpoch + 1 }, codes.FailedPrecondition, ""},
		{"no tokens", func(r *workerv1.DecodeRequest) { r.Task.TokenIds = nil }, codes.InvalidArgument, "task.token_ids"},
		{"nothing to generate", func(r *workerv1.DecodeRequest) { r.Task.MaxTokens = 0 }, codes.InvalidArgument, "task.max_tokens"},
		{"never fits", func(r *workerv1.DecodeRequest) { r.Task.TokenIds = prompt(poolBlocks*blockTokens+1, 1) }, codes.InvalidArgument, "task.token_ids"},
		{"its completion never fits", func(r *workerv1.DecodeRequest) { r.Task.MaxTokens = 200 }, codes.InvalidArgument, "task.token_ids"},
	} {
		for _, here := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t)
					request := &workerv1.DecodeRequest{Task: task(prompt(30, 1), 5), PrefillHere: here}
					c.change(request)
					a := g.call(t.Context(), request).rest()
					if status.Code(a.err) != c.code || rpc.Field(a.err) != c.field || a.reserved != nil {
						t.Errorf("ended with %v, field %q", a.err, rpc.Field(a.err))
					}
					g.idle()
				})
			})
		}
	}
}

// TestCommitsThatNobodyShouldTrust: a peer's tokens are checked, since a wrong
// one would fail the step of every sequence beside it.
func TestCommitsThatNobodyShouldTrust(t *testing.T) {
	for _, c := range []struct {
		name    string
		sampled []int32
	}{
		{"no token", nil},
		{"a token outside the vocabulary", []int32{500}},
		{"a negative token", []int32{-1}},
		{"the second is wrong", []int32{3, 1 << 30}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				bystander := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(9, 2), 20), PrefillHere: true})
				tokens := prompt(30, 1)
				a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12)})
				h := g.sender.open(a.ticket(), tokens)
				h.sendLayers(layers)
				h.Commit(c.sampled)
				wantError(t, "request", a.rest().err, codes.Unavailable, api.ReasonTransferFailed)
				bystander.rest().checkTokens("the sequence beside it", prompt(9, 2), 0, 20, length)
				g.idle()
				g.works(5)
			})
		})
	}
}

func TestTransferThatDoesNotCome(t *testing.T) {
	for _, c := range []struct {
		name string
		code codes.Code
		end  func(g *rig, h *shipment)
	}{
		{"the sender gives up", codes.Unavailable, func(_ *rig, h *shipment) { h.Abort(kvtransferv1.AbortReason_ABORT_REASON_FAILED) }},
		{"the sender's client went away", codes.Canceled, func(_ *rig, h *shipment) { h.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED) }},
		{"the sender dies", codes.Unavailable, func(g *rig, _ *shipment) { g.sender.die() }},
		{"something is missing", codes.Unavailable, func(_ *rig, h *shipment) { h.Commit([]int32{h.first}) }},
	} {
		for sent := range layers {
			t.Run(c.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					g := newRig(t)
					tokens := prompt(30, 1)
					a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12)})
					h := g.sender.open(a.ticket(), tokens)
					h.sendLayers(sent)
					synctest.Wait()
					began := time.Now()
					c.end(g, h)
					wantError(t, "request", a.rest().err, c.code, api.ReasonTransferFailed)
					if took := time.Since(began); took > time.Second {
						t.Errorf("noticed after %v", took)
					}
					<-h.Done()
					g.idle()
					g.works(5)
				})
			})
		}
	}
}

func TestReservationThatNobodyUsesExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		began := time.Now()
		a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(30, 1), 5)})
		ticket := a.ticket()
		wantError(t, "request", a.rest().err, codes.Unavailable, api.ReasonTransferFailed)
		if took := time.Since(began); took < lease || took > 2*lease {
			t.Errorf("expired after %v", took)
		}
		g.idle()
		if _, err := g.sender.Open(t.Context(), ticket, "r"); err == nil {
			t.Error("the ticket is good still")
		}
		g.works(5)
	})
}

// TestCancelAtAnyTime cancels at every step of a request's life: before and while
// its KV comes, waiting for a place, and generating.
func TestCancelAtAnyTime(t *testing.T) {
	for _, here := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t)
			whole := 0
			for i := range 60 {
				after := time.Duration(i) * 2 * time.Millisecond
				tokens := prompt(30, i)
				bystander := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(9, 100+i), 8), PrefillHere: true})
				ctx, cancel := context.WithTimeout(t.Context(), after)
				if i%2 == 0 {
					ctx, cancel = context.WithCancel(t.Context())
					time.AfterFunc(after, cancel)
				}
				a := g.call(ctx, &workerv1.DecodeRequest{Task: task(tokens, 6), PrefillHere: here})
				var h *shipment
				if a.next(); a.reserved.GetTicket() != nil {
					h = g.sender.shipSlowly(ctx, a.reserved.GetTicket(), tokens)
				}
				a.rest()
				cancel()
				switch code := status.Code(a.err); {
				case a.err == nil:
					whole++
					offset := 1
					if here {
						offset = 0
					}
					a.checkTokens("a whole answer", tokens, offset, 6, length)
				case i%2 == 0 && code != codes.Canceled, i%2 == 1 && code != codes.DeadlineExceeded:
					t.Errorf("cancelled after %v: %v", after, a.err)
				}
				if h != nil {
					<-h.Done()
				}
				bystander.rest().checkTokens("the sequence beside it", prompt(9, 100+i), 0, 8, length)
				g.idle()
			}
			if whole == 0 || whole > 40 {
				t.Errorf("%d of 60 requests ended before they were cancelled", whole)
			}
			g.works(500)
		})
	}
}

// shipSlowly sends a layer each 10 ms until ctx ends, and then goes on for a
// while as a sender does that has not heard of it.
func (s *sender) shipSlowly(ctx context.Context, ticket *kvtransferv1.Ticket, tokens []uint32) *shipment {
	h, err := s.tryOpen(ctx, ticket, tokens)
	if err != nil {
		return nil // the reservation is gone already
	}
	for layer := range layers {
		h.Send(layer, h.held, h.blocks[h.held:])
		time.Sleep(10 * time.Millisecond)
	}
	h.Commit([]int32{h.first})
	return h
}

// TestCancelWhileBlocksComeFree: the reservation may be made at the moment in
// which its client goes away, and is then never acted on.
func TestCancelWhileBlocksComeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		for i := range 100 {
			ctx, cancel := context.WithCancel(t.Context())
			first := g.call(ctx, &workerv1.DecodeRequest{Task: task(prompt(120, 2*i), 30)}) // most of the pool
			first.ticket()
			second := g.call(ctx, &workerv1.DecodeRequest{Task: task(prompt(120, 2*i+1), 30)})
			synctest.Wait()
			if second.reserved != nil {
				t.Fatal("two requests have the same blocks")
			}
			cancel()
			wantError(t, "first", first.rest().err, codes.Canceled, "")
			wantError(t, "second", second.rest().err, codes.Canceled, "")
			g.idle()
		}
		g.works(500)
	})
}

// TestClientLeavesBeforeItsReservationIsSeen: the handler finds the reservation
// and the end of its client at the same time, and may take either first.
func TestClientLeavesBeforeItsReservationIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.late.Store(true)
		for i := range 30 {
			ctx, cancel := context.WithCancel(t.Context())
			a := g.call(ctx, &workerv1.DecodeRequest{Task: task(prompt(30, i), 5)})
			synctest.Wait()
			cancel()
			wantError(t, "request", a.rest().err, codes.Canceled, "")
			synctest.Wait()
			g.idle()
		}
		g.late.Store(false)
		g.works(50)
	})
}

// TestNoLateWrite: what a sender sends for a cancelled sequence does not land in
// the blocks of the next one.
func TestNoLateWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		for i := range 20 {
			tokens := prompt(120, 3*i)
			ctx, cancel := context.WithCancel(t.Context())
			a := g.call(ctx, &workerv1.DecodeRequest{Task: task(tokens, 30)})
			h := g.sender.open(a.ticket(), tokens)
			h.sendLayers(1)
			cancel()
			next := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(prompt(120, 3*i+1), 5), PrefillHere: true})
			for layer := 1; layer < layers; layer++ { // it has not heard of the end
				h.Send(layer, 0, h.blocks)
			}
			h.Commit([]int32{h.first})
			next.rest().checkTokens("the next request", prompt(120, 3*i+1), 0, 5, length)
			wantError(t, "request", a.rest().err, codes.Canceled, "")
			<-h.Done()
			g.idle()
		}
	})
}

func TestEngineFailure(t *testing.T) {
	for _, here := range []bool{false, true} {
		for _, failing := range []int{1, 3, 4, 8} { // which layer, over all steps
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				var layer atomic.Int64
				g.layers.Hold(func(context.Context, time.Duration) error {
					if int(layer.Add(1)) == failing {
						return errors.New("the device fell off the bus")
					}
					return nil
				})
				tokens := prompt(30, 1)
				a := g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12), PrefillHere: here})
				if !here {
					g.sender.ship(a.ticket(), tokens)
				}
				wantError(t, "request", a.rest().err, codes.Unavailable, api.ReasonEngineFailed)
				g.layers.Hold(nil)
				g.idle()
				a = g.call(t.Context(), &workerv1.DecodeRequest{Task: task(tokens, 12), PrefillHere: true}).rest()
				a.checkTokens("the same again", tokens, 0, 12, length) // nothing of a failed step may be in the cache
				g.works(5)
			})
		}
	}
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		g.call(ctx, &workerv1.DecodeRequest{Task: task(prompt(120, 1), 30)}).ticket() // most of the pool
		refused := 0
		var waiting []*answer
		for i := range maxWaiting + 7 + 2 { // seven others have places
			a := g.call(ctx, &workerv1.DecodeRequest{Task: task(prompt(60, 2+i), 5), PrefillHere: i%2 == 0})
			synctest.Wait()
			if load, _ := g.service.Driver().Load(); load.WaitingSequences < i+1 {
				refused++
				wantError(t, "request", a.rest().err, codes.ResourceExhausted, api.ReasonQueueFull)
				continue
			}
			waiting = append(waiting, a)
		}
		if refused != 2 {
			t.Errorf("%d were refused, want 2", refused)
		}
		cancel()
		for _, a := range waiting {
			wantError(t, "waiting request", a.rest().err, codes.Canceled, "")
		}
		g.idle()
		g.works(50)
	})
}

func TestConfig(t *testing.T) {
	good := func() decode.Config {
		return decode.Config{Limits: worker.Limits{ChunkTokens: 64, MaxWaiting: 1, OutputShare: 1}, TransferLease: time.Second, TransferIdle: time.Minute, ReserveShare: 1, TransferCreditBytes: 1 << 20, KVEncoding: "native"}
	}
	for _, c := range []struct {
		name   string
		change func(*decode.Config)
		names  string
	}{
		{"good", func(*decode.Config) {}, ""},
		{"no chunk", func(c *decode.Config) { c.ChunkTokens = 0 }, "decode-chunk-tokens"},
		{"chunk of no whole blocks", func(c *decode.Config) { c.ChunkTokens = 33 }, "decode-chunk-tokens"},
		{"no queue", func(c *decode.Config) { c.MaxWaiting = 0 }, "decode-max-waiting"},
		{"negative step budget", func(c *decode.Config) { c.StepBudget = -1 }, "decode-step-budget"},
		{"no output", func(c *decode.Config) { c.OutputShare = 0 }, "decode-output-share"},
		{"more output than there may be", func(c *decode.Config) { c.OutputShare = 1.1 }, "decode-output-share"},
		{"short lease", func(c *decode.Config) { c.TransferLease = time.Millisecond }, "decode-transfer-lease"},
		{"less time without KV than without a sign of life", func(c *decode.Config) { c.TransferIdle = time.Millisecond }, "decode-transfer-idle"},
		{"no share", func(c *decode.Config) { c.ReserveShare = 0 }, "decode-reserve-share"},
		{"no credit", func(c *decode.Config) { c.TransferCreditBytes = -1 }, "decode-transfer-credit-bytes"},
		{"credit for less than a chunk", func(c *decode.Config) { c.TransferCreditBytes = 1 }, "decode-transfer-credit-bytes"},
		{"the most credit", func(c *decode.Config) { c.TransferCreditBytes = 1 << 40 }, ""},
		{"more credit than a receiver gives", func(c *decode.Config) { c.TransferCreditBytes = 1<<40 + 1 }, "decode-transfer-credit-bytes"},
		{"KV in an encoding without a name", func(c *decode.Config) { c.KVEncoding = "" }, "decode-kv-encoding"},
		{"native KV", func(c *decode.Config) { c.KVEncoding = "native" }, ""},
		{"KV in int8", func(c *decode.Config) { c.KVEncoding = "int8" }, ""},
		{"no drafts", func(c *decode.Config) { c.Speculate = "off" }, ""},
		{"drafts", func(c *decode.Config) { c.Speculate, c.SpeculateTokens = "ngram", 15 }, ""},
		{"drafts of no known kind", func(c *decode.Config) { c.Speculate = "medusa" }, "speculate"},
		{"drafts of a model", func(c *decode.Config) { c.Speculate, c.SpeculateTokens, c.DraftModel = "draft", 15, "d" }, ""},
		{"drafts of no model", func(c *decode.Config) { c.Speculate, c.SpeculateTokens = "draft", 15 }, "draft-model"},
		{"a draft model without drafts", func(c *decode.Config) { c.DraftModel = "d" }, "draft-model"},
		{"a draft model beside others", func(c *decode.Config) { c.Speculate, c.SpeculateTokens, c.DraftModel = "ngram", 15, "d" }, "draft-model"},
		{"no memory for drafts", func(c *decode.Config) { c.DraftKVMemory = -1 }, "draft-kv-memory"},
		{"no tokens to draft", func(c *decode.Config) { c.Speculate = "ngram" }, "speculate-tokens"},
		{"more tokens to draft than engines verify", func(c *decode.Config) { c.Speculate, c.SpeculateTokens = "ngram", 16 }, "speculate-tokens"},
		{"KV in no known encoding", func(c *decode.Config) { c.KVEncoding = "int4" }, "decode-kv-encoding"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good()
			c.change(&cfg)
			err := cfg.Validate(32)
			if (err == nil) != (c.names == "") || err != nil && !strings.HasPrefix(err.Error(), c.names+": ") {
				t.Errorf("error %v, which should name %q", err, c.names)
			}
		})
	}
}

// One tenant's transfers do not hold a worker's blocks against all others, and are told that
// there are many of them.
func TestTenantsShareReservations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *decode.Config) { c.ReserveShare = 0.5 })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		call := func(tenant string, seed int) *answer {
			request := &workerv1.DecodeRequest{Task: task(prompt(40, seed), 5), Sender: "prefill-1"}
			request.Task.Envelope.Tenant = tenant
			return g.call(ctx, request)
		}
		if ticket := call("greedy", 1).ticket(); ticket.GetSender() != "prefill-1" {
			t.Errorf("the ticket is for %q", ticket.GetSender())
		}
		wantError(t, "second", call("greedy", 2).rest().err, codes.ResourceExhausted, api.ReasonQueueFull)
		call("modest", 3).ticket()
		cancel()
		g.idle()
		g.works(50)
	})
}
