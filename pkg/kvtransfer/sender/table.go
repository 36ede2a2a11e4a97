package sender

import (
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/transitions"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// state is the state of a transfer.
type state int

const (
	// waiting: Open is not written yet.
	waiting state = iota
	// opening: Open was sent. Waits for the answer.
	opening
	// open: chunks may be sent. Commit may have been sent over some stripes.
	open
	// committing: Commit was sent on every stripe. Waits for the answer.
	committing
	// aborting: ended early. Sends Abort on every stripe, then waits for Drained.
	aborting
	// reading: the receiver owes nothing, but pages are still being read.
	reading
	states
	// over: forgotten.
	over = states
)

// kind is an event for a transfer.
type kind int

const (
	onOpenSent   kind = iota // a writer took the message, as for the next two
	onCommitSent             //
	onAbortSent              //
	onAccept                 // read from stripe 0, as are the next four
	onRefuse                 //
	onCommitted              //
	onFailed                 //
	onDrained                //
	onOffer                  // from the owner, as are the next two
	onCommit                 //
	onAbort                  //
	onRead                   // a chunk's pages were read
	onUnreadable             // a chunk's pages could not be read
	onDeadline               // the transfer's deadline passed
	onLost                   // a stream of the session ended
	kinds
)

// input is an event's data for a step.
type input struct {
	stripe int
	accept *kvtransferv1.Accept
	refuse *kvtransferv1.Refuse
	failed *kvtransferv1.Failed
	offer  Offer
	commit Commit
	abort  kvtransferv1.AbortReason
	err    error
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

// table is the state machine of one transfer. A protocol violation by the receiver ends the
// session.
func table() cells {
	breach := does((*Core).breach, "close the session: the sender did not ask for it", over, reading)
	silence := does((*Core).unheardOf, "close the session: no answer in time", over, reading)
	lost := does((*Core).lost, "if no end is known, tell broken", over, reading)
	return cells{
		waiting: {
			onOpenSent:   does((*Core).openSent, "wait for the answer", opening),
			onCommitSent: never(),
			onAbortSent:  never(),
			onAccept:     breach,
			onRefuse:     breach,
			onCommitted:  breach,
			onFailed:     breach,
			onDrained:    breach,
			onOffer:      does((*Core).offer, "keep it until Accept; if it is wrong, tell aborted", over),
			onCommit:     does((*Core).commit, "keep it until the last chunk"),
			onAbort:      does((*Core).abortQuiet, "tell aborted: the receiver never heard of it", over),
			onRead:       never(),
			onUnreadable: never(),
			onDeadline:   never(),
			onLost:       lost,
		},
		opening: {
			onOpenSent:   never(),
			onCommitSent: never(),
			onAbortSent:  never(),
			onAccept:     does((*Core).accept, "tell accepted; chunks may be sent; if it does not rightly say which shared pages to write, close the session", open, over, reading),
			onRefuse:     does((*Core).refuse, "tell refused", over),
			onCommitted:  breach,
			onFailed:     breach,
			onDrained:    breach,
			onOffer:      does((*Core).offer, "keep it until Accept; if it is wrong, tell aborted and send Abort over the lead", aborting),
			onCommit:     does((*Core).commit, "keep it until the last chunk"),
			onAbort:      does((*Core).abort, "tell aborted and send Abort over the lead", aborting),
			onRead:       never(),
			onUnreadable: never(),
			onDeadline:   silence,
			onLost:       lost,
		},
		open: {
			onOpenSent:   never(),
			onCommitSent: does((*Core).commitSent, "after the last stripe's, wait for the answer", committing),
			onAbortSent:  never(),
			onAccept:     breach,
			onRefuse:     breach,
			onCommitted:  breach,
			onFailed:     does((*Core).failed, "tell failed and send Abort over every stripe", aborting),
			onDrained:    breach,
			onOffer:      does((*Core).offer, "queue it; if it is wrong, tell aborted and send Abort over every stripe", aborting),
			onCommit:     does((*Core).commit, "send Commit over every stripe, after the last chunk"),
			onAbort:      does((*Core).abort, "tell aborted and send Abort over every stripe", aborting),
			onRead:       nothing("the chunk's pages are free"),
			onUnreadable: does((*Core).unreadable, "tell aborted and send Abort over every stripe", aborting),
			onDeadline:   does((*Core).renew, "send Renew: nothing was sent for a third of the lease"),
			onLost:       lost,
		},
		committing: {
			onOpenSent:   never(),
			onCommitSent: never(),
			onAbortSent:  never(),
			onAccept:     breach,
			onRefuse:     breach,
			onCommitted:  does((*Core).committed, "tell committed", over, reading),
			onFailed:     does((*Core).failed, "tell failed and send Abort over every stripe", aborting),
			onDrained:    breach,
			onOffer:      nothing("nothing: Commit was the last message"),
			onCommit:     nothing("nothing: Commit was the last message"),
			onAbort:      does((*Core).abort, "send Abort over every stripe: the receiver decides which came first", aborting),
			onRead:       nothing("the chunk's pages are free"),
			onUnreadable: does((*Core).unreadable, "tell aborted and send Abort over every stripe", aborting),
			onDeadline:   silence,
			onLost:       lost,
		},
		aborting: {
			onOpenSent:   never(),
			onCommitSent: never(),
			onAbortSent:  does((*Core).abortSent, "wait for the answer"),
			onAccept:     does((*Core).acceptLate, "it crossed Abort: send Abort over the other stripes too; a second one: close the session", over, reading),
			onRefuse:     does((*Core).refuseLate, "nothing: it crossed Abort; a second one: close the session", over, reading),
			onCommitted:  does((*Core).committedFirst, "it crossed Abort: tell committed; if Commit was not sent over every stripe, close the session", over, reading),
			onFailed:     nothing("nothing: it crossed Abort, which acknowledges it"),
			onDrained:    does((*Core).drained, "if no end is known, tell aborted; if Abort was not sent, close the session", over, reading),
			onOffer:      nothing("nothing: the transfer is over"),
			onCommit:     nothing("nothing: the transfer is over"),
			onAbort:      nothing("nothing: the transfer is over"),
			onRead:       does((*Core).tellEnd, "after the last page, tell the end"),
			onUnreadable: does((*Core).tellEnd, "after the last page, tell the end"),
			onDeadline:   silence,
			onLost:       lost,
		},
		reading: {
			onOpenSent:   never(),
			onCommitSent: never(),
			onAbortSent:  never(),
			onAccept:     breach,
			onRefuse:     breach,
			onCommitted:  breach,
			onFailed:     breach,
			onDrained:    breach,
			onOffer:      nothing("nothing: the transfer is over"),
			onCommit:     nothing("nothing: the transfer is over"),
			onAbort:      nothing("nothing: the transfer is over"),
			onRead:       does((*Core).readLast, "after the last page, tell the end", over),
			onUnreadable: does((*Core).readLast, "after the last page, tell the end", over),
			onDeadline:   never(),
			onLost:       nothing("nothing: the sender expects nothing of the receiver"),
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
