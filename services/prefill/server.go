package prefill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// server is the Prefill gRPC service.
type server struct {
	workerv1.UnimplementedPrefillServer
	spec    model.Spec
	driver  *worker.Driver
	sender  *kvtransfer.Sender
	running *transfers
	fetcher *fetcher // nil: nothing is fetched
	epoch   uint64
	tracer  trace.Tracer
	sent    kvtransfer.SentBytes
}

// Run serves one prompt. It returns only when no page of the sequence will be
// read for the transfer any more; the sender bounds how long that takes.
func (s *server) Run(request *workerv1.PrefillRequest, stream grpc.ServerStreamingServer[workerv1.PrefillEvent]) (err error) {
	ctx, spans := worker.StartTrace(stream.Context(), s.tracer, "tandem.prefill", workerv1.Prefill_Run_FullMethodName, request.GetTask())
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
	if err := checkTicket(request.GetTicket(), len(sequence.Tokens), s.driver.Layout().BlockTokens); err != nil {
		return err
	}
	if s.driver.Draining() {
		return worker.RefusedError(scheduler.Draining)
	}
	// Opened before anything is computed: a receiver that refuses costs nothing.
	transfer, err := s.sender.Open(ctx, request.GetTicket(), request.GetTask().GetEnvelope().GetRequestId())
	if err != nil {
		return openError(err)
	}
	sequence.ID = s.driver.Reserve()
	sequence.Kind = scheduler.PrefillOnly
	p := &prompt{
		server: s, stream: stream, spans: spans, transfer: transfer, id: sequence.ID,
		held: int(request.GetTicket().GetHeldBlocks()),
	}
	s.running.add(sequence.ID, &outgoing{transfer: transfer, held: p.held})
	defer s.running.remove(sequence.ID)
	if spans != nil {
		spans.Opened()
		s.driver.Trace(sequence.ID, spans)
	}
	return p.run(ctx, request.GetSource(), sequence)
}

// submit fetches what a block store has of the prompt, if that is worth it, and
// hands the prompt in, whatever came of that.
func (p *prompt) submit(ctx context.Context, source *workerv1.BlockSource, sequence scheduler.Request) *worker.Sequence {
	if p.server.fetcher != nil && source != nil {
		p.fetch(ctx, source, &sequence)
		defer p.fetched.Release()
	}
	return p.server.driver.Submit(sequence)
}

func (p *prompt) fetch(ctx context.Context, source *workerv1.BlockSource, sequence *scheduler.Request) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		select {
		case <-p.transfer.Done(): // without a receiver nothing is worth fetching
			cancel()
		case <-ctx.Done():
		}
	})
	p.fetched = p.server.fetcher.get(ctx, source, sequence)
	if p.fetched.Tried && p.spans != nil {
		p.spans.Fetched(p.fetched.Until-p.fetched.From, p.fetched.Bytes, p.fetched.Err)
	}
}

// checkTicket finds what is wrong with a ticket whoever made it. Its errors are
// gRPC statuses.
func checkTicket(ticket *kvtransferv1.Ticket, promptTokens, blockTokens int) error {
	blocks := (promptTokens + blockTokens - 1) / blockTokens
	switch {
	case ticket == nil:
		return rpc.InvalidArgument("ticket", "is missing: reserve blocks on a decode worker first")
	case len(ticket.GetAddresses()) == 0:
		return rpc.InvalidArgument("ticket.addresses", "is empty: give the decode worker's addresses")
	case ticket.GetLease().AsDuration() <= 0:
		return rpc.InvalidArgument("ticket.lease", "is not above 0")
	case int64(ticket.GetBlocks()) != int64(blocks):
		return rpc.InvalidArgument("ticket.blocks", fmt.Sprintf("is %d, but the task's %d tokens fill %d: reserve for the same task", ticket.GetBlocks(), promptTokens, blocks))
	case ticket.GetHeldBlocks() > ticket.GetBlocks():
		return rpc.InvalidArgument("ticket.held_blocks", fmt.Sprintf("%d of %d blocks cannot be held", ticket.GetHeldBlocks(), ticket.GetBlocks()))
	}
	return nil
}

// openError is the status for a transfer that could not begin.
func openError(err error) error {
	if refused, ok := errors.AsType[*kvtransfer.RefusedError](err); ok {
		reason := api.ReasonTransferRefused
		if mismatch(refused.Reason) {
			reason = api.ReasonTransferUnreachable
		}
		return rpc.Error(codes.Unavailable, reason, fmt.Sprintf("the decode worker refuses the KV: %v", refused), 0)
	}
	if errors.Is(err, kvtransfer.ErrClosed) {
		return worker.RefusedError(scheduler.Draining)
	}
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return s.Err()
	}
	reason := api.ReasonTransferFailed
	// No address that leads to it, a connection that it refused, an answer that is late.
	if _, isBroken := errors.AsType[*kvtransfer.BrokenError](err); isBroken {
		reason = api.ReasonTransferUnreachable
	}
	return rpc.Error(codes.Unavailable, reason, fmt.Sprintf("cannot start a transfer to the decode worker: %v", err), 0)
}

// mismatch reports that a refusal is not of this transfer but of all between these
// two workers: the address leads to another one, or they have nothing in common.
func mismatch(reason kvtransferv1.RefuseReason) bool {
	switch reason {
	case kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH,
		kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT,
		kvtransferv1.RefuseReason_REFUSE_REASON_ENCODING:
		return true
	}
	return false
}

// prompt is one request while it runs.
type prompt struct {
	server   *server
	stream   grpc.ServerStreamingServer[workerv1.PrefillEvent]
	spans    *worker.Trace // nil: not sampled
	transfer *kvtransfer.Transfer
	id       scheduler.SequenceID
	// held is how many leading blocks the receiver has: they are not sent.
	held     int
	fetched  fetched
	first    int32
	logprobs *inferencev1.TokenLogprobs // of first
	finished bool
	refused  bool
	released bool
	// last: the first token ended the request, so the KV serves nobody.
	last bool
}

// run hands the prompt in and follows the sequence to its end, then the transfer to
// its own. Both end whatever happens, a panic included.
func (p *prompt) run(ctx context.Context, source *workerv1.BlockSource, request scheduler.Request) (err error) {
	var sequence *worker.Sequence
	defer func() {
		if !p.released {
			if sequence != nil {
				sequence.Cancel()
			}
			p.transfer.Abort(kvtransferv1.AbortReason_ABORT_REASON_FAILED)
			<-p.transfer.Done()
			p.release()
		}
	}()
	sequence = p.submit(ctx, source, request)
	if err = p.follow(ctx, sequence); err != nil {
		sequence.Cancel()
		p.transfer.Abort(abortReason(err))
	}
	transferErr := p.awaitTransfer(ctx)
	p.traceTransfer(transferErr)
	p.release()
	switch {
	case err != nil:
		return err
	case transferErr != nil:
		return transferErr
	}
	return p.sendStats()
}

// release says that the transfer reads no block any more.
func (p *prompt) release() {
	p.released = true
	p.server.sent.Add(p.transfer.Stats())
	if !p.refused {
		p.server.driver.TransferDone(p.id)
	}
}

func abortReason(err error) kvtransferv1.AbortReason {
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded:
		return kvtransferv1.AbortReason_ABORT_REASON_CANCELLED
	}
	return kvtransferv1.AbortReason_ABORT_REASON_FAILED
}

// follow does what the sequence's actions ask until it has ended, or until the
// transfer has, without which it is pointless.
func (p *prompt) follow(ctx context.Context, sequence *worker.Sequence) error {
	for !p.finished {
		select {
		case <-sequence.Ready():
			for _, action := range sequence.Take() {
				if err := p.act(action); err != nil {
					return err
				}
			}
		case <-p.transfer.Done():
			if err := p.transferError(); err != nil {
				return err
			}
			return rpc.Error(codes.Unavailable, api.ReasonTransferFailed, "the decode worker ended the transfer before it was committed", 0)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

func (p *prompt) act(action scheduler.Action) error {
	switch a := action.(type) {
	case scheduler.Started:
		p.sendCached(a.Blocks, a.CachedTokens)
		if p.spans != nil {
			p.spans.Started(a.Waited, a.CachedTokens)
		}
		return p.stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{Started: &workerv1.PrefillStarted{
			CachedTokens: uint32(a.CachedTokens), QueueNs: a.Waited.Nanoseconds(),
			FetchedTokens: uint32(max(min(a.CachedTokens, p.fetched.Until)-p.fetched.From, 0)), FetchNs: p.fetched.Took.Nanoseconds(),
			FetchVerdict: p.fetched.Verdict,
		}}})
	case *scheduler.Sampled:
		p.first, p.logprobs = a.Token, a.Logprobs.Message()
	case scheduler.Finished:
		p.finished = true
		return p.finish(a)
	case scheduler.Refused:
		p.finished, p.refused = true, true
		return worker.RefusedError(a.Reason)
	}
	return nil
}

// sendCached sends the blocks that this worker's prefix cache has and the
// receiver's has not: no step will compute them.
func (p *prompt) sendCached(table []kvcache.BlockID, cachedTokens int) {
	layout := p.server.driver.Layout()
	end := cachedTokens / layout.BlockTokens
	if p.held >= end {
		return
	}
	for layer := range layout.Layers {
		p.transfer.Send(layer, p.held, table[p.held:end])
	}
}

// finish answers with the first token. The token goes out before the transfer
// is committed or given up: it waits for nothing.
func (p *prompt) finish(end scheduler.Finished) error {
	token := &workerv1.FirstToken{TokenId: uint32(p.first), ComputeNs: end.PrefillCompute.Nanoseconds(), Logprobs: p.logprobs}
	switch end.Reason {
	case scheduler.PrefillDone:
	case scheduler.Stopped:
		token.Last, token.Reason = true, inferencev1.FinishReason_FINISH_REASON_STOP
	case scheduler.Length:
		token.Last, token.Reason = true, inferencev1.FinishReason_FINISH_REASON_LENGTH
	case scheduler.Failed:
		return worker.FailedError(end.Err)
	default: // cancelled by a drain that ran out of time; the client's own cancel ends ctx
		return worker.RefusedError(scheduler.Draining)
	}
	if err := p.stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: token}}); err != nil {
		return err
	}
	if p.last = token.GetLast(); p.last {
		p.transfer.Abort(kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
	} else {
		p.transfer.Commit([]int32{p.first})
	}
	return nil
}

// awaitTransfer waits until the transfer has ended. A client that goes away meanwhile
// aborts it.
func (p *prompt) awaitTransfer(ctx context.Context) error {
	select {
	case <-p.transfer.Done():
		return p.transferError()
	case <-ctx.Done():
		p.transfer.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		<-p.transfer.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// transferError is the status of an ended transfer: nil if it was committed, or
// if nothing is left to decode, however it ended then.
func (p *prompt) transferError() error {
	err := p.transfer.Err()
	if err == nil || p.last {
		return nil
	}
	return rpc.Error(codes.Unavailable, api.ReasonTransferFailed, fmt.Sprintf("the KV did not reach the decode worker: %v", err), 0)
}

// traceTransfer makes the span of what was sent, which takes as long as KvSent
// says.
func (p *prompt) traceTransfer(err error) {
	stats := p.transfer.Stats()
	if p.spans == nil || stats.FirstOffered == 0 {
		return
	}
	opened := p.transfer.Opened()
	until := time.Now()
	if stats.Acknowledged > 0 {
		until = opened.Add(stats.Acknowledged)
	}
	p.spans.Transferred(opened.Add(stats.FirstOffered), until, stats.Bytes, stats.Chunks, err)
}

func (p *prompt) sendStats() error {
	stats := p.transfer.Stats()
	sent := &workerv1.KvSent{Bytes: stats.Bytes, Transport: stats.Transport}
	if stats.Acknowledged > 0 {
		if stats.Bytes > 0 { // else the receiver held all, and nothing was offered
			sent.TailNs = max(stats.Acknowledged-max(stats.LastSend, stats.Computed), 0).Nanoseconds()
			sent.TransferNs = (stats.Acknowledged - stats.FirstOffered).Nanoseconds()
		}
		sent.ExposedNs = max(stats.Acknowledged-stats.LastOffered, 0).Nanoseconds()
	}
	return p.stream.Send(&workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: sent}})
}
