package sender

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Event is an input of the core.
type Event interface{ event() }

type (
	// Open begins a transfer. The core answers with Accepted or Ended.
	Open struct {
		Ticket *kvtransferv1.Ticket
		// Lease of the ticket.
		Lease time.Duration
		// RequestID is for the receiver's log.
		RequestID string
		// TraceParent is for the receiver's span. Empty: not traced.
		TraceParent string
		// Encoding of payloads, and EncodedBytes, its bytes per slice, 0 for that of the
		// pages. ENCODING_SHARED requires that the driver has mapped the receiver's pages.
		Encoding     kvtransferv1.Encoding
		EncodedBytes int
	}
	// Offer makes slices readable until the transfer's Released.
	Offer struct {
		ID    uint64
		Layer int
		// First is the index of the first block in the reservation; Blocks are the pages of
		// it and the following blocks. The core keeps the slice.
		First  int
		Blocks []kvcache.BlockID
	}
	// Commit reports that everything was offered.
	Commit struct {
		ID      uint64
		Sampled []int32
	}
	// Abort ends a transfer from this side. Unknown ids are ignored.
	Abort struct {
		ID     uint64
		Reason kvtransferv1.AbortReason
	}
	// Received is a message read from a stripe, in order.
	Received struct {
		Stripe  int
		Message *kvtransferv1.ReceiverMessage
	}
	// WriterReady asks for the next thing to write to a stripe, after the previous one was
	// written. The core answers with Write, WriteChunk or nothing; in the last case, Wake
	// says when to ask again.
	WriterReady struct{ Stripe int }
	// PagesRead answers a WriteChunk, once: its pages are no longer read. If Err is set,
	// they could not be read and nothing of the chunk will be sent. The chunk is invalid
	// from then on.
	PagesRead struct {
		Chunk *WriteChunk
		Err   error
	}
	// Tick reports that the time of Core.Next has come.
	Tick struct{}
	// StreamLost reports the end of a stream, which ends the session.
	StreamLost struct{ Err error }
	// Close aborts every transfer, refuses new ones, and then closes the session.
	Close struct{}
)

func (Open) event()        {}
func (Offer) event()       {}
func (Commit) event()      {}
func (Abort) event()       {}
func (Received) event()    {}
func (WriterReady) event() {}
func (PagesRead) event()   {}
func (Tick) event()        {}
func (StreamLost) event()  {}
func (Close) event()       {}

// Action is something for the driver to do, in the order given.
type Action interface{ action() }

type (
	// Write puts a message on a stripe.
	Write struct {
		Stripe  int
		Message *kvtransferv1.SenderMessage
	}
	// WriteChunk asks the driver to read pages, to answer with PagesRead, and to put the
	// chunk with their bytes on a stripe. It is valid until PagesRead. With ENCODING_SHARED
	// the bytes go into the receiver's pages, before the chunk is put on the stripe. With
	// ENCODING_LENT the chunk is sent first, and its pages are read until the receiver has
	// copied them, or until Recall.
	WriteChunk struct {
		ID     uint64
		Stripe int
		// Chunk has the header fields and the payload's length.
		Chunk wire.Chunk
		// Blocks are the pages of its slices, in the order of Chunk.Runs.
		Blocks []kvcache.BlockID
		// Encoding of the payload.
		Encoding kvtransferv1.Encoding

		of *transfer
	}
	// Recall asks the driver to take back a transfer's loans: PagesRead must come within
	// the time of one copy, whatever the receiver does. Nothing of the transfer may be lent
	// afterwards.
	Recall struct{ ID uint64 }
	// Wake tells a stripe's writer to ask again.
	Wake struct{ Stripe int }
	// Accepted reports that a transfer may proceed. Pages, with ENCODING_SHARED, are the
	// receiver's pages to write: those of its blocks that are not held, in order.
	Accepted struct {
		ID    uint64
		Pages []uint32
	}
	// Released reports that none of a transfer's pages will be read any more. It comes
	// before Ended, possibly long before if the receiver decides the end.
	Released struct{ ID uint64 }
	// Ended reports that a transfer is over and none of its pages will be read.
	Ended struct {
		ID     uint64
		Result Result
		// Pace is that of the session while the transfer was open.
		Pace Pace
	}
	// CloseStream asks the driver to end all streams of the session. Err is nil if the
	// session was idle or closed. No event need follow.
	CloseStream struct{ Err error }
)

func (Write) action()       {}
func (*WriteChunk) action() {}
func (Recall) action()      {}
func (Wake) action()        {}
func (Accepted) action()    {}
func (Released) action()    {}
func (Ended) action()       {}
func (CloseStream) action() {}

// End is the outcome of a transfer.
type End int

// Outcomes. The zero value is none of them.
const (
	_ End = iota
	// EndCommitted: everything arrived.
	EndCommitted
	// EndRefused: the receiver refused it; see Result.Refuse.
	EndRefused
	// EndFailed: the receiver ended it; see Result.Fail.
	EndFailed
	// EndAborted: this side ended it; see Result.Abort and, if there is a cause, Err.
	EndAborted
	// EndBroken: the stream ended; see Result.Err.
	EndBroken
)

// Result is a transfer's outcome with its reason.
type Result struct {
	End    End
	Refuse kvtransferv1.RefuseReason
	Fail   kvtransferv1.FailReason
	Abort  kvtransferv1.AbortReason
	Detail string
	Err    error
}
