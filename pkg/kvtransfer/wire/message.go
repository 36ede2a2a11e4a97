package wire

import (
	"errors"

	"google.golang.org/grpc/mem"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// ErrCorrupt is a payload that does not have its checksum.
var ErrCorrupt = errors.New("a chunk's CRC-32C does not match")

// ErrUndecodable is a payload that has its checksum and is nothing in its coding.
var ErrUndecodable = errors.New("a chunk does not match its encoding")

// Chunk is what a Chunk message says, but for its payload.
type Chunk struct {
	TransferID      uint64
	Sequence, Layer uint32
	// Runs are the blocks whose slices the payload is, counted in the reservation.
	Runs []Run
	// PayloadBytes is the size of the payload, or of what is lent.
	PayloadBytes int
	// Loan is the number under which the slices are lent; 0: they are the payload.
	Loan uint64
}

// Run is some neighbouring blocks.
type Run struct{ First, Blocks uint32 }

// Coding is how a slice is written in a payload. A nil Coding writes it as the
// pages have it. It is safe for concurrent use.
type Coding interface {
	// EncodedBytes is the size of one slice in a payload.
	EncodedBytes() int
	// Encode writes a slice of pages, src, as EncodedBytes of dst.
	Encode(dst, src []byte)
	// Decode writes EncodedBytes of src as a slice of pages, dst. Any bytes of a peer
	// may be in src.
	Decode(dst, src []byte) error
}

// Outbound is a chunk to send.
type Outbound struct {
	// Chunk is what the chunk says; its PayloadBytes is read only of one that lends its
	// slices, whose Pages, Blocks and Coding are not. Runs are not changed until Released.
	Chunk Chunk
	// Pages and Blocks are where its slices are, in the order of Chunk.Runs.
	Pages  engine.Pages
	Blocks []kvcache.BlockID
	// Coding is how they are written; nil: as they are.
	Coding Coding
	// Released, if set, is called once, when no page will be read any more here, with
	// why the chunk could not be sent if its pages could not be read. It must not
	// block.
	Released func(err error)
}

// Inbound is a message that was received: either Message, or a chunk. It can be
// received into again after Free, and is then cheaper to receive into than a new
// one.
type Inbound struct {
	// Message is anything but a chunk; nil: this is a chunk.
	Message *kvtransferv1.SenderMessage
	// Chunk is what the chunk says, which nobody has checked. It is valid until Free.
	Chunk Chunk

	crc32c uint32
	// held are the connection's buffers, of which this has a reference. The payload
	// begins in the first of payload, at offset.
	held, payload mem.BufferSlice
	offset        int
	pool          *pool
	text          []byte // for what is summed before the payload; used again
}

// Incoming is an Inbound for streams: gRPC would answer to an error of the codec by
// itself, and not as the protocol says.
type Incoming struct {
	Inbound
	// Malformed is why what was received last is no message; nil if it is one.
	Malformed error
}

// Free gives the message's buffers back. It may be called more than once.
func (in *Inbound) Free() {
	in.held.Free()
	*in = Inbound{Chunk: Chunk{Runs: in.Chunk.Runs[:0]}, text: in.text}
}
