package receiver

import (
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// state is the state of a transfer. One that is committed or drained is not in
// the table of transfers any more.
type state int

const (
	// reserved: the ticket is out, nobody came with it.
	reserved state = iota
	// open: accepted, chunks arrive.
	open
	// committing: Commit was read and is right; copies are under way.
	committing
	// ending: Failed was sent, or the stream is being closed. The blocks are in
	// quarantine until Abort is read or the stream is gone.
	ending
	// draining: no chunk can come any more; copies are under way.
	draining
	states
)

// kind is what happens to a transfer.
type kind int

const (
	onOpen     kind = iota // Open with the right secret
	onChunk                // Chunk on the transfer's stream, as are the next three
	onCommit               //
	onAbort                //
	onRenew                //
	onLanded               // a copy has ended well
	onSpoilt               // a copy has ended badly
	onCancel               // the owner does not want it any more
	onDeadline             // its deadline has passed
	onGone                 // its stream has ended
	onShutdown             // the receiver shuts down
	kinds
)

// input is what a step gets to know of an event.
type input struct {
	stream *stream
	chunk  *wire.Chunk
	commit *kvtransferv1.Commit
	abort  kvtransferv1.AbortReason
	reason kvtransferv1.FailReason
	detail string
}

// step is one cell of the table.
type step func(*Core, *transfer, input)

// table is the state machine of one transfer. "nothing" is written out where an
// event may come and changes nothing, and where it cannot come.
func table() [states][kinds]step {
	return [states][kinds]step{
		reserved: {
			onOpen:     (*Core).accept,     // → open
			onChunk:    nothing,            // cannot: it has no stream, and so for the next five
			onCommit:   nothing,            //
			onAbort:    nothing,            //
			onRenew:    nothing,            //
			onLanded:   nothing,            //
			onSpoilt:   nothing,            //
			onCancel:   (*Core).drain,      // → gone: Drained
			onDeadline: (*Core).lapse,      // → gone: Failed, Drained
			onGone:     nothing,            // cannot
			onShutdown: (*Core).giveUpIdle, // → gone: Failed, Drained
		},
		open: {
			onOpen:     (*Core).refuseTwice, // the ticket serves once
			onChunk:    (*Core).take,        // Write; a wrong one → ending
			onCommit:   (*Core).finish,      // → gone: Committed; or committing; a wrong one → ending
			onAbort:    (*Core).aborted,     // → draining or gone: Aborted, Drained
			onRenew:    (*Core).renew,       // a new lease
			onLanded:   nothing,             //
			onSpoilt:   (*Core).fail,        // → ending
			onCancel:   (*Core).cancel,      // → ending, without a word to the owner
			onDeadline: (*Core).expire,      // → ending
			onGone:     (*Core).broken,      // → draining or gone: Broken, Drained
			onShutdown: (*Core).fail,        // → ending
		},
		committing: {
			onOpen:     (*Core).refuseTwice,   //
			onChunk:    (*Core).failLateChunk, // → ending: it was all sent
			onCommit:   (*Core).failLateChunk, // → ending
			onAbort:    (*Core).aborted,       // → draining: Aborted, Drained
			onRenew:    nothing,               // copies end by themselves: no lease runs
			onLanded:   (*Core).landLast,      // → gone: Committed, after the last copy
			onSpoilt:   (*Core).fail,          // → ending
			onCancel:   (*Core).cancel,        // → ending
			onDeadline: nothing,               // cannot
			onGone:     (*Core).broken,        // → draining: the sender will never know
			onShutdown: (*Core).fail,          // → ending
		},
		ending: {
			onOpen:     (*Core).refuseTwice,  //
			onChunk:    nothing,              // was on its way; its bytes are granted again
			onCommit:   nothing,              // was on its way
			onAbort:    (*Core).acknowledged, // → draining or gone: Drained
			onRenew:    nothing,              // was on its way
			onLanded:   nothing,              //
			onSpoilt:   nothing,              //
			onCancel:   nothing,              // it is over already
			onDeadline: (*Core).giveUpStream, // no Abort came: only the stream's end is left
			onGone:     (*Core).acknowledged, // → draining or gone: Drained
			onShutdown: nothing,              //
		},
		draining: {
			onOpen:     (*Core).refuseTwice, //
			onChunk:    (*Core).breach,      // Abort was the last message
			onCommit:   (*Core).breach,      //
			onAbort:    (*Core).breach,      //
			onRenew:    nothing,             //
			onLanded:   (*Core).drainLast,   // → gone: Drained, after the last copy
			onSpoilt:   (*Core).drainLast,   // → gone: Drained, after the last copy
			onCancel:   nothing,             //
			onDeadline: nothing,             // cannot
			onGone:     nothing,             // copies end by themselves
			onShutdown: nothing,             //
		},
	}
}

func nothing(*Core, *transfer, input) {}
