package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/checksum"
)

// Field numbers written and read by hand.
const (
	fieldChunk = 3 // of SenderMessage

	fieldTransferID = 1
	fieldSequence   = 2
	fieldLayer      = 3
	fieldRuns       = 4
	fieldLoan       = 6
	fieldLentBytes  = 7
	fieldWritten    = 8
	fieldPayload    = 15
	fieldCRC32C     = 16

	fieldFirstBlock = 1 // of Run
	fieldBlocks     = 2
)

const (
	// maxFixedBytes bounds a message's fields, except its runs and its payload.
	maxFixedBytes = 64
	// maxRunBytes bounds one encoded run.
	maxRunBytes = 16
	// restBytes bounds what any sender adds to a chunk's payload and runs.
	restBytes = 1 << 10
	// sumBytes is the size of the checksum field after the payload.
	sumBytes = 6
	// lineBytes is the size of a cache line. Copies are fastest to an aligned destination.
	lineBytes = 64
)

// errNoSlice means that the pages lack a slice.
var errNoSlice = errors.New("no such slice")

// encode encodes a chunk into a buffer: a staging buffer if its payload is read from pages of
// a device.
func (out *Outbound) encode(p *pool) (*buffer, error) {
	if out.Chunk.Loan != 0 {
		return out.encodeLent(p), nil
	}
	if out.Into != nil {
		return out.encodeWritten(p)
	}
	each := out.Pages.Layout().SliceBytes
	if out.Coding != nil {
		each = out.Coding.EncodedBytes()
	}
	payload := len(out.Blocks) * each
	headBytes := maxFixedBytes + maxRunBytes*len(out.Chunk.Runs) + textBytes(len(out.Chunk.Runs))
	headBytes = (headBytes + lineBytes - 1) / lineBytes * lineBytes
	size := headBytes + payload + sumBytes
	var b *buffer
	if out.Coding == nil {
		b = p.getFor(out.Pages, size)
	} else {
		b = p.get(size)
	}

	// The header is written at the front, then moved so that it ends where the payload
	// starts, at headBytes.
	header := appendHeader(b.all[:0:headBytes], out.Chunk, 1+protowire.SizeBytes(payload)+sumBytes)
	header = protowire.AppendTag(header, fieldPayload, protowire.BytesType)
	header = protowire.AppendVarint(header, uint64(payload))
	text := appendText(b.all[len(header):len(header):headBytes], &out.Chunk)
	sum, err := out.copyPages(p, b.all[headBytes:headBytes+payload], checksum.Update(0, text))
	if err != nil {
		p.put(b)
		return nil, err
	}
	start := headBytes - len(header)
	copy(b.all[start:headBytes], header)
	tail := protowire.AppendTag(b.all[:headBytes+payload], fieldCRC32C, protowire.Fixed32Type)
	tail = protowire.AppendFixed32(tail, sum)
	b.used = tail[start:]
	return b, nil
}

// copyPages writes the payload and adds it to a checksum.
func (out *Outbound) copyPages(p *pool, payload []byte, sum uint32) (uint32, error) {
	layer, slice := int(out.Chunk.Layer), out.Pages.Layout().SliceBytes
	if len(out.Blocks) == 0 {
		return sum, nil
	}
	inHost := out.Pages.View(layer, out.Blocks[0]) != nil
	switch {
	case out.Coding != nil:
		if err := out.encodePages(p, payload); err != nil {
			return 0, err
		}
	case !inHost:
		if err := out.Pages.Read(layer, out.Blocks, payload); err != nil {
			return 0, err
		}
	default:
		for i, block := range out.Blocks {
			view := out.Pages.View(layer, block)
			if len(view) != slice {
				return 0, fmt.Errorf("%w: layer %d of block %d to read", errNoSlice, layer, block)
			}
			sum = checksum.Copy(payload[i*slice:], view, sum)
		}
		return sum, nil
	}
	return checksum.Update(sum, payload), nil
}

// encodePages writes the payload in the chunk's coding.
func (out *Outbound) encodePages(p *pool, payload []byte) error {
	layer, slice, encoded := int(out.Chunk.Layer), out.Pages.Layout().SliceBytes, out.Coding.EncodedBytes()
	scratch := p.getFor(out.Pages, slice)
	defer p.put(scratch)
	for i, block := range out.Blocks {
		from := out.Pages.View(layer, block)
		if from == nil {
			from = scratch.all[:slice]
			if err := out.Pages.Read(layer, out.Blocks[i:i+1], from); err != nil {
				return err
			}
		}
		out.Coding.Encode(payload[i*encoded:(i+1)*encoded], from)
	}
	return nil
}

// appendHeader appends a message up to its slices. rest is the number of bytes of the chunk
// that follow.
func appendHeader(b []byte, c Chunk, rest int) []byte {
	body := 1 + 8 + 1 + protowire.SizeVarint(uint64(c.Sequence)) + 1 + protowire.SizeVarint(uint64(c.Layer)) + rest
	for _, r := range c.Runs {
		body += 1 + protowire.SizeBytes(sizeRun(r))
	}
	b = protowire.AppendTag(b, fieldChunk, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(body))
	b = protowire.AppendTag(b, fieldTransferID, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, c.TransferID)
	b = appendUint32(b, fieldSequence, c.Sequence)
	b = appendUint32(b, fieldLayer, c.Layer)
	for _, r := range c.Runs {
		b = protowire.AppendTag(b, fieldRuns, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizeRun(r)))
		b = appendUint32(b, fieldFirstBlock, r.First)
		b = appendUint32(b, fieldBlocks, r.Blocks)
	}
	return b
}

func sizeRun(r Run) int {
	return 1 + protowire.SizeVarint(uint64(r.First)) + 1 + protowire.SizeVarint(uint64(r.Blocks))
}

func appendUint32(b []byte, number protowire.Number, value uint32) []byte {
	b = protowire.AppendTag(b, number, protowire.VarintType)
	return protowire.AppendVarint(b, uint64(value))
}

// textBytes is the size of what appendText appends.
func textBytes(runs int) int { return 20 + 8*runs }

// appendText appends what the checksum covers before the payload, as specified in the proto
// file.
func appendText(b []byte, c *Chunk) []byte {
	b = binary.LittleEndian.AppendUint64(b, c.TransferID)
	b = binary.LittleEndian.AppendUint32(b, c.Sequence)
	b = binary.LittleEndian.AppendUint32(b, c.Layer)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(c.Runs)))
	for _, r := range c.Runs {
		b = binary.LittleEndian.AppendUint32(b, r.First)
		b = binary.LittleEndian.AppendUint32(b, r.Blocks)
	}
	return b
}
