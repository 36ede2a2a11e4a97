package eventlog

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
)

// A file is the magic, a segment with the header, and segments with records. A segment is
// three little-endian numbers of four bytes, the length that follows, its length once it is
// decompressed, and the CRC-32C of those two and of what follows; and that. A record is its
// length and its bytes, which begin with its kind.
const (
	magic       = magicBegin + "2\n"
	magicBegin  = "tandem events "
	segmentHead = 12
	// segmentBytes is from how many bytes on a segment is written, and maxSegment how long
	// one is at most, by one record of maxRecord.
	segmentBytes = 256 << 10
	maxRecord    = 32 << 20
	maxSegment   = 2 * maxRecord
)

// The kinds of records, and what follows.
const (
	recordBegin byte = iota + 1 // of a core: its number, its kind, the schema of that, its configuration
	// recordEvent is an event: the core's number, the time since the record before in
	// nanoseconds, the event, for each call of a function a 1, the function's number, the
	// arguments and the results, then a 0, the number of actions, and those.
	recordEvent
	recordEnd   // of a core: its number
	recordClose // of the log: why it ended, "" if it was closed
)

// frame makes a segment of records.
func frame(z *zstd.Encoder, dst, records []byte) []byte {
	dst = append(dst, make([]byte, segmentHead)...)
	dst = z.EncodeAll(records, dst)
	binary.LittleEndian.PutUint32(dst, uint32(len(dst)-segmentHead))
	binary.LittleEndian.PutUint32(dst[4:], uint32(len(records)))
	binary.LittleEndian.PutUint32(dst[8:], sumOf(dst))
	return dst
}

// sumOf is the checksum of a segment.
func sumOf(segment []byte) uint32 {
	return crc32.Update(crc32.Checksum(segment[:8], castagnoli), castagnoli, segment[segmentHead:])
}
