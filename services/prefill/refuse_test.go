package prefill_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// TestBadRequestsAreRefusedUncomputed: each names its field.
func TestBadRequestsAreRefusedUncomputed(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*workerv1.PrefillRequest)
		field  string
	}{
		{"no task", func(r *workerv1.PrefillRequest) { r.Task = nil }, "task"},
		{"no tokens", func(r *workerv1.PrefillRequest) { r.Task.TokenIds = nil }, "task.token_ids"},
		{"unknown token", func(r *workerv1.PrefillRequest) { r.Task.TokenIds[3] = 1 << 31 }, "task.token_ids"},
		{"absurd temperature", func(r *workerv1.PrefillRequest) { f := float32(-1); r.Task.Sampling.Temperature = &f }, "task.sampling.temperature"},
		{"log probabilities of the prompt", func(r *workerv1.PrefillRequest) { r.Task.PromptLogprobs = new(uint32) }, "task.prompt_logprobs"},
		{"hidden states", func(r *workerv1.PrefillRequest) { r.Task.Pool, r.Task.MaxTokens = true, 1 }, "task.pool"},
		{"no ticket", func(r *workerv1.PrefillRequest) { r.Ticket = nil }, "ticket"},
		{"ticket without address", func(r *workerv1.PrefillRequest) { r.Ticket.Addresses = nil }, "ticket.addresses"},
		{"ticket without lease", func(r *workerv1.PrefillRequest) { r.Ticket.Lease = nil }, "ticket.lease"},
		{"ticket with a negative lease", func(r *workerv1.PrefillRequest) { r.Ticket.Lease = durationpb.New(-1) }, "ticket.lease"},
		{"ticket for fewer blocks", func(r *workerv1.PrefillRequest) { r.Ticket.Blocks-- }, "ticket.blocks"},
		{"ticket for more blocks", func(r *workerv1.PrefillRequest) { r.Ticket.Blocks++ }, "ticket.blocks"},
		{"more held than there is", func(r *workerv1.PrefillRequest) { r.Ticket.HeldBlocks = r.Ticket.GetBlocks() + 1 }, "ticket.held_blocks"},
		{"absurdly many held", func(r *workerv1.PrefillRequest) { r.Ticket.HeldBlocks = 1<<32 - 1 }, "ticket.held_blocks"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				p := g.newPeer("decode-1", 11)
				request := &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: p.reserve(30, 0).ticket}
				c.change(request)
				a := g.run(t.Context(), request)
				wantError(t, "request", a.err, codes.InvalidArgument, api.ReasonInvalidField)
				if got := rpc.Field(a.err); got != c.field {
					t.Errorf("field %q, want %q (%v)", got, c.field, a.err)
				}
				if a.started != nil || g.layers.Computed() != 0 {
					t.Error("something was computed")
				}
				g.idle()
				g.works(p, 6)
			})
		})
	}
}

func TestAnotherIncarnationIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		request := &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: p.reserve(30, 0).ticket}
		request.WorkerEpoch++
		a := g.run(t.Context(), request)
		wantError(t, "request", a.err, codes.FailedPrecondition, api.ReasonWrongEpoch)
		if g.layers.Computed() != 0 {
			t.Error("something was computed")
		}
		g.idle()
		g.works(p, 6)
	})
}

// TestTicketsThatReceiversRefuse: nothing is computed for them.
func TestTicketsThatReceiversRefuse(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*kvtransferv1.Ticket)
		reason string
	}{
		{"wrong epoch", func(k *kvtransferv1.Ticket) { k.Epoch++ }, api.ReasonTransferUnreachable},
		{"another worker's", func(k *kvtransferv1.Ticket) { k.Receiver = "decode-9" }, api.ReasonTransferUnreachable},
		{"wrong secret", func(k *kvtransferv1.Ticket) { k.Secret++ }, api.ReasonTransferRefused},
		{"unknown transfer", func(k *kvtransferv1.Ticket) { k.TransferId++ }, api.ReasonTransferRefused},
		{"wrong layout", func(k *kvtransferv1.Ticket) { k.LayoutDigest++ }, api.ReasonTransferUnreachable},
		{"nobody at the address", func(k *kvtransferv1.Ticket) { k.Addresses = []string{"nowhere:1"} }, api.ReasonTransferUnreachable},
		{"no address at all", func(k *kvtransferv1.Ticket) { k.Addresses = []string{"nonsense"} }, api.ReasonTransferUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				p := g.newPeer("decode-1", 11)
				request := &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: p.reserve(30, 0).ticket}
				c.change(request.GetTicket())
				a := g.run(t.Context(), request)
				wantError(t, "request", a.err, codes.Unavailable, c.reason)
				if a.started != nil || g.layers.Computed() != 0 {
					t.Error("something was computed")
				}
				g.idle()
				g.works(p, 6)
			})
		})
	}
}

// Of a receiver that has no connection left, or does not answer, an address that leads
// nowhere is not the only thing to be said.
func TestReceiversThatTakeNoConnection(t *testing.T) {
	for _, full := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			g := newRig(t)
			p := g.newPeer("decode-1", 11)
			listener := g.network.listen("busy:1")
			if full {
				defer serve(t, rpc.NewConnectionLimit(1, "", nil).Listener(listener), p.receiver.Register)()
				other, err := listener.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = other.Close() }()
			} else {
				defer func() { _ = listener.Close() }()
			}
			request := &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: p.reserve(30, 0).ticket}
			request.Ticket.Addresses = []string{"busy:1"}
			a := g.run(t.Context(), request)
			wantError(t, "request", a.err, codes.Unavailable, api.ReasonTransferUnreachable)
			if !strings.Contains(a.err.Error(), "cannot start a transfer to the decode worker") {
				t.Error(a.err)
			}
			g.idle()
			g.works(p, 6)
		})
	}
}

func TestATicketServesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		p := g.newPeer("decode-1", 11)
		r := p.reserve(30, 0)
		request := &workerv1.PrefillRequest{WorkerEpoch: workerEpoch, Task: task(prompt(30, 1), 5), Ticket: r.ticket}
		first := g.call(t.Context(), request)
		if _, err := first.Recv(); err != nil {
			t.Fatal(err)
		}
		wantError(t, "while the first runs", g.run(t.Context(), request).err, codes.Unavailable, api.ReasonTransferRefused)
		if err := lastError(first); !errors.Is(err, io.EOF) {
			t.Errorf("the first was disturbed: %v", err)
		}
		wantError(t, "after the first", g.run(t.Context(), request).err, codes.Unavailable, api.ReasonTransferRefused)
		g.idle()
	})
}
