package worker

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// prefill is the life of a sequence on a prefill worker.
type prefill struct {
	request scheduler.Request
	held    int  // leading blocks that the receiver has
	fetch   bool // a block store may have more of the prompt

	transfer  transfer
	prepares  bool // it is counted in Worker.preparing
	submitted bool // the scheduler has, or had, the sequence
	refused   bool // it did not take it
	finished  bool // the prompt is computed, and FirstToken out
	last      bool // the first token ended the request, so the KV serves nobody
	ended     bool // End is out

	got      Fetched
	first    int32
	logprobs *inferencev1.TokenLogprobs // of first
	why      error                      // the stream ends with this gRPC status once the transfer has ended
}

// transfer is that of a prefill's KV to its receiver.
type transfer int

const (
	opening  transfer = iota // OpenTransfer is not answered
	sending                  // it reads blocks
	fetching                 // it is open, and Fetch is not answered
	sent                     // it has ended, and Fetch is not answered
	over                     // it reads no block, and never will
)

func (w *Worker) prefill(e Prefill) {
	p := &prefill{request: e.Request, held: e.Held, fetch: e.Fetch}
	if !w.begin(new(sequence), e.Request, p) {
		return
	}
	if queued := w.taken(e.Queued); queued != nil {
		p.send(w, &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Queued{Queued: queued}})
	}
	switch {
	case w.Draining():
		p.refuse(w, scheduler.Draining)
	case w.preparing >= w.config.Scheduler.MaxWaiting:
		p.refuse(w, scheduler.QueueFull)
	default:
		p.prepares, p.request.Accepted = true, true
		w.preparing++
		w.act(OpenTransfer{p.request.ID})
	}
}

// refuse ends a sequence of which nothing was begun.
func (p *prefill) refuse(w *Worker, reason scheduler.RefuseReason) {
	p.transfer = over
	w.act(scheduler.Refused{ID: p.request.ID, Reason: reason})
	p.end(w, RefusedError(reason))
	w.forget(w.sequences[p.request.ID])
}

// prepared: the sequence does not wait for its transfer or a store any more.
func (p *prefill) prepared(w *Worker) {
	if p.prepares {
		p.prepares = false
		w.preparing--
	}
}

func (p *prefill) over() bool { return p.ended }

func (p *prefill) send(w *Worker, e *workerv1.PrefillEvent) {
	w.act(SendPrefill{ID: p.request.ID, Event: e})
}

func (p *prefill) end(w *Worker, err error) {
	p.prepared(w)
	p.ended = true
	w.act(End{ID: p.request.ID, Err: err})
}

func (p *prefill) opened(w *Worker) {
	switch {
	case p.transfer != opening:
	case p.why != nil:
		p.transfer = sending
		p.abort(w)
	case p.fetch:
		p.transfer = fetching
		w.act(Fetch{ID: p.request.ID, Request: &p.request})
	default:
		p.transfer = sending
		p.submit(w)
	}
}

func (p *prefill) notOpened(w *Worker, e NotOpened) {
	if p.transfer != opening {
		return
	}
	p.transfer = over
	if p.why == nil {
		p.why = e.Err
		p.stop(w, scheduler.Failed)
	}
	p.end(w, p.why)
}

func (p *prefill) submit(w *Worker) {
	p.prepared(w)
	p.submitted = true
	w.submit(p.request)
}

func (p *prefill) fetched(w *Worker, e Fetched) {
	switch {
	case p.transfer == sent:
		p.transfer = over
		p.end(w, p.why)
	case p.transfer != fetching:
	case p.why != nil: // cancelled, and aborted already
		p.transfer = sending
	default:
		p.transfer, p.got = sending, e
		p.request.Fetched = max(e.Until-e.From, 0)
		p.submit(w)
	}
}

func (p *prefill) take(w *Worker, action scheduler.Action) bool {
	switch a := action.(type) {
	case scheduler.Started:
		p.started(w, a)
	case *scheduler.Sampled:
		p.first, p.logprobs = a.Token, a.Logprobs.Message()
		return false
	case scheduler.Refused:
		p.refused = true
		p.fail(w, RefusedError(a.Reason))
	case scheduler.Finished:
		p.done(w, a)
	}
	return true
}

func (p *prefill) stalled(*Worker) {}

// started offers the blocks that this worker's prefix cache has and the receiver's has not: no
// step will compute them.
func (p *prefill) started(w *Worker, a scheduler.Started) {
	if p.why != nil {
		return
	}
	if end := a.CachedTokens / w.config.Scheduler.BlockTokens; p.held < end {
		w.act(Offer{ID: p.request.ID, First: p.held, Blocks: a.Blocks[p.held:end]})
	}
	p.send(w, &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Started{Started: &workerv1.PrefillStarted{
		CachedTokens: uint32(a.CachedTokens), QueueNs: a.Waited.Nanoseconds(),
		FetchedTokens: uint32(max(min(a.CachedTokens, p.got.Until)-p.got.From, 0)), FetchNs: p.got.Took.Nanoseconds(),
		FetchVerdict: p.got.Verdict,
	}}})
}

// done answers with the first token. It goes out before the transfer is committed or given up:
// it waits for nothing.
func (p *prefill) done(w *Worker, a scheduler.Finished) {
	if p.why != nil {
		return
	}
	token := &workerv1.FirstToken{TokenId: uint32(p.first), ComputeNs: a.PrefillCompute.Nanoseconds(), Logprobs: p.logprobs}
	switch a.Reason {
	case scheduler.PrefillDone:
	case scheduler.Stopped, scheduler.Length:
		token.Last, token.Reason = true, finishReason(a.Reason)
	case scheduler.Failed:
		p.fail(w, FailedError(a.Err))
		return
	default:
		p.fail(w, RefusedError(scheduler.Draining))
		return
	}
	p.finished, p.last = true, token.GetLast()
	p.send(w, &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_FirstToken{FirstToken: token}})
	if p.last {
		w.act(Abort{ID: p.request.ID, Reason: kvtransferv1.AbortReason_ABORT_REASON_FINISHED})
	} else {
		w.act(Commit{ID: p.request.ID, Sampled: p.first})
	}
}

// fail gives the transfer up, unless it was already. The stream ends with err once that has
// ended.
func (p *prefill) fail(w *Worker, err error) {
	p.why = err
	if !p.last && (p.transfer == sending || p.transfer == fetching) {
		p.abort(w)
	}
}

func (p *prefill) abort(w *Worker) {
	reason := kvtransferv1.AbortReason_ABORT_REASON_FAILED
	switch status.Code(p.why) {
	case codes.Canceled, codes.DeadlineExceeded:
		reason = kvtransferv1.AbortReason_ABORT_REASON_CANCELLED
	}
	w.act(Abort{ID: p.request.ID, Reason: reason})
}

func (p *prefill) cancel(w *Worker, err error) {
	if p.why != nil || p.ended {
		return
	}
	p.fail(w, err)
	p.stop(w, scheduler.Cancelled)
}

// stop ends the sequence in the scheduler, unless it has ended there. Before the scheduler has it,
// this is its end, for a reason.
func (p *prefill) stop(w *Worker, reason scheduler.FinishReason) {
	switch {
	case !p.submitted:
		w.act(scheduler.Finished{ID: p.request.ID, Reason: reason})
	case !p.finished:
		w.schedule(scheduler.Cancel{ID: p.request.ID})
	}
}

// sent takes in that the transfer has ended. Without a receiver the prompt is pointless.
func (p *prefill) sent(w *Worker, e Sent) {
	if p.transfer != sending && p.transfer != fetching {
		return
	}
	lost := p.why == nil
	switch {
	case p.why != nil:
	case e.Err != nil && !p.last:
		p.why = rpc.Error(codes.Unavailable, api.ReasonTransferFailed, fmt.Sprintf("the KV did not reach the decode worker: %v", e.Err), 0)
	case !p.finished:
		p.why = rpc.Error(codes.Unavailable, api.ReasonTransferFailed, "the decode worker ended the transfer before it was committed", 0)
	}
	if p.transfer == fetching {
		p.transfer = sent
		if lost {
			p.stop(w, scheduler.Cancelled)
		}
		return
	}
	p.transfer = over
	if p.submitted && !p.refused {
		if !p.finished {
			w.schedule(scheduler.Cancel{ID: p.request.ID})
		}
		w.schedule(scheduler.TransferDone{ID: p.request.ID})
	}
	if p.why == nil {
		p.send(w, &workerv1.PrefillEvent{Event: &workerv1.PrefillEvent_Sent{Sent: e.Stats}})
	}
	p.end(w, p.why)
}

// Unsent is the blocks of a part of a step that a transfer has to send, of which the receiver
// has the first held: from first to before end, counted in the sequence's blocks. There are
// none where end is not above first.
func Unsent(part scheduler.Part, held int) (first, end int) {
	if !part.Prompt {
		return 0, 0
	}
	return max(part.FirstBlock, held), part.FirstBlock + part.Blocks
}
