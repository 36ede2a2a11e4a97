package receiver

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// StreamID identifies a stream. The driver chooses it and never reuses it.
type StreamID uint64

// Event is an input of the core.
type Event interface{ event() }

type (
	// Reserve creates a reservation. On failure the core answers with Rejected.
	Reserve struct {
		// ID and Secret go into the ticket. The driver draws them and never reuses an ID.
		ID, Secret uint64
		// Blocks of the sequence, in order. The core keeps the slice and does not change
		// it.
		Blocks []kvcache.BlockID
		// Held is the number of leading blocks that are not sent.
		Held int
		// Sender is the only worker that may open the transfer. Empty: any that is not
		// Verified.
		Sender string
		// Holders are on whose behalf the blocks are held, and Charge is how many blocks
		// count against Config.HolderBlocks of each.
		Holders []string
		Charge  int
	}
	// Cancel ends a reservation for its owner. Unknown ids are ignored.
	Cancel struct{ ID uint64 }
	// StreamOpened reports a new stream. Verified: the driver knows its peer by a certificate,
	// and passes on no SenderHello in another's name. Such a sender may open only the
	// reservations that name it.
	StreamOpened struct {
		Stream   StreamID
		Verified bool
	}
	// Received is a message read from a stream. Messages of one stream must be in order.
	Received struct {
		Stream StreamID
		// Message is any message but a chunk. If nil, Chunk is set, which the core does not
		// keep.
		Message *kvtransferv1.SenderMessage
		Chunk   *wire.Chunk
	}
	// Written answers Write: the copy has ended, in success or failure.
	Written struct {
		Stream StreamID
		ID     uint64
		// Bytes of payload.
		Bytes   int
		Outcome Outcome
		// Detail is a human-readable error, unless Outcome is Landed.
		Detail string
	}
	// StreamClosed reports that nothing more will be read from a stream.
	StreamClosed struct{ Stream StreamID }
	// Map asks whether the sender of a stream's session may map the pages. ID and Secret are
	// those of a ticket that it could open, or has open. The core answers with MayMap or MayNotMap.
	Map struct {
		Stream     StreamID
		ID, Secret uint64
	}
	// Unmapped follows MayMap, once: the sender has the pages no longer, by its word or
	// because its process has ended.
	Unmapped struct{ Stream StreamID }
	// Tick reports that the time of Core.Next has come.
	Tick struct{}
	// Shutdown ends every transfer and refuses new ones.
	Shutdown struct{}
	// CloseStreams ends every stream, at the end of the grace period of a shutdown.
	CloseStreams struct{}
)

func (Reserve) event()      {}
func (Cancel) event()       {}
func (StreamOpened) event() {}
func (Received) event()     {}
func (Written) event()      {}
func (StreamClosed) event() {}
func (Map) event()          {}
func (Unmapped) event()     {}
func (Tick) event()         {}
func (Shutdown) event()     {}
func (CloseStreams) event() {}

// Outcome is how a Write ended.
type Outcome int

// Outcomes of a Write.
const (
	// Landed: the payload is in the pages.
	Landed Outcome = iota
	// Corrupt: the checksum does not match.
	Corrupt
	// Undecodable: the payload is invalid in its encoding.
	Undecodable
	// Unwritable: the pages could not be written.
	Unwritable
	// Withdrawn: the loan was recalled because the sender is giving up the transfer (its
	// Abort follows), or never existed.
	Withdrawn
)

// Action is something for the driver to do, in the order given.
type Action interface{ action() }

type (
	// Rejected answers Reserve: nothing was reserved.
	Rejected struct {
		// Closed: the receiver is shutting down. Holder: this one has its share. Otherwise
		// the table is full.
		Closed bool
		Holder string
	}
	// Send puts a message on a stream.
	Send struct {
		Stream  StreamID
		Message *kvtransferv1.ReceiverMessage
	}
	// MayMap answers Map: the sender may be given the pages.
	MayMap struct{ Stream StreamID }
	// MayNotMap answers Map. Why is for people.
	MayNotMap struct {
		Stream StreamID
		Why    string
	}
	// Write asks the driver to verify the received chunk and copy its payload into pages,
	// unless the sender wrote it there, and to answer with Written. Until then the blocks are
	// not free. Write and its Blocks are valid until the next message of the stream.
	Write struct {
		Stream StreamID
		ID     uint64
		Layer  int
		Blocks []kvcache.BlockID
		// Encoding of the payload.
		Encoding kvtransferv1.Encoding
		// Bytes of payload.
		Bytes int
	}
	// Grant adds credit for a stream's sender. It is valid until the next call of the core.
	Grant struct {
		Stream StreamID
		Bytes  int
	}
	// Committed tells the owner that the KV is complete.
	Committed struct {
		ID uint64
		// Sender is the sender's worker id.
		Sender string
		// Sampled is the tokens that the sender sampled, in order.
		Sampled []int32
		// Bytes of payload moved.
		Bytes uint64
		// Approximate is set if the encoding was lossy.
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
	// Broken tells the owner that a stream of the session ended during the transfer.
	Broken struct{ ID uint64 }
	// Drained tells the owner that nothing can be written any more. It follows Failed,
	// Aborted, Broken or the owner's Cancel.
	Drained struct{ ID uint64 }
	// CloseStream asks the driver to end a stream and then to send StreamClosed.
	CloseStream struct {
		Stream StreamID
		Cause  Cause
		Detail string
	}
)

func (Rejected) action()    {}
func (Send) action()        {}
func (MayMap) action()      {}
func (MayNotMap) action()   {}
func (*Write) action()      {}
func (*Grant) action()      {}
func (Committed) action()   {}
func (Failed) action()      {}
func (Aborted) action()     {}
func (Broken) action()      {}
func (Drained) action()     {}
func (CloseStream) action() {}

// Cause is why the receiver ends a stream.
type Cause int

// Causes.
const (
	// Breach: the sender violated the protocol.
	Breach Cause = iota
	// Silence: an expected message did not come within the lease.
	Silence
	// Closing: the receiver is shutting down.
	Closing
	// Full: there are too many streams.
	Full
	// Version: the two sides have no protocol version in common.
	Version
	// SessionOver: another stream of the session ended.
	SessionOver
)

// reason is the FailReason of transfers on a stream that ends for this cause.
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
