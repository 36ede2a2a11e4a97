package workerdriver

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/identity"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// decodeServer is the Decode gRPC service.
type decodeServer struct {
	workerv1.UnimplementedDecodeServer
	spec     model.Spec
	epoch    uint64
	driver   *Driver
	receiver *kvtransfer.Receiver // nil: it only takes whole requests
	grammars Grammars
	pools    bool // the engine gives hidden states
	tracer   trace.Tracer
}

// RegisterDecode adds the Decode service to a gRPC server. Without a receiver of KV it takes
// requests whose prompt is computed here, and refuses others.
func (m *Member) RegisterDecode(registrar grpc.ServiceRegistrar, receiver *kvtransfer.Receiver) {
	workerv1.RegisterDecodeServer(registrar, &decodeServer{
		spec: m.cfg.Engine.Model(), epoch: m.cfg.Identity.Epoch, driver: m.driver, receiver: receiver, tracer: m.cfg.Tracer, grammars: m.cfg.Grammars, pools: m.cfg.Engine.Capacity().PoolsHiddenStates,
	})
}

// Accept checks what a router sends to a worker: that it means this start of it, and that the model
// can do what the task asks. grammars may be nil. Its errors are gRPC statuses.
func Accept(ctx context.Context, request interface {
	GetWorkerEpoch() uint64
	GetTask() *workerv1.Task
}, epoch uint64, spec model.Spec, grammars Grammars,
) (scheduler.Request, error) {
	if err := membership.CheckEpoch(request.GetWorkerEpoch(), epoch); err != nil {
		return scheduler.Request{}, err
	}
	deadline, _ := ctx.Deadline()
	sequence, err := worker.ParseTask(request.GetTask(), spec, deadline)
	if err != nil {
		return scheduler.Request{}, err
	}
	err = grammars.constrain(ctx, &sequence, request.GetTask())
	return sequence, err
}

// Run serves one sequence. When it returns, the sequence has ended or been
// cancelled; blocks that a sender could still write stay quarantined until the
// receiver knows better.
func (s *decodeServer) Run(request *workerv1.DecodeRequest, stream grpc.ServerStreamingServer[workerv1.DecodeEvent]) (err error) {
	ctx, spans := StartTrace(stream.Context(), s.tracer, "tandem.decode", workerv1.Decode_Run_FullMethodName, request.GetTask())
	if spans != nil {
		defer func() { spans.End(err) }()
	}
	sequence, err := Accept(ctx, request, s.epoch, s.spec, s.grammars)
	if err != nil {
		return err
	}
	if s.receiver == nil && !request.GetPrefillHere() {
		return rpc.InvalidArgument("prefill_here", "is not set, but this worker receives no KV: send the request to a decode worker")
	}
	if sequence.PromptLogprobs && !request.GetPrefillHere() {
		return rpc.InvalidArgument("task.prompt_logprobs", "needs prefill_here: who receives KV does not compute the prompt")
	}
	if sequence.Pooling != nil {
		if !s.pools {
			return rpc.InvalidArgument("model", "is served by an engine that gives no hidden states, and so no embeddings: serve it with the CPU engine")
		}
		if !request.GetPrefillHere() {
			return rpc.InvalidArgument("task.pool", "needs prefill_here: a worker knows the hidden states of what it computes")
		}
	}
	sequence.ID = s.driver.Reserve()
	sequence.Kind = scheduler.Receive
	if request.GetPrefillHere() {
		sequence.Kind = scheduler.Full
	}
	g := &generation{
		server: s, stream: stream, spans: spans, id: sequence.ID, pool: sequence.Pooling,
		requestID: request.GetTask().GetEnvelope().GetRequestId(), tenant: request.GetTask().GetEnvelope().GetTenant(), sender: request.GetSender(),
	}
	if spans != nil {
		s.driver.Trace(sequence.ID, spans)
		spans.submitted()
	}
	return s.driver.Generate(worker.Generate{Request: sequence, Pauses: request.GetPauses(), Queued: request.GetQueued()}).Follow(ctx, g)
}

// generation carries out what the worker asks for one sequence.
type generation struct {
	server *decodeServer
	stream grpc.ServerStreamingServer[workerv1.DecodeEvent]
	spans  *Trace // nil: not sampled
	id     scheduler.SequenceID
	// requestID and tenant are the task's, sender the request's.
	requestID, tenant, sender string

	pool *engine.Pooling // of its hidden states; nil: nobody wants them

	tokens   *workerv1.Tokens // that wait together and go out in one message; nil: none
	transfer uint64           // of the reservation
}

// Carry implements Carrier.
func (g *generation) Carry(action worker.Action) error {
	if token, is := action.(*scheduler.Sampled); is {
		g.add(token)
		return nil
	}
	if err := g.Flush(); err != nil {
		return err
	}
	switch a := action.(type) {
	case worker.ReserveKV:
		g.server.driver.Handle(g.id, g.reserve(a))
	case worker.CancelKV:
		g.server.receiver.Cancel(g.transfer)
	case worker.SendDecode:
		g.trace(a.Event)
		if ended := a.Event.GetEnded(); ended != nil && g.pool != nil {
			ended.MeanState = g.pool.Mean()
		}
		return g.stream.Send(a.Event)
	}
	return nil
}

func (g *generation) add(token *scheduler.Sampled) {
	if g.tokens == nil {
		g.tokens = &workerv1.Tokens{Offset: uint32(token.Offset)}
	}
	g.tokens.TokenIds = append(g.tokens.TokenIds, uint32(token.Token))
	g.tokens.DraftTokens, g.tokens.AcceptedDraftTokens = uint32(token.Drafts), uint32(token.AcceptedDrafts)
	if token.Logprobs != nil {
		g.tokens.Logprobs = append(g.tokens.Logprobs, token.Logprobs.Message())
	}
	if g.spans != nil {
		g.spans.Token(token.Offset)
	}
}

// Flush implements Carrier.
func (g *generation) Flush() error {
	if g.tokens == nil {
		return nil
	}
	tokens := g.tokens
	g.tokens = nil
	return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: tokens}})
}

// trace makes the spans of what a message says.
func (g *generation) trace(event *workerv1.DecodeEvent) {
	if g.spans == nil {
		return
	}
	if admitted := event.GetAdmitted(); admitted != nil {
		g.spans.Started(time.Duration(admitted.GetQueueNs()), int(admitted.GetCachedTokens()))
	}
	if ended := event.GetEnded(); ended != nil {
		g.spans.Finished(time.Duration(ended.GetDecodeComputeNs()))
	}
}

// holders are on whose behalf the sequence's blocks are reserved: its tenant and, if that is
// known by its certificate, the router.
func (g *generation) holders() []string {
	holders := []string{"tenant " + g.tenant}
	if router, known := identity.FromContext(g.stream.Context()); known {
		holders = append(holders, router.String())
	}
	return holders
}

// reserve lets a sender write into the sequence's blocks. It returns the answer for the worker.
func (g *generation) reserve(r worker.ReserveKV) worker.Event {
	driver := g.server.driver
	ticket, err := g.server.receiver.Reserve(kvtransfer.Reservation{
		RequestID:    g.requestID,
		Sender:       g.sender,
		Holders:      g.holders(),
		Blocks:       r.Blocks,
		HeldBlocks:   r.Held,
		PromptBlocks: r.Prompt,
		Committed: func(arrived kvtransfer.Arrival) {
			if g.spans != nil {
				g.spans.Arrived(arrived.Bytes)
			}
			driver.Handle(g.id, worker.Arrived{ID: g.id, Sampled: arrived.Sampled, From: arrived.Sender, Approximate: arrived.Approximate})
		},
		Failed: func(err error) {
			broke := worker.Broke{ID: g.id, Err: err}
			if aborted, is := errors.AsType[*kvtransfer.AbortedError](err); is {
				broke.Finished = aborted.Reason == kvtransferv1.AbortReason_ABORT_REASON_FINISHED
				if aborted.Reason == kvtransferv1.AbortReason_ABORT_REASON_CANCELLED {
					broke.Err = status.Error(codes.Canceled, err.Error())
				}
			}
			driver.Handle(g.id, broke)
		},
		Drained: func() { driver.Handle(g.id, worker.Drained{ID: g.id}) },
	})
	switch {
	case errors.Is(err, kvtransfer.ErrClosed):
		return worker.NotReserved{ID: g.id, Err: worker.RefusedError(scheduler.Draining)}
	case errors.Is(err, kvtransfer.ErrFull), errors.As(err, new(*kvtransfer.ShareError)):
		return worker.NotReserved{ID: g.id, Err: rpc.Errorf(codes.ResourceExhausted, api.ReasonQueueFull, "no KV reservation: %v", err)}
	case err != nil:
		return worker.NotReserved{ID: g.id, Err: rpc.InvalidArgument("sender", err.Error())}
	}
	g.transfer = ticket.GetTransferId()
	if g.spans != nil {
		g.spans.Reserved(len(r.Blocks), r.Held*driver.Layout().BlockTokens)
	}
	return worker.Reserved{ID: g.id, Ticket: ticket}
}
