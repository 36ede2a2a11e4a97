package sender

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Event is what happened.
type Event interface{ event() }

type (
	// Open begins a transfer. Accepted or Ended answers it.
	Open struct {
		// Ticket is the receiver's.
		Ticket *kvtransferv1.Ticket
		// Lease is the ticket's.
		Lease time.Duration
		// RequestID is for the receiver's log.
		RequestID string
		// TraceParent is for the receiver's span; empty if there is to be none.
		TraceParent string
		// Encoding is how payloads will be, and EncodedBytes the size of one slice in
		// it; 0 is that of the pages.
		Encoding     kvtransferv1.Encoding
		EncodedBytes int
	}
	// Offer says that slices may be read from now until the transfer's Released.
	Offer struct {
		ID    uint64
		Layer int
		// First is the first block, counted in the reservation; Blocks are the pages
		// of it and of its neighbours. The core keeps the slice.
		First  int
		Blocks []kvcache.BlockID
	}
	// Commit says that everything was offered.
	Commit struct {
		ID      uint64
		Sampled []int32
	}
	// Abort ends a transfer at this side. Unknown ids are ignored.
	Abort struct {
		ID     uint64
		Reason kvtransferv1.AbortReason
	}
	// Received is a message that was read from a stripe, in order.
	Received struct {
		Stripe  int
		Message *kvtransferv1.ReceiverMessage
	}
	// WriterReady asks for one thing to write to a stripe, where all that was asked
	// for before is. It is answered by Write, WriteChunk or nothing; then Wake says
	// when it is worth asking again.
	WriterReady struct{ Stripe int }
	// PagesRead answers a WriteChunk, once: its pages will not be read any more. With
	// Err they could not be, and nothing of the chunk will be sent. The chunk is not
	// valid from then on.
	PagesRead struct {
		Chunk *WriteChunk
		Err   error
	}
	// Tick says that the time of Core.Next has come.
	Tick struct{}
	// StreamLost says that a stream of the session has ended, and so the session.
	StreamLost struct{ Err error }
	// Close aborts every transfer, lets none begin and closes the session after it.
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

// Action is what the driver has to do, in the order given.
type Action interface{ action() }

type (
	// Write puts a message on a stripe.
	Write struct {
		Stripe  int
		Message *kvtransferv1.SenderMessage
	}
	// WriteChunk reads pages, answers PagesRead, and puts the chunk with their bytes
	// on a stripe. It is valid until PagesRead. Where Encoding lends the slices, the chunk
	// goes first, and its pages are read until the receiver has taken them, or Recall.
	WriteChunk struct {
		ID     uint64
		Stripe int
		// Chunk is what it says, and how long its payload is.
		Chunk wire.Chunk
		// Blocks are where its slices are, in the order of Chunk.Runs.
		Blocks []kvcache.BlockID
		// Encoding is how the payload is written.
		Encoding kvtransferv1.Encoding

		of *transfer
	}
	// Recall asks the driver to see to it that no chunk of a transfer that lends its slices
	// is read for longer than it takes to copy it: PagesRead then comes, whatever the
	// receiver does. Nothing of the transfer is to be lent after it.
	Recall struct{ ID uint64 }
	// Wake says that a stripe's writer should ask again.
	Wake struct{ Stripe int }
	// Accepted says that a transfer may go on.
	Accepted struct{ ID uint64 }
	// Released says that none of a transfer's pages will be read any more. It comes
	// before Ended, and where the receiver decides the end, it may come long before.
	Released struct{ ID uint64 }
	// Ended says that a transfer is over and that none of its pages will be read.
	Ended struct {
		ID     uint64
		Result Result
	}
	// CloseStream asks the driver to end all streams of the session. Err is nil if
	// that is because nothing is left to do. No Event need follow.
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

// End is how a transfer ended.
type End int

// The ends. The zero value is none of them.
const (
	_ End = iota
	// EndCommitted: everything arrived.
	EndCommitted
	// EndRefused: the receiver did not let it begin; Result.Refuse.
	EndRefused
	// EndFailed: the receiver ended it; Result.Fail.
	EndFailed
	// EndAborted: this side ended it; Result.Abort, and Err if there is a cause.
	EndAborted
	// EndBroken: the stream ended under it; Result.Err.
	EndBroken
)

// Result says how a transfer ended.
type Result struct {
	End    End
	Refuse kvtransferv1.RefuseReason
	Fail   kvtransferv1.FailReason
	Abort  kvtransferv1.AbortReason
	Detail string
	Err    error
}
