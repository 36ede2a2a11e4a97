package rpc

import "encoding/binary"

// Kinds and flags of HTTP/2 frames (RFC 9113, section 6) that a meter looks at.
const (
	frameHeaderBytes = 9
	frameData        = 0x0
	frameHeaders     = 0x1
	frameReset       = 0x3
	flagEndStream    = 0x1
)

// frame is the header of one HTTP/2 frame.
type frame struct {
	kind, flags byte
	stream      uint32
	bytes       int // of its payload
}

// frames finds the frame headers in one direction of an HTTP/2 connection. It looks
// at no payload and holds no bytes but those of an unfinished header.
type frames struct {
	header [frameHeaderBytes]byte
	have   int // bytes of header that are there
	skip   int // bytes of payload that are still to come
}

// scan takes in the next bytes of the connection, and calls found with each frame
// whose header is complete with them, before the frame's payload.
func (f *frames) scan(p []byte, found func(frame)) {
	for len(p) > 0 {
		if f.skip > 0 {
			n := min(f.skip, len(p))
			f.skip -= n
			p = p[n:]
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have < frameHeaderBytes {
			return
		}
		f.have = 0
		f.skip = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
		found(frame{
			kind: f.header[3], flags: f.header[4], bytes: f.skip,
			stream: binary.BigEndian.Uint32(f.header[5:]) &^ (1 << 31),
		})
	}
}
