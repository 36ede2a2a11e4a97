package worker

import (
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Event is what happens to a worker: one of the types below, or a scheduler.Event. A
// scheduler.Submit begins a bare sequence, one without a service: its owner gets the scheduler's
// own actions. scheduler.KVArrived, TransferDone and Cancel are for bare sequences only.
type Event any

type (
	// Generate begins a sequence on a decode worker: of kind scheduler.Receive, whose KV a
	// prefill worker sends, or scheduler.Full, whose prompt is computed here.
	Generate struct {
		Request scheduler.Request
		// Pauses: whoever reads the stream wants Paused and Resumed. Queued: they want Queued.
		Pauses, Queued bool
	}
	// Reserved answers ReserveKV: senders may come with the ticket.
	Reserved struct {
		ID     scheduler.SequenceID
		Ticket *kvtransferv1.Ticket
	}
	// NotReserved answers ReserveKV: nothing was reserved, for Err, a gRPC status.
	NotReserved struct {
		ID  scheduler.SequenceID
		Err error
	}
	// Arrived says that the transfer was committed. Nothing follows from it.
	Arrived struct {
		ID scheduler.SequenceID
		// From is the sender's worker id, Sampled the tokens that it sampled.
		From    string
		Sampled []int32
		// Approximate is scheduler.KVArrived's.
		Approximate bool
	}
	// Broke says that the transfer is over without commit. Drained follows. It may overtake
	// Reserved, which has no meaning then.
	Broke struct {
		ID scheduler.SequenceID
		// Err has the code CANCELLED if the sender gave it up because its request was cancelled.
		Err error
		// Finished: the sender gave it up because the first token ended the request.
		Finished bool
	}
	// Drained says that the transfer writes no block any more. It follows Broke or CancelKV.
	Drained struct{ ID scheduler.SequenceID }

	// Prefill begins a sequence of kind scheduler.PrefillOnly on a prefill worker.
	Prefill struct {
		Request scheduler.Request
		// Held is how many leading blocks the receiver has: they are not sent.
		Held int
		// Fetch: a block store may have more of the prompt than this worker.
		Fetch bool
		// Queued is Generate's.
		Queued bool
	}
	// Opened answers OpenTransfer: the receiver has let the transfer begin.
	Opened struct{ ID scheduler.SequenceID }
	// NotOpened answers OpenTransfer: there is no transfer, for Err, a gRPC status.
	NotOpened struct {
		ID  scheduler.SequenceID
		Err error
	}
	// Fetched answers Fetch, whatever came of it.
	Fetched struct {
		ID scheduler.SequenceID
		// From and Until are the tokens that were cached before and are after it.
		From, Until int
		Took        time.Duration
		Verdict     workerv1.FetchVerdict
	}
	// Sent says that an opened transfer has ended, so that it reads no block any more: with
	// Err nil it was committed. Stats is what was sent.
	Sent struct {
		ID    scheduler.SequenceID
		Err   error
		Stats *workerv1.KvSent
	}

	// Cancel ends a sequence of Generate or Prefill with Err, a gRPC status. Unknown ones and
	// those that have ended are ignored.
	Cancel struct {
		ID  scheduler.SequenceID
		Err error
	}
	// CancelAll ends every sequence, as one that a worker that leaves cannot finish.
	CancelAll struct{}
	// Inspected answers Inspect.
	Inspected struct {
		ID  scheduler.SequenceID
		Err *NotFiniteError
	}
	// StepTook says what the last step took. It comes apart from scheduler.StepDone, which
	// the next step waits for.
	StepTook struct {
		Work    latency.StepWork
		Compute time.Duration
	}
)

// Action is what a worker wants done: one of the types below, or a scheduler.Action, which
// is valid as Scheduler.Handle says. The scheduler's actions for sequences of Generate and
// Prefill are told too, for metrics, but for the *scheduler.Sampled of a Prefill.
type Action any

type (
	// ReserveKV asks for a reservation at the receiver of KV. It is answered by Reserved or
	// NotReserved.
	ReserveKV struct {
		ID scheduler.SequenceID
		// Blocks are the sequence's, of which the first Held have their KV already and the
		// first Prompt are the prompt's.
		Blocks       []kvcache.BlockID
		Held, Prompt int
	}
	// CancelKV asks to cancel a reservation. Drained follows, unless Arrived was first.
	CancelKV struct{ ID scheduler.SequenceID }
	// SendDecode is a message to whoever reads the stream of a Generate. Tokens come as
	// *scheduler.Sampled; those that wait together may go out together.
	SendDecode struct {
		ID    scheduler.SequenceID
		Event *workerv1.DecodeEvent
	}

	// OpenTransfer asks to open the transfer to the receiver. It is answered by Opened or
	// NotOpened.
	OpenTransfer struct{ ID scheduler.SequenceID }
	// Fetch asks for what a block store has of the prompt. It is answered by Fetched.
	Fetch struct {
		ID      scheduler.SequenceID
		Request *scheduler.Request
	}
	// Offer asks to send blocks, in every layer, that the prefix cache has. First counts in
	// the sequence's blocks.
	Offer struct {
		ID     scheduler.SequenceID
		First  int
		Blocks []kvcache.BlockID
	}
	// Commit asks to commit the transfer: everything was offered.
	Commit struct {
		ID      scheduler.SequenceID
		Sampled int32
	}
	// Abort asks to end the transfer without commit. Sent follows.
	Abort struct {
		ID     scheduler.SequenceID
		Reason kvtransferv1.AbortReason
	}
	// SendPrefill is a message to whoever reads the stream of a Prefill.
	SendPrefill struct {
		ID    scheduler.SequenceID
		Event *workerv1.PrefillEvent
	}

	// End is the end of a Generate's or Prefill's stream, with nil or a gRPC status. Nothing
	// comes for the sequence after it.
	End struct {
		ID  scheduler.SequenceID
		Err error
	}
	// Stalled says that a bare sequence keeps its blocks and waits for one more.
	Stalled struct{ ID scheduler.SequenceID }
	// Inspect asks to find out where a sequence's KV stops being finite. It is answered by
	// Inspected; until then the blocks stay as they are.
	Inspect struct {
		ID        scheduler.SequenceID
		NotFinite *scheduler.NotFinite
	}
	// Fault says that the worker's own computing gave what is not finite too often: it has to
	// leave.
	Fault struct{}
	// Gone says that nothing of a sequence is left on the worker.
	Gone struct{ ID scheduler.SequenceID }
)

// finishReason is that of a sequence that ended well; 0: it did not.
func finishReason(reason scheduler.FinishReason) inferencev1.FinishReason {
	switch reason {
	case scheduler.Stopped:
		return inferencev1.FinishReason_FINISH_REASON_STOP
	case scheduler.Length:
		return inferencev1.FinishReason_FINISH_REASON_LENGTH
	}
	return 0
}

// OfSequence is an action that whoever serves a Generate or Prefill carries out.
type OfSequence interface{ Sequence() scheduler.SequenceID }

// Sequence is whom the action is for.
func (a ReserveKV) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a CancelKV) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a SendDecode) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a OpenTransfer) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a Fetch) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a Offer) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a Commit) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a Abort) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a SendPrefill) Sequence() scheduler.SequenceID { return a.ID }

// Sequence is whom the action is for.
func (a End) Sequence() scheduler.SequenceID { return a.ID }
