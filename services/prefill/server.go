package prefill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/pkg/workerdriver"
)

// server is the Prefill gRPC service.
type server struct {
	workerv1.UnimplementedPrefillServer
	spec     model.Spec
	driver   *workerdriver.Driver
	sender   *kvtransfer.Sender
	running  *transfers
	storing  *storing // nil: nothing is fetched
	epoch    uint64
	tracer   trace.Tracer
	logger   *slog.Logger
	sent     kvtransfer.SentBytes
	grammars workerdriver.Grammars
}

// Run serves one prompt. It returns only when no page of the sequence will be
// read for the transfer any more; the sender bounds how long that takes.
func (s *server) Run(request *workerv1.PrefillRequest, stream grpc.ServerStreamingServer[workerv1.PrefillEvent]) (err error) {
	ctx, spans := workerdriver.StartTrace(stream.Context(), s.tracer, "tandem.prefill", workerv1.Prefill_Run_FullMethodName, request.GetTask())
	if spans != nil {
		defer func() { spans.End(err) }()
	}
	sequence, err := workerdriver.Accept(ctx, request, s.epoch, s.spec, s.grammars)
	if err != nil {
		return err
	}
	if sequence.PromptLogprobs {
		return rpc.InvalidArgument("task.prompt_logprobs", "is only for requests that one worker serves: ask Decode, with prefill_here")
	}
	if sequence.Pooling != nil {
		return rpc.InvalidArgument("task.pool", "is only for requests that one worker serves: ask Decode, with prefill_here")
	}
	if err := checkTicket(request.GetTicket(), len(sequence.Tokens), s.driver.Layout().BlockTokens); err != nil {
		return err
	}
	sequence.ID = s.driver.Reserve()
	sequence.Kind = scheduler.PrefillOnly
	p := &prompt{ctx: ctx, server: s, stream: stream, spans: spans, id: sequence.ID, request: request}
	if spans != nil {
		s.driver.Trace(sequence.ID, spans)
	}
	defer s.running.remove(sequence.ID)
	return s.driver.Prefill(worker.Prefill{
		Request: sequence, Held: int(request.GetTicket().GetHeldBlocks()), Fetch: s.storing != nil && request.GetSource() != nil, Queued: request.GetQueued(),
	}).Follow(ctx, p)
}

// checkTicket checks a ticket, whatever its origin. Its errors are gRPC statuses.
func checkTicket(ticket *kvtransferv1.Ticket, promptTokens, blockTokens int) error {
	blocks := kvcache.BlocksFor(promptTokens, blockTokens)
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
		return worker.TransferRefusedError(refused.Reason, refused)
	}
	if errors.Is(err, kvtransfer.ErrClosed) {
		return worker.RefusedError(scheduler.Draining)
	}
	if s := status.FromContextError(err); s.Code() != codes.Unknown {
		return s.Err()
	}
	_, isBroken := errors.AsType[*kvtransfer.BrokenError](err)
	return worker.TransferNotStartedError(err, isBroken)
}

// prompt carries out what the worker asks for one sequence.
type prompt struct {
	ctx      context.Context
	server   *server
	stream   grpc.ServerStreamingServer[workerv1.PrefillEvent]
	spans    *workerdriver.Trace // nil: not sampled
	id       scheduler.SequenceID
	request  *workerv1.PrefillRequest
	transfer *kvtransfer.Transfer // nil: it is not open
}

// Carry implements workerdriver.Carrier.
func (p *prompt) Carry(action worker.Action) error {
	switch a := action.(type) {
	case worker.OpenTransfer:
		p.open()
	case worker.Fetch:
		// What ends the sequence meanwhile is carried out before that ends.
		go p.contain(func() { p.fetch(*a.Request) }, worker.Fetched{ID: p.id, Verdict: workerv1.FetchVerdict_FETCH_VERDICT_FAILED})
	case worker.Offer:
		for layer := range p.server.driver.Layout().Layers {
			p.transfer.Send(layer, a.First, a.Blocks)
		}
	case worker.Commit:
		p.transfer.Commit([]int32{a.Sampled})
	case worker.Abort:
		p.transfer.Abort(a.Reason)
	case worker.SendPrefill:
		if started := a.Event.GetStarted(); started != nil && p.spans != nil {
			p.spans.Started(time.Duration(started.GetQueueNs()), int(started.GetCachedTokens()))
		}
		return p.stream.Send(a.Event)
	}
	return nil
}

// Flush implements workerdriver.Carrier.
func (p *prompt) Flush() error { return nil }

// contain calls f. A panic of it fails no other sequence: the worker is told instead of what f
// would have told it. Where f has, the worker ignores that.
func (p *prompt) contain(f func(), instead worker.Event) {
	defer func() {
		if reason := recover(); reason != nil {
			p.server.logger.Error("prefill panicked", slog.Uint64("sequence", uint64(p.id)), slog.Any("panic", reason), slog.String("stack", string(debug.Stack())))
			p.server.driver.Handle(p.id, instead)
		}
	}()
	f()
}

// errPanicked is how a transfer ends whose end this worker could not take in.
var errPanicked = errors.New("the worker has a bug: see its log")

// open opens the transfer, before anything is computed: a receiver that refuses costs nothing.
// The worker hears of its end, once no page is read for it any more; the sender bounds how
// long that takes.
func (p *prompt) open() {
	driver, ticket := p.server.driver, p.request.GetTicket()
	transfer, err := p.server.sender.Open(p.ctx, ticket, p.request.GetTask().GetEnvelope().GetRequestId())
	if err != nil {
		driver.Handle(p.id, worker.NotOpened{ID: p.id, Err: openError(err)})
		return
	}
	p.transfer = transfer
	p.server.running.add(p.id, &outgoing{transfer: transfer, held: int(ticket.GetHeldBlocks())})
	if p.spans != nil {
		p.spans.Opened()
	}
	driver.Handle(p.id, worker.Opened{ID: p.id})
	go p.contain(func() {
		<-transfer.Done()
		err, stats := transfer.Err(), transfer.Stats()
		p.traceTransfer(stats, err)
		p.server.sent.Add(stats)
		driver.Handle(p.id, worker.Sent{ID: p.id, Err: err, Stats: stats.Message()})
	}, worker.Sent{ID: p.id, Err: errPanicked})
}

// fetch fetches what a block store has of the prompt, if that is worth it, and tells the
// worker, whatever came of that. It ends soon after the transfer: the worker waits for it.
func (p *prompt) fetch(sequence scheduler.Request) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-p.transfer.Done(): // without a receiver nothing is worth fetching
			cancel()
		case <-ctx.Done():
		}
	})
	got, release := p.server.storing.get(ctx, p.request.GetSource(), p.id, &sequence)
	cancel()
	watching.Wait()
	defer release()
	if got.Tried && p.spans != nil {
		p.spans.Fetched(got.Until-got.From, got.Bytes, got.Err)
	}
	p.server.driver.Handle(p.id, worker.Fetched{ID: p.id, From: got.From, Until: got.Until, Took: got.Took, Verdict: got.Verdict})
}

// traceTransfer makes the span of what was sent, which takes as long as KvSent
// says.
func (p *prompt) traceTransfer(stats kvtransfer.TransferStats, err error) {
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
