package receiver

import (
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transitions"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// state is the state of a transfer.
type state int

const (
	// reserved: the ticket is issued, and no sender has used it yet.
	reserved state = iota
	// open: accepted. Chunks arrive; some stripes may have committed.
	open
	// committing: every stripe has committed and nothing is missing. Copies are still
	// running.
	committing
	// ending: over for the owner. The blocks are in quarantine until Abort was read on
	// every stripe, or every stream of the session has ended and, if the sender wrote into
	// them itself, it has unmapped them.
	ending
	// draining: no chunk can come any more. Copies are still running.
	draining
	states
	// gone: committed or drained, and forgotten.
	gone = states
)

// kind is an event for a transfer.
type kind int

const (
	onOpen       kind = iota // Open with the right secret
	onChunk                  // a message on a stripe of the transfer's session, as the next three
	onCommit                 //
	onAbort                  //
	onRenew                  //
	onLanded                 // a copy succeeded
	onCopyFailed             // a copy failed
	onWithdrawn              // the sender recalled what a chunk lent
	onCancel                 // the owner cancelled
	onDeadline               // the transfer's deadline passed
	onClosed                 // this side ends the session
	onBroken                 // a stream of the session ended
	onGone                   // all streams of the session ended, and its mapping
	onShutdown               // the receiver shuts down
	kinds
)

// input is an event's data for a step.
type input struct {
	stream   *stream
	encoding kvtransferv1.Encoding
	chunk    *wire.Chunk
	commit   *kvtransferv1.Commit
	abort    kvtransferv1.AbortReason
	reason   kvtransferv1.FailReason
	detail   string
}

type (
	step  = func(*Core, *transfer, input)
	cell  = transitions.Cell[step, state]
	cells = transitions.Table[step, state, kind]
)

func does(do step, what string, to ...state) cell { return cell{Do: do, What: what, To: to} }

// nothing is a cell whose event may occur and changes nothing.
func nothing(why string) cell { return does(func(*Core, *transfer, input) {}, why) }

// never is a cell whose event cannot occur.
func never() cell { return nothing(transitions.Never) }

// table is the state machine of one transfer.
func table() cells {
	twice := does((*Core).refuseTwice, "send Refuse: a ticket can be used only once")
	breach := does((*Core).breach, "close the session: Abort was the last message")
	return cells{
		reserved: {
			onOpen:       does((*Core).accept, "send Accept", open),
			onChunk:      never(),
			onCommit:     never(),
			onAbort:      never(),
			onRenew:      never(),
			onLanded:     never(),
			onCopyFailed: never(),
			onWithdrawn:  never(),
			onCancel:     does((*Core).drain, "tell drained", gone),
			onDeadline:   does((*Core).lapse, "tell failed, then drained", gone),
			onClosed:     never(),
			onBroken:     never(),
			onGone:       never(),
			onShutdown:   does((*Core).giveUpIdle, "tell failed, then drained", gone),
		},
		open: {
			onOpen:       twice,
			onChunk:      does((*Core).take, "copy it and renew the lease; if it is wrong, send Failed and tell failed", ending),
			onCommit:     does((*Core).finish, "renew the lease; after the last stripe's and the last copy, send Committed and tell committed; if it is wrong or a slice is missing, send Failed and tell failed", committing, ending, gone),
			onAbort:      does((*Core).aborted, "tell aborted; after the last stripe's and the last copy, send Drained and tell drained", ending, draining, gone),
			onRenew:      does((*Core).renew, "renew the lease, for as long as a transfer may go without bytes"),
			onLanded:     does((*Core).progress, "count it and renew the lease"),
			onCopyFailed: does((*Core).fail, "send Failed and tell failed", ending),
			onWithdrawn:  does((*Core).withdraw, "renew the lease; the transfer can no longer be committed"),
			onCancel:     does((*Core).cancel, "send Failed and tell nothing", ending),
			onDeadline:   does((*Core).expire, "send Failed and tell failed; if the sender sent nothing at all, close the session; while a copy blocks the sender, only renew the lease", ending),
			onClosed:     does((*Core).failSilently, "tell failed", ending),
			onBroken:     does((*Core).broken, "tell broken", ending),
			onGone:       never(),
			onShutdown:   does((*Core).fail, "send Failed and tell failed", ending),
		},
		committing: {
			onOpen:       twice,
			onChunk:      does((*Core).failLate, "send Failed and tell failed: it came after the last Commit", ending),
			onCommit:     does((*Core).failLate, "send Failed and tell failed: it came after the last Commit", ending),
			onAbort:      does((*Core).aborted, "tell aborted; after the last stripe's and the last copy, send Drained and tell drained", ending, draining),
			onRenew:      nothing("nothing: no lease runs, because copies end by themselves"),
			onLanded:     does((*Core).landLast, "after the last copy, send Committed and tell committed", gone),
			onCopyFailed: does((*Core).fail, "send Failed and tell failed", ending),
			onWithdrawn:  does((*Core).fail, "send Failed and tell failed: slices were committed after their pages were taken back", ending),
			onCancel:     does((*Core).cancel, "send Failed and tell nothing", ending),
			onDeadline:   never(),
			onClosed:     does((*Core).failSilently, "tell failed", ending),
			onBroken:     does((*Core).broken, "tell broken: the sender can no longer learn of the commit", ending),
			onGone:       never(),
			onShutdown:   does((*Core).fail, "send Failed and tell failed", ending),
		},
		ending: {
			onOpen:       twice,
			onChunk:      does((*Core).drop, "drop it and grant its bytes again; if it follows Abort, close the session"),
			onCommit:     does((*Core).drop, "drop it; if it follows Abort, close the session"),
			onAbort:      does((*Core).acknowledged, "after the last stripe's and the last copy, send Drained and tell drained; a second one on a stripe: close the session", draining, gone),
			onRenew:      nothing("nothing: it was already on its way"),
			onLanded:     nothing("count it"),
			onCopyFailed: nothing("nothing: the transfer is over"),
			onWithdrawn:  nothing("nothing: the transfer is over"),
			onCancel:     nothing("nothing: the transfer is over"),
			onDeadline:   does((*Core).giveUpSession, "close the session, because no timer frees the blocks; while a copy blocks the sender, only renew the lease"),
			onClosed:     does((*Core).awaitEnd, "stop the lease: the end of the streams, and of the mapping, will free the blocks"),
			onBroken:     does((*Core).awaitEnd, "stop the lease: the end of the other streams, and of the mapping, will free the blocks"),
			onGone:       does((*Core).quiet, "after the last copy, tell drained", draining, gone),
			onShutdown:   nothing("nothing: the transfer is over"),
		},
		draining: {
			onOpen:       twice,
			onChunk:      breach,
			onCommit:     breach,
			onAbort:      breach,
			onRenew:      nothing("nothing: it was already on its way"),
			onLanded:     does((*Core).drainLast, "after the last copy, send Drained and tell drained", gone),
			onCopyFailed: does((*Core).drainLast, "after the last copy, send Drained and tell drained", gone),
			onWithdrawn:  does((*Core).drainLast, "after the last copy, send Drained and tell drained", gone),
			onCancel:     nothing("nothing: the transfer is over"),
			onDeadline:   never(),
			onClosed:     nothing("nothing: copies end by themselves"),
			onBroken:     nothing("nothing: copies end by themselves"),
			onGone:       nothing("nothing: copies end by themselves"),
			onShutdown:   nothing("nothing: the transfer is over"),
		},
	}
}

// shared is the table for all cores: a worker may have thousands.
var shared = table()

func (c *Core) step(t *transfer, k kind, in input) {
	from := t.state
	c.table[from][k].Do(c, t, in)
	if c.cfg.Observe != nil {
		c.cfg.Observe(c.table.Transition(from, k, t.state))
	}
}
