package sender

import kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

// state is the state of a transfer. One that is forgotten is not in the table of
// transfers any more.
type state int

const (
	// waiting: Open is not on the stream yet.
	waiting state = iota
	// opening: Open was sent, an answer is due.
	opening
	// open: chunks may be sent.
	open
	// committing: Commit was sent, an answer is due.
	committing
	// aborting: Abort will be or was sent; after that, Drained is due.
	aborting
	// reading: the receiver knows that it is over; pages are still read.
	reading
	states
)

// kind is what happens to a transfer.
type kind int

const (
	onOpenSent   kind = iota // the writer took the message, as in the next two
	onCommitSent             //
	onAbortSent              //
	onAccept                 // read from the stream, as are the next four
	onRefuse                 //
	onCommitted              //
	onFailed                 //
	onDrained                //
	onOffer                  // asked for here, as are the next two
	onCommit                 //
	onAbort                  //
	onRead                   // pages were read
	onUnreadable             // pages could not be read
	onDeadline               // its deadline has passed
	onLost                   // the stream has ended
	kinds
)

// input is what a step gets to know of an event.
type input struct {
	refuse *kvtransferv1.Refuse
	failed *kvtransferv1.Failed
	offer  Offer
	commit Commit
	abort  kvtransferv1.AbortReason
	err    error
}

// step is one cell of the table.
type step func(*Core, *transfer, input)

// table is the state machine of one transfer. "nothing" is written out where an
// event may come and changes nothing, and where it cannot come; "breach" ends
// the stream, since the receiver does not keep to the protocol.
func table() [states][kinds]step {
	return [states][kinds]step{
		waiting: {
			onOpenSent:   (*Core).openSent,   // → opening
			onCommitSent: nothing,            // cannot
			onAbortSent:  nothing,            // cannot
			onAccept:     (*Core).breach,     //
			onRefuse:     (*Core).breach,     //
			onCommitted:  (*Core).breach,     //
			onFailed:     (*Core).breach,     //
			onDrained:    (*Core).breach,     //
			onOffer:      (*Core).offer,      // sent after Accept
			onCommit:     (*Core).commit,     // sent after the last chunk
			onAbort:      (*Core).abortQuiet, // → gone: the receiver never heard of it
			onRead:       nothing,            // cannot
			onUnreadable: nothing,            // cannot
			onDeadline:   nothing,            // cannot: the stream's own deadlines run
			onLost:       (*Core).lost,       // → gone
		},
		opening: {
			onOpenSent:   nothing,           // cannot, as the next two
			onCommitSent: nothing,           //
			onAbortSent:  nothing,           //
			onAccept:     (*Core).accepted,  // → open
			onRefuse:     (*Core).refused,   // → gone
			onCommitted:  (*Core).breach,    //
			onFailed:     (*Core).breach,    //
			onDrained:    (*Core).breach,    //
			onOffer:      (*Core).offer,     //
			onCommit:     (*Core).commit,    //
			onAbort:      (*Core).abort,     // → aborting: Accept or Refuse is on its way
			onRead:       nothing,           // cannot, as the next
			onUnreadable: nothing,           //
			onDeadline:   (*Core).unheardOf, // the stream ends
			onLost:       (*Core).lost,      // → gone
		},
		open: {
			onOpenSent:   nothing,            // cannot
			onCommitSent: (*Core).commitSent, // → committing
			onAbortSent:  nothing,            // cannot
			onAccept:     (*Core).breach,     //
			onRefuse:     (*Core).breach,     //
			onCommitted:  (*Core).breach,     //
			onFailed:     (*Core).failed,     // → aborting, to acknowledge
			onDrained:    (*Core).breach,     //
			onOffer:      (*Core).offer,      //
			onCommit:     (*Core).commit,     //
			onAbort:      (*Core).abort,      // → aborting
			onRead:       nothing,            //
			onUnreadable: (*Core).unreadable, // → aborting
			onDeadline:   (*Core).renew,      // nothing was sent for a third of the lease
			onLost:       (*Core).lost,       // → reading or gone
		},
		committing: {
			onOpenSent:   nothing,           // cannot, as the next two
			onCommitSent: nothing,           //
			onAbortSent:  nothing,           //
			onAccept:     (*Core).breach,    //
			onRefuse:     (*Core).breach,    //
			onCommitted:  (*Core).committed, // → gone
			onFailed:     (*Core).failed,    // → aborting, to acknowledge
			onDrained:    (*Core).breach,    //
			onOffer:      nothing,           // Commit was the last word
			onCommit:     nothing,           //
			onAbort:      (*Core).abort,     // → aborting: the receiver decides which came first
			onRead:       nothing,           // cannot, as the next
			onUnreadable: nothing,           //
			onDeadline:   (*Core).unheardOf, // the stream ends
			onLost:       (*Core).lost,      // → gone
		},
		aborting: {
			onOpenSent:   nothing,                // cannot, as the next
			onCommitSent: nothing,                //
			onAbortSent:  (*Core).abortSent,      // an answer is due now
			onAccept:     nothing,                // crossed Abort
			onRefuse:     nothing,                // crossed Abort
			onCommitted:  (*Core).committedFirst, // crossed Abort
			onFailed:     nothing,                // crossed Abort, which acknowledges it
			onDrained:    (*Core).drained,        // → gone
			onOffer:      nothing,                //
			onCommit:     nothing,                //
			onAbort:      nothing,                //
			onRead:       (*Core).settle,         // its pages are free now
			onUnreadable: (*Core).settle,         // its pages are free now
			onDeadline:   (*Core).unheardOf,      // the stream ends
			onLost:       (*Core).lost,           // → reading or gone
		},
		reading: {
			onOpenSent:   nothing,        // cannot: the stream is gone, or Drained was read
			onCommitSent: nothing,        //
			onAbortSent:  nothing,        //
			onAccept:     (*Core).breach, //
			onRefuse:     (*Core).breach, //
			onCommitted:  (*Core).breach, //
			onFailed:     (*Core).breach, //
			onDrained:    (*Core).breach, //
			onOffer:      nothing,        //
			onCommit:     nothing,        //
			onAbort:      nothing,        //
			onRead:       (*Core).forget, // → gone
			onUnreadable: (*Core).forget, // → gone
			onDeadline:   nothing,        // cannot
			onLost:       nothing,        //
		},
	}
}

func nothing(*Core, *transfer, input) {}
