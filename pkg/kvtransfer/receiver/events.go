package receiver

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// StreamID names a stream of this receiver. The driver draws it; it is never
// used twice.
type StreamID uint64

// Event is what happened.
type Event interface{ event() }

type (
	// Reserve makes a reservation. It is answered by Rejected or, in silence, done.
	Reserve struct {
		// ID and Secret are the ticket's, drawn by the driver; ID is never used twice.
		ID, Secret uint64
		// RequestID is for people.
		RequestID string
		// Blocks are those that the sender counts, in the order of the sequence. The
		// core keeps the slice and does not change it.
		Blocks []kvcache.BlockID
		// Held is the number of leading blocks that must not be sent.
		Held int
	}
	// Cancel ends a reservation for its owner. Unknown ids are ignored.
	Cancel struct{ ID uint64 }
	// StreamOpened says that a sender joined.
	StreamOpened struct{ Stream StreamID }
	// Received is a message that was read from a stream. Messages of one stream
	// come in the order in which they were read.
	Received struct {
		Stream StreamID
		// Message is anything but a chunk. Nil: it is Chunk, which the core does not keep.
		Message *kvtransferv1.SenderMessage
		Chunk   *wire.Chunk
	}
	// Written answers Write: the copy has ended, however it did.
	Written struct {
		Stream StreamID
		ID     uint64
		// Bytes is the size of the payload.
		Bytes int
		// Outcome says how it ended.
		Outcome Outcome
		// Detail is for people, where the outcome is not Landed.
		Detail string
	}
	// StreamClosed says that nothing more will be read from a stream.
	StreamClosed struct{ Stream StreamID }
	// Tick says that the time of Core.Next has come.
	Tick struct{}
	// Shutdown ends every transfer and lets none begin.
	Shutdown struct{}
	// CloseStreams ends every stream: the time for a gentle shutdown is over.
	CloseStreams struct{}
)

func (Reserve) event()      {}
func (Cancel) event()       {}
func (StreamOpened) event() {}
func (Received) event()     {}
func (Written) event()      {}
func (StreamClosed) event() {}
func (Tick) event()         {}
func (Shutdown) event()     {}
func (CloseStreams) event() {}

// Outcome is how a Write ended.
type Outcome int

// The outcomes of a Write.
const (
	// Landed: the payload is in its pages.
	Landed Outcome = iota
	// Corrupt: the chunk is not what its checksum says.
	Corrupt
	// Undecodable: the payload is nothing in its encoding.
	Undecodable
	// Unwritable: the pages did not take it.
	Unwritable
	// Withdrawn: what was lent is not any more, since the sender gives the transfer up and
	// its Abort is on the way, or never was.
	Withdrawn
)

// Action is what the driver has to do, in the order given.
type Action interface{ action() }

type (
	// Rejected answers Reserve: nothing was reserved.
	Rejected struct {
		// Closed: the receiver shuts down. Otherwise it is full.
		Closed bool
	}
	// Send gives a message to a stream.
	Send struct {
		Stream  StreamID
		Message *kvtransferv1.ReceiverMessage
	}
	// Write asks to check the chunk that was received and to copy its payload into
	// pages. Written answers it. Until then the blocks are not free. Neither it nor
	// its Blocks are valid after the next message of the stream.
	Write struct {
		Stream StreamID
		ID     uint64
		Layer  int
		Blocks []kvcache.BlockID
		// Encoding is how the payload is written.
		Encoding kvtransferv1.Encoding
		// Bytes is the size of the payload.
		Bytes int
	}
	// Grant adds to the credit of a stream's sender. It is not valid after the next
	// call of the core.
	Grant struct {
		Stream StreamID
		Bytes  int
	}
	// Committed tells the owner that everything is in its pages.
	Committed struct {
		ID uint64
		// Sender is the worker id that its SenderHello says.
		Sender string
		// Sampled are the tokens that the sender sampled, in order.
		Sampled []int32
		// Bytes is the payload that was moved.
		Bytes uint64
		// Approximate: the pages hold nearly what the sender's did.
		Approximate bool
	}
	// Failed tells the owner that this side ended the transfer.
	Failed struct {
		ID     uint64
		Reason kvtransferv1.FailReason
		Detail string
	}
	// Aborted tells the owner that the sender ended the transfer.
	Aborted struct {
		ID     uint64
		Reason kvtransferv1.AbortReason
	}
	// Broken tells the owner that a stream of its session ended under the transfer.
	Broken struct{ ID uint64 }
	// Drained tells the owner that nothing will land any more. It follows Failed,
	// Aborted, Broken or the owner's own Cancel.
	Drained struct{ ID uint64 }
	// CloseStream asks the driver to end a stream and to answer with StreamClosed.
	CloseStream struct {
		Stream StreamID
		Cause  Cause
		Detail string
	}
)

func (Rejected) action()    {}
func (Send) action()        {}
func (*Write) action()      {}
func (*Grant) action()      {}
func (Committed) action()   {}
func (Failed) action()      {}
func (Aborted) action()     {}
func (Broken) action()      {}
func (Drained) action()     {}
func (CloseStream) action() {}

// Cause says why the receiver ends a stream.
type Cause int

// The causes.
const (
	// Breach: the sender broke the protocol.
	Breach Cause = iota
	// Silence: the sender did not say what it had to within the lease.
	Silence
	// Closing: the receiver shuts down.
	Closing
	// Full: there are too many streams.
	Full
	// Version: no version of the protocol is spoken by both.
	Version
	// SessionOver: another stream of the session has ended.
	SessionOver
)

// reason is what transfers on a stream that ends for this cause fail with.
func (c Cause) reason() kvtransferv1.FailReason {
	switch c {
	case Silence:
		return kvtransferv1.FailReason_FAIL_REASON_EXPIRED
	case Closing, Full:
		return kvtransferv1.FailReason_FAIL_REASON_SHUTDOWN
	default:
		return kvtransferv1.FailReason_FAIL_REASON_PROTOCOL
	}
}
