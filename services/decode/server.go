package decode

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// server is the Decode gRPC service.
type server struct {
	workerv1.UnimplementedDecodeServer
	spec     model.Spec
	epoch    uint64
	driver   *worker.Driver
	receiver *kvtransfer.Receiver
	running  *atomic.Int64 // reservations that have not ended
	tracer   trace.Tracer
}

// Run serves one sequence. When it returns, the sequence has ended or been
// cancelled; blocks that a sender could still write stay quarantined until the
// receiver knows better.
func (s *server) Run(request *workerv1.DecodeRequest, stream grpc.ServerStreamingServer[workerv1.DecodeEvent]) (err error) {
	ctx, spans := worker.StartTrace(stream.Context(), s.tracer, "tandem.decode", workerv1.Decode_Run_FullMethodName, request.GetTask())
	if spans != nil {
		defer func() { spans.End(err) }()
	}
	deadline, _ := ctx.Deadline()
	if err := membership.CheckEpoch(request.GetWorkerEpoch(), s.epoch); err != nil {
		return err
	}
	sequence, err := worker.ParseTask(request.GetTask(), s.spec, deadline)
	if err != nil {
		return err
	}
	if s.driver.Draining() {
		return worker.RefusedError(scheduler.Draining)
	}
	sequence.ID = s.driver.Reserve()
	sequence.Kind = scheduler.Receive
	if request.GetPrefillHere() {
		sequence.Kind = scheduler.Full
	}
	g := &generation{
		server: s, stream: stream, spans: spans, id: sequence.ID,
		requestID:    request.GetTask().GetEnvelope().GetRequestId(),
		promptTokens: len(sequence.Tokens),
		pauses:       request.GetPauses(),
		lost:         make(chan error, 1),
	}
	if spans != nil {
		s.driver.Trace(sequence.ID, spans)
		spans.Submitted()
	}
	return g.run(ctx, s.driver.Submit(sequence))
}

// generation is one sequence while it runs.
type generation struct {
	server       *server
	stream       grpc.ServerStreamingServer[workerv1.DecodeEvent]
	spans        *worker.Trace // nil: not sampled
	id           scheduler.SequenceID
	requestID    string
	promptTokens int
	pauses       bool // the router asked to hear of them

	// lost receives how the transfer ended, if it did without a commit. It has
	// a place for the one end that there is.
	lost         chan error
	ticket       *kvtransferv1.Ticket
	cachedTokens int
	approximate  bool // the KV that arrived; set before the driver hears of it
	ended        bool
}

// run follows the sequence until it has ended. What does not end well, a panic
// included, is given up.
func (g *generation) run(ctx context.Context, sequence *worker.Sequence) (err error) {
	well := false
	defer func() {
		if !well {
			sequence.Cancel()
			g.giveUp(sequence.Take())
		}
	}()
	err = g.follow(ctx, sequence)
	well = err == nil
	return err
}

// giveUp ends the hold of the transfer on the blocks of a cancelled sequence:
// through the receiver if it knows them, at once if the reservation is among the
// actions that were never acted on.
func (g *generation) giveUp(left []scheduler.Action) {
	if g.ticket != nil {
		g.server.receiver.Cancel(g.ticket.GetTransferId()) // no effect once committed
		return
	}
	for _, action := range left {
		if _, is := action.(scheduler.Reserved); is {
			g.server.driver.TransferDone(g.id)
		}
	}
}

func (g *generation) follow(ctx context.Context, sequence *worker.Sequence) error {
	for !g.ended {
		select {
		case <-sequence.Ready():
			if err := g.act(sequence.Take()); err != nil {
				return err
			}
		case err := <-g.lost:
			return transferError(err)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// transferError is the status for a transfer that ended without commit.
func transferError(err error) error {
	if aborted, ok := errors.AsType[*kvtransfer.AbortedError](err); ok && aborted.Reason == kvtransferv1.AbortReason_ABORT_REASON_FINISHED {
		return rpc.Error(codes.Canceled, api.ReasonFinishedAtPrefill, "the first token ended the request: nothing is left to decode", 0)
	}
	return rpc.Error(codes.Unavailable, api.ReasonTransferFailed, fmt.Sprintf("the KV did not arrive: %v", err), 0)
}

// act does what the sequence's actions ask. Tokens that wait together go out in
// one message.
func (g *generation) act(actions []scheduler.Action) error {
	var tokens *workerv1.Tokens
	for _, action := range actions {
		if a, is := action.(*scheduler.Sampled); is {
			if tokens == nil {
				tokens = &workerv1.Tokens{Offset: uint32(a.Offset)}
			}
			tokens.TokenIds = append(tokens.TokenIds, uint32(a.Token))
			if a.Logprobs != nil {
				tokens.Logprobs = append(tokens.Logprobs, a.Logprobs.Message())
			}
			if g.spans != nil {
				g.spans.Token(a.Offset)
			}
			continue
		}
		if err := g.sendTokens(tokens); err != nil {
			return err
		}
		tokens = nil
		if err := g.other(action); err != nil {
			return err
		}
	}
	return g.sendTokens(tokens)
}

func (g *generation) sendTokens(tokens *workerv1.Tokens) error {
	if tokens == nil {
		return nil
	}
	return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: tokens}})
}

func (g *generation) other(action scheduler.Action) error {
	switch a := action.(type) {
	case scheduler.Reserved:
		return g.reserve(a)
	case scheduler.Started:
		if g.ticket == nil { // prefilled here
			g.cachedTokens = a.CachedTokens
		}
		if g.spans != nil {
			g.spans.Started(a.Waited, g.cachedTokens)
		}
		return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Admitted{Admitted: &workerv1.Admitted{
			QueueNs: a.Waited.Nanoseconds(), CachedTokens: uint32(g.cachedTokens), Approximate: g.approximate,
		}}})
	case scheduler.Preempted:
		if !g.pauses {
			return nil
		}
		return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Paused{Paused: &workerv1.Paused{}}})
	case scheduler.Resumed:
		if !g.pauses {
			return nil
		}
		return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Resumed{Resumed: &workerv1.Resumed{}}})
	case scheduler.Refused:
		g.ended = true
		return worker.RefusedError(a.Reason)
	case scheduler.Finished:
		g.ended = true
		if g.spans != nil {
			g.spans.Finished(a)
		}
		return g.finish(a)
	}
	return nil
}

// reserve lets a sender write into the sequence's blocks.
func (g *generation) reserve(r scheduler.Reserved) error {
	driver, running := g.server.driver, g.server.running
	blockTokens := driver.Layout().BlockTokens
	running.Add(1)
	over := func() {
		running.Add(-1)
		driver.TransferDone(g.id)
	}
	ticket, err := g.server.receiver.Reserve(kvtransfer.Reservation{
		RequestID:    g.requestID,
		Blocks:       r.Blocks,
		HeldBlocks:   r.CachedTokens / blockTokens,
		PromptBlocks: (g.promptTokens + blockTokens - 1) / blockTokens,
		Committed: func(arrived kvtransfer.Arrival) {
			sampled := arrived.Sampled
			running.Add(-1)
			if g.spans != nil {
				g.spans.Arrived(arrived.Bytes)
			}
			if err := g.server.checkSampled(sampled); err != nil {
				g.lost <- err
				sampled = nil // ends the sequence
			}
			g.approximate = arrived.Approximate
			driver.KVArrived(scheduler.KVArrived{ID: g.id, Sampled: sampled, From: arrived.Sender, Approximate: arrived.Approximate})
		},
		Failed:  func(err error) { g.lost <- err },
		Drained: over,
	})
	if err != nil {
		over() // nobody can write
		if errors.Is(err, kvtransfer.ErrClosed) {
			return worker.RefusedError(scheduler.Draining)
		}
		return rpc.Error(codes.ResourceExhausted, api.ReasonQueueFull, fmt.Sprintf("no KV reservation: %v", err), 0)
	}
	g.ticket, g.cachedTokens = ticket, r.CachedTokens
	if g.spans != nil {
		g.spans.Reserved(len(r.Blocks), r.CachedTokens)
	}
	return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Reserved{Reserved: &workerv1.Reserved{
		Ticket: ticket, CachedTokens: uint32(r.CachedTokens),
	}}})
}

// checkSampled refuses tokens that no engine takes: they would fail the step of
// every sequence beside this one.
func (s *server) checkSampled(sampled []int32) error {
	if len(sampled) == 0 {
		return errors.New("the sender committed without the token sampled from it")
	}
	for _, token := range sampled {
		if token < 0 || int(token) >= s.spec.VocabSize {
			return fmt.Errorf("the sender sampled token %d, which is outside the vocabulary of %d", token, s.spec.VocabSize)
		}
	}
	return nil
}

func (g *generation) finish(end scheduler.Finished) error {
	ended := &workerv1.Ended{
		PrefillComputeNs: end.PrefillCompute.Nanoseconds(), DecodeComputeNs: end.DecodeCompute.Nanoseconds(),
	}
	switch end.Reason {
	case scheduler.Stopped:
		ended.Reason = inferencev1.FinishReason_FINISH_REASON_STOP
	case scheduler.Length:
		ended.Reason = inferencev1.FinishReason_FINISH_REASON_LENGTH
	case scheduler.Failed:
		select {
		case err := <-g.lost: // why it failed, if both were ready and select took this one
			return transferError(err)
		default:
			return worker.FailedError(end.Err)
		}
	default: // cancelled by a drain that ran out of time; the client's own cancel ends ctx
		return worker.RefusedError(scheduler.Draining)
	}
	return g.stream.Send(&workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Ended{Ended: ended}})
}
