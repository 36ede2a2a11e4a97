package wire

import "google.golang.org/grpc/mem"

// Protobuf tags: field number and wire type.
const (
	tagChunk      = fieldChunk<<3 | 2
	tagTransferID = fieldTransferID<<3 | 1
	tagSequence   = fieldSequence << 3
	tagLayer      = fieldLayer << 3
	tagRuns       = fieldRuns<<3 | 2
	tagLoan       = fieldLoan<<3 | 1
	tagLentBytes  = fieldLentBytes << 3
	tagWritten    = fieldWritten << 3
	tagPayload    = fieldPayload<<3 | 2
	tagCRC32C     = fieldCRC32C<<3 | 5
	tagFirstBlock = fieldFirstBlock << 3
	tagBlocks     = fieldBlocks << 3

	lastMessage = 6 // of SenderMessage's fields
)

// maxRuns bounds the runs of a chunk. In memory they may take four times their size on the
// wire.
const maxRuns = 1 << 16

// MaxMessageBytes is the largest message for a receiver of chunks with such a payload and
// slices of that size: a chunk in which no two blocks adjoin, or another message.
func MaxMessageBytes(payload, sliceBytes int) int {
	return max(payload+maxRunBytes*min(payload/sliceBytes, maxRuns)+restBytes, maxMessageBytes)
}

// decode reports whether a message is a chunk, and if so decodes it. Fields may come in any
// order; unknown ones are skipped. A chunk holds a reference to the message's buffers.
func (in *Inbound) decode(message mem.BufferSlice) (isChunk bool, _ error) {
	others := false
	for c := newCursor(message); c.left > 0; {
		tag, ok := c.tag()
		switch {
		case ok && tag == tagChunk && !isChunk:
			isChunk, ok = true, in.decodeChunk(&c)
		case ok && tag == tagChunk:
			ok = false
		case ok:
			others = others || tag>>3 <= lastMessage
			ok = c.skipField(tag, maxDepth)
		}
		if !ok {
			return false, errMalformed
		}
	}
	if isChunk && others {
		return false, errMalformed
	}
	if isChunk {
		message.Ref()
		in.held = message
	}
	return isChunk, nil
}

func (in *Inbound) decodeChunk(c *cursor) bool {
	size, ok := c.length()
	if !ok {
		return false
	}
	lentBytes, writtenBytes := uint32(0), uint32(0)
	for end := c.left - size; c.left > end; {
		tag, ok := c.tag()
		if !ok {
			return false
		}
		switch tag {
		case tagLoan:
			in.Chunk.Loan, ok = c.fixed64()
		case tagLentBytes:
			lentBytes, ok = c.uint32()
		case tagWritten:
			writtenBytes, ok = c.uint32()
		case tagTransferID:
			in.Chunk.TransferID, ok = c.fixed64()
		case tagCRC32C:
			in.crc32c, ok = c.fixed32()
		case tagSequence:
			in.Chunk.Sequence, ok = c.uint32()
		case tagLayer:
			in.Chunk.Layer, ok = c.uint32()
		case tagRuns:
			ok = in.decodeRun(c)
		case tagPayload:
			in.Chunk.PayloadBytes, ok = c.length()
			in.payload, in.offset = c.place()
			ok = ok && c.skip(in.Chunk.PayloadBytes)
		default:
			ok = c.skipField(tag, maxDepth)
		}
		if !ok || c.left < end {
			return false
		}
	}
	return in.countAbsent(lentBytes, writtenBytes)
}

// countAbsent counts lent or written bytes as payload. It rejects a chunk with more than one
// of payload, loan and written bytes, or with an incomplete loan.
func (in *Inbound) countAbsent(lent, written uint32) bool {
	if in.Chunk.Loan == 0 && lent == 0 && written == 0 {
		return true
	}
	if (in.Chunk.Loan == 0) != (lent == 0) || lent > 0 && written > 0 || in.Chunk.PayloadBytes > 0 {
		return false
	}
	in.Chunk.PayloadBytes, in.Chunk.Written = int(lent)+int(written), written > 0
	return true
}

func (in *Inbound) decodeRun(c *cursor) bool {
	size, ok := c.length()
	if !ok || len(in.Chunk.Runs) == maxRuns {
		return false
	}
	var r Run
	for end := c.left - size; c.left > end; {
		tag, ok := c.tag()
		if !ok {
			return false
		}
		switch tag {
		case tagFirstBlock:
			r.First, ok = c.uint32()
		case tagBlocks:
			r.Blocks, ok = c.uint32()
		default:
			ok = c.skipField(tag, maxDepth)
		}
		if !ok || c.left < end {
			return false
		}
	}
	in.Chunk.Runs = append(in.Chunk.Runs, r)
	return true
}
