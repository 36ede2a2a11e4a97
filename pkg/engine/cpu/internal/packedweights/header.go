package packedweights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

const (
	magic            = "TDMPACKD"
	layoutVersion    = 1
	fixedBytes       = 24 // before the identity
	maxIdentityBytes = 1024
	pageBytes        = 4096 // the weights begin at a multiple of it
	chunkBytes       = 1 << 20
)

// castagnoli has an instruction of its own on most processors.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is what stands before the weights.
type header struct {
	identity string
	bytes    int64    // of the weights
	sums     []uint32 // of each chunk of them
}

// chunks is how many chunks there are of so many bytes.
func chunks(bytes int64) int64 { return (bytes + chunkBytes - 1) / chunkBytes }

// headerBytes is the length of a header.
func headerBytes(identity int, bytes int64) int64 {
	return (fixedBytes + int64(identity) + 4*chunks(bytes) + 4 + pageBytes - 1) / pageBytes * pageBytes
}

// encode is the header as it is in a file.
func (h header) encode() []byte {
	out := make([]byte, 0, headerBytes(len(h.identity), h.bytes))
	out = append(out, magic...)
	out = binary.LittleEndian.AppendUint32(out, layoutVersion)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(h.identity)))
	out = binary.LittleEndian.AppendUint64(out, uint64(h.bytes))
	out = append(out, h.identity...)
	for _, sum := range h.sums {
		out = binary.LittleEndian.AppendUint32(out, sum)
	}
	out = out[:cap(out)-4]
	return binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
}

var errHeader = errors.New("its header is damaged")

// decode reads the header of a file of size bytes. What it allocates is bounded by a
// small part of them.
func decode(r io.ReaderAt, size int64) (header, error) {
	var fixed [fixedBytes]byte
	if size < fixedBytes {
		return header{}, fmt.Errorf("it has only %d bytes: it is truncated", size)
	}
	if _, err := r.ReadAt(fixed[:], 0); err != nil {
		return header{}, err
	}
	if string(fixed[:len(magic)]) != magic {
		return header{}, errors.New("it is not a file of packed weights")
	}
	if version := binary.LittleEndian.Uint32(fixed[8:]); version != layoutVersion {
		return header{}, fmt.Errorf("its layout has version %d, but this program reads version %d", version, layoutVersion)
	}
	identity, data := binary.LittleEndian.Uint32(fixed[12:]), binary.LittleEndian.Uint64(fixed[16:])
	if identity > maxIdentityBytes || data > uint64(size) {
		return header{}, errHeader
	}
	h := header{bytes: int64(data)}
	length := headerBytes(int(identity), h.bytes)
	if length+h.bytes != size {
		return header{}, fmt.Errorf("it has %d bytes, but its header says %d: it is truncated or damaged", size, length+h.bytes)
	}
	raw := make([]byte, length)
	if _, err := r.ReadAt(raw, 0); err != nil {
		return header{}, err
	}
	sums := raw[fixedBytes+identity:]
	h.identity = string(raw[fixedBytes : fixedBytes+identity])
	h.sums = make([]uint32, chunks(h.bytes))
	for i := range h.sums {
		h.sums[i] = binary.LittleEndian.Uint32(sums[4*i:])
	}
	// There is one way to write a header: what is left to check is that it is this one.
	if !bytes.Equal(h.encode(), raw) {
		return header{}, errHeader
	}
	return h, nil
}
