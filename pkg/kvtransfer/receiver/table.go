package receiver

import (
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// state is the state of a transfer.
type state int

const (
	// reserved: the ticket is out, nobody came with it.
	reserved state = iota
	// open: accepted, chunks arrive; some stripes may be committed.
	open
	// committing: Commit was read on every stripe and all is there; copies are under
	// way.
	committing
	// ending: it is over for its owner. The blocks are in quarantine until Abort was
	// read on every stripe, or every stream of the session has ended.
	ending
	// draining: no chunk can come any more; copies are under way.
	draining
	states
	// gone: committed or drained, and not in the table of transfers any more.
	gone = states
)

// kind is what happens to a transfer.
type kind int

const (
	onOpen      kind = iota // Open with the right secret
	onChunk                 // Chunk on a stripe of the transfer's session, as are the next three
	onCommit                //
	onAbort                 //
	onRenew                 //
	onLanded                // a copy has ended well
	onSpoilt                // a copy has ended badly
	onWithdrawn             // what a chunk lent is not lent any more
	onCancel                // the owner does not want it any more
	onDeadline              // its deadline has passed
	onClosed                // this side ends the session
	onBroken                // a stream of the session has ended
	onGone                  // all streams of the session have ended
	onShutdown              // the receiver shuts down
	kinds
)

// input is what a step gets to know of an event.
type input struct {
	stream   *stream
	encoding kvtransferv1.Encoding
	chunk    *wire.Chunk
	commit   *kvtransferv1.Commit
	abort    kvtransferv1.AbortReason
	reason   kvtransferv1.FailReason
	detail   string
}

// cell is what an event does in a state: a step, what that is in words, and the
// states that it may leave the transfer in besides the one that it was in.
type cell struct {
	do   func(*Core, *transfer, input)
	what string
	to   []state
}

func does(do func(*Core, *transfer, input), what string, to ...state) cell { return cell{do, what, to} }

// nothing is a cell of an event that may come and changes nothing.
func nothing(why string) cell { return does(func(*Core, *transfer, input) {}, why) }

// never is a cell of an event that cannot come.
func never() cell { return nothing("cannot happen") }

// table is the state machine of one transfer.
func table() [states][kinds]cell {
	twice := does((*Core).refuseTwice, "Refuse: a ticket serves once")
	breach := does((*Core).breach, "close the session: Abort was the last message")
	return [states][kinds]cell{
		reserved: {
			onOpen:      does((*Core).accept, "Accept", open),
			onChunk:     never(),
			onCommit:    never(),
			onAbort:     never(),
			onRenew:     never(),
			onLanded:    never(),
			onSpoilt:    never(),
			onWithdrawn: never(),
			onCancel:    does((*Core).drain, "drained", gone),
			onDeadline:  does((*Core).lapse, "failed and drained", gone),
			onClosed:    never(),
			onBroken:    never(),
			onGone:      never(),
			onShutdown:  does((*Core).giveUpIdle, "failed and drained", gone),
		},
		open: {
			onOpen:      twice,
			onChunk:     does((*Core).take, "copy it, a new lease; a wrong one: Failed", ending),
			onCommit:    does((*Core).finish, "a new lease; after the last stripe's, if all is there: Committed; a wrong one: Failed", committing, ending, gone),
			onAbort:     does((*Core).aborted, "aborted; after the last stripe's, Drained", ending, draining, gone),
			onRenew:     does((*Core).renew, "a new lease"),
			onLanded:    does((*Core).renew, "count it, a new lease"),
			onSpoilt:    does((*Core).fail, "Failed", ending),
			onWithdrawn: does((*Core).withdraw, "a new lease; it cannot be committed any more"),
			onCancel:    does((*Core).cancel, "Failed, without a word to the owner", ending),
			onDeadline:  does((*Core).expire, "Failed; if the sender said nothing at all: close the session; while copies hold it up: a new lease", ending),
			onClosed:    does((*Core).failSilently, "failed", ending),
			onBroken:    does((*Core).broken, "broken", ending),
			onGone:      never(),
			onShutdown:  does((*Core).fail, "Failed", ending),
		},
		committing: {
			onOpen:      twice,
			onChunk:     does((*Core).failLate, "Failed: it was all sent", ending),
			onCommit:    does((*Core).failLate, "Failed: it was all sent", ending),
			onAbort:     does((*Core).aborted, "aborted; after the last stripe's, Drained", ending, draining),
			onRenew:     nothing("no lease runs: copies end by themselves"),
			onLanded:    does((*Core).landLast, "after the last copy: Committed", gone),
			onSpoilt:    does((*Core).fail, "Failed", ending),
			onWithdrawn: does((*Core).fail, "Failed: it was committed", ending),
			onCancel:    does((*Core).cancel, "Failed, without a word to the owner", ending),
			onDeadline:  never(),
			onClosed:    does((*Core).failSilently, "failed", ending),
			onBroken:    does((*Core).broken, "broken: the sender will never know", ending),
			onGone:      never(),
			onShutdown:  does((*Core).fail, "Failed", ending),
		},
		ending: {
			onOpen:      twice,
			onChunk:     does((*Core).drop, "drop it and grant its bytes again; behind Abort: close the session"),
			onCommit:    does((*Core).drop, "drop it; behind Abort: close the session"),
			onAbort:     does((*Core).acknowledged, "after the last stripe's: Drained", draining, gone),
			onRenew:     nothing("it was on its way"),
			onLanded:    nothing("count it"),
			onSpoilt:    nothing("it is over already"),
			onWithdrawn: nothing("it is over already"),
			onCancel:    nothing("it is over already"),
			onDeadline:  does((*Core).giveUpSession, "close the session: no timer frees the blocks; while copies hold the sender up: a new lease"),
			onClosed:    does((*Core).awaitEnd, "the end of the streams is awaited instead"),
			onBroken:    does((*Core).awaitEnd, "the end of the other streams is awaited instead"),
			onGone:      does((*Core).quiet, "drained after the last copy", draining, gone),
			onShutdown:  nothing("it is over already"),
		},
		draining: {
			onOpen:      twice,
			onChunk:     breach,
			onCommit:    breach,
			onAbort:     breach,
			onRenew:     nothing("it was on its way"),
			onLanded:    does((*Core).drainLast, "after the last copy: Drained", gone),
			onSpoilt:    does((*Core).drainLast, "after the last copy: Drained", gone),
			onWithdrawn: does((*Core).drainLast, "after the last copy: Drained", gone),
			onCancel:    nothing("it is over already"),
			onDeadline:  never(),
			onClosed:    nothing("copies end by themselves"),
			onBroken:    nothing("copies end by themselves"),
			onGone:      nothing("copies end by themselves"),
			onShutdown:  nothing("it is over already"),
		},
	}
}

func (c *Core) step(t *transfer, k kind, in input) {
	from := t.state
	c.table[from][k].do(c, t, in)
	if c.cfg.Observe != nil {
		c.cfg.Observe(Transition{from: from, on: k, to: t.state})
	}
}
