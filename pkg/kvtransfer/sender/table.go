package sender

import kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

// state is the state of a transfer.
type state int

const (
	// waiting: Open is not on the stream yet.
	waiting state = iota
	// opening: Open was sent. The sender waits for the answer.
	opening
	// open: chunks may be sent. Commit may have been sent over some stripes.
	open
	// committing: Commit was sent over every stripe. The sender waits for the answer.
	committing
	// aborting: the transfer ended early. The sender sends Abort over every stripe, then
	// waits for Drained.
	aborting
	// reading: the sender expects nothing of the receiver, but pages are still being read.
	reading
	states
	// over: it is no longer in the table of transfers.
	over = states
)

// kind is what happens to a transfer.
type kind int

const (
	onOpenSent   kind = iota // a writer took the message, as in the next two
	onCommitSent             //
	onAbortSent              //
	onAccept                 // read from the first stripe, as are the next four
	onRefuse                 //
	onCommitted              //
	onFailed                 //
	onDrained                //
	onOffer                  // asked for here, as are the next two
	onCommit                 //
	onAbort                  //
	onRead                   // a chunk's pages were read
	onUnreadable             // a chunk's pages could not be read
	onDeadline               // its deadline has passed
	onLost                   // a stream of the session has ended
	kinds
)

// input is what a step gets to know of an event.
type input struct {
	stripe int
	refuse *kvtransferv1.Refuse
	failed *kvtransferv1.Failed
	offer  Offer
	commit Commit
	abort  kvtransferv1.AbortReason
	err    error
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

// table is the state machine of one transfer. A breach ends the session, since the
// receiver does not keep to the protocol.
func table() [states][kinds]cell {
	breach := does((*Core).breach, "close the session: the sender did not ask for it", over, reading)
	silence := does((*Core).unheardOf, "close the session: no answer in time", over, reading)
	lost := does((*Core).lost, "if no end is known, tell broken", over, reading)
	return [states][kinds]cell{
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
			onAccept:     does((*Core).accept, "tell accepted; chunks may be sent", open),
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

func (c *Core) step(t *transfer, k kind, in input) {
	from := t.state
	c.table[from][k].do(c, t, in)
	if c.cfg.Observe != nil {
		c.cfg.Observe(Transition{from: from, on: k, to: t.state})
	}
}
