package wire

import (
	"errors"

	"google.golang.org/grpc/mem"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// ErrCorrupt means that a chunk does not match its checksum.
var ErrCorrupt = errors.New("a chunk's CRC-32C does not match")

// ErrUndecodable means that a chunk matches its checksum but is invalid in its coding.
var ErrUndecodable = errors.New("a chunk does not match its encoding")

// Chunk is a Chunk message without its payload.
type Chunk struct {
	TransferID      uint64
	Sequence, Layer uint32
	// Runs are the blocks of the payload's slices, as indexes into the reservation.
	Runs []Run
	// PayloadBytes is the size of the payload, or of the slices lent or written.
	PayloadBytes int
	// Loan is the id under which the slices are lent. 0: not lent.
	Loan uint64
	// Written: there is no payload, because the sender wrote the slices into the receiver's
	// pages.
	Written bool
}

// Run is a range of consecutive blocks.
type Run struct{ First, Blocks uint32 }

// Coding encodes slices in payloads. A nil Coding copies them unchanged. It is safe for
// concurrent use.
type Coding interface {
	// EncodedBytes is the encoded size of one slice.
	EncodedBytes() int
	// Encode encodes the slice src of a page into EncodedBytes of dst.
	Encode(dst, src []byte)
	// Decode decodes EncodedBytes of src into the slice dst of a page. src is untrusted.
	Decode(dst, src []byte) error
}

// Views gives the memory of slices, nil for one that does not exist.
type Views interface {
	View(layer int, block kvcache.BlockID) []byte
}

// Outbound is a chunk to send.
type Outbound struct {
	// Chunk is the header. PayloadBytes is used only for lent slices, for which Pages,
	// Blocks and Coding are unused. Runs must not change until Released.
	Chunk Chunk
	// Pages and Blocks locate the slices, in the order of Chunk.Runs.
	Pages  engine.Pages
	Blocks []kvcache.BlockID
	// Coding of the payload; nil: unchanged.
	Coding Coding
	// Into, if set, gets the slices, into those of Targets, which are as many as Blocks. The
	// message then has no payload, and Coding is unused. Stored, nil or as many, says which of
	// Targets have theirs already: these are not copied.
	Into    Views
	Targets []kvcache.BlockID
	Stored  []bool
	// Released, if set, is called once when the pages are no longer read. err says why they
	// could not be read, in which case the chunk is not sent. It must not block.
	Released func(err error)
}

// Inbound is a received message: Message or a chunk. It can be reused after Free, which
// saves allocations.
type Inbound struct {
	// Message is any message but a chunk. nil: this is a chunk.
	Message *kvtransferv1.SenderMessage
	// Chunk is the header, not validated. It is valid until Free.
	Chunk Chunk

	crc32c uint32
	// held are the connection's buffers, of which this holds a reference. The payload
	// starts in the first of payload, at offset.
	held, payload mem.BufferSlice
	offset        int
	pool          *pool
	text          []byte // checksummed fields before the payload; reused
}

// Incoming is an Inbound for streams. It reports errors in Malformed, since gRPC would end
// the stream on a codec error with a status of its own.
type Incoming struct {
	Inbound
	// Malformed says why the last message was invalid; nil if it was valid.
	Malformed error
}

// Free releases the message's buffers. It may be called repeatedly.
func (in *Inbound) Free() {
	in.held.Free()
	*in = Inbound{Chunk: Chunk{Runs: in.Chunk.Runs[:0]}, text: in.text}
}
