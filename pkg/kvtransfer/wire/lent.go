package wire

import (
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

// lentTextBytes is the size of what appendLentText appends.
const lentTextBytes = 12

// appendLentText appends what the checksum covers in place of a payload.
func appendLentText(b []byte, c *Chunk) []byte {
	b = binary.LittleEndian.AppendUint64(b, c.Loan)
	return binary.LittleEndian.AppendUint32(b, uint32(c.PayloadBytes))
}

// encodeLent encodes a chunk of lent slices into a pooled buffer.
func (out *Outbound) encodeLent(p *pool) *buffer {
	c := &out.Chunk
	most := maxFixedBytes + maxRunBytes*len(c.Runs) + sumBytes
	b := p.get(most + textBytes(len(c.Runs)) + lentTextBytes)
	rest := 1 + 8 + 1 + protowire.SizeVarint(uint64(c.PayloadBytes)) + sumBytes
	m := appendHeader(b.all[:0:most], *c, rest)
	m = protowire.AppendTag(m, fieldLoan, protowire.Fixed64Type)
	m = protowire.AppendFixed64(m, c.Loan)
	m = appendUint32(m, fieldLentBytes, uint32(c.PayloadBytes))
	text := appendLentText(appendText(b.all[most:most:len(b.all)], c), c)
	m = protowire.AppendTag(m, fieldCRC32C, protowire.Fixed32Type)
	b.used = protowire.AppendFixed32(m, checksum.Update(0, text))
	return b
}

// TakeTo verifies the checksum of a chunk of lent slices and takes them into the slices of
// blocks, which are the blocks of Chunk.Runs. Call it at most once. Errors: those of
// CopyTo, and engine.ErrNotLent.
func (in *Inbound) TakeTo(pages engine.Lending, blocks []kvcache.BlockID) error {
	if in.Chunk.Loan == 0 {
		return fmt.Errorf("%w: nothing is lent", ErrUndecodable)
	}
	in.text = appendLentText(appendText(in.text[:0], &in.Chunk), &in.Chunk)
	if checksum.Update(0, in.text) != in.crc32c {
		return ErrCorrupt
	}
	return pages.Take(in.Chunk.Loan, int(in.Chunk.Layer), blocks)
}
