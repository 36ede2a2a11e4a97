package wire

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxDepth bounds the nesting of unknown groups.
const maxDepth = 100

// cursor reads a message that spans several buffers. After a failed read its position is
// undefined.
type cursor struct {
	buffers mem.BufferSlice // the current buffer and those after it
	data    []byte          // rest of the current buffer
	left    int             // bytes left in the whole message
}

func newCursor(message mem.BufferSlice) cursor {
	c := cursor{left: message.Len()}
	if len(message) > 0 {
		c.buffers, c.data = message, message[0].ReadOnlyData()
	}
	return c
}

// advance moves to the next nonempty buffer, if there is one.
func (c *cursor) advance() {
	for len(c.data) == 0 && len(c.buffers) > 1 {
		c.buffers = c.buffers[1:]
		c.data = c.buffers[0].ReadOnlyData()
	}
}

// skip skips n bytes.
func (c *cursor) skip(n int) bool {
	if n < 0 || n > c.left {
		return false
	}
	c.left -= n
	for n > len(c.data) {
		n -= len(c.data)
		c.data = nil
		c.advance()
	}
	c.data = c.data[n:]
	return true
}

// read fills p.
func (c *cursor) read(p []byte) bool {
	if len(p) > c.left {
		return false
	}
	c.left -= len(p)
	for len(p) > 0 {
		c.advance()
		n := copy(p, c.data)
		p, c.data = p[n:], c.data[n:]
	}
	return true
}

func (c *cursor) varint() (uint64, bool) {
	if v, n := binary.Uvarint(c.data); n > 0 {
		c.data = c.data[n:]
		c.left -= n
		return v, true
	}
	var v uint64
	for shift := uint(0); shift < 64 && c.left > 0; shift += 7 {
		c.advance()
		b := c.data[0]
		c.data = c.data[1:]
		c.left--
		if shift == 63 && b > 1 {
			return 0, false
		}
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return v, true
		}
	}
	return 0, false
}

// tag reads a field's number and wire type.
func (c *cursor) tag() (uint64, bool) {
	v, ok := c.varint()
	return v, ok && v>>3 >= 1 && v>>3 <= uint64(protowire.MaxValidNumber)
}

// uint32 reads a uint32 varint. Protobuf ignores its upper bits.
func (c *cursor) uint32() (uint32, bool) {
	v, ok := c.varint()
	return uint32(v), ok
}

func (c *cursor) fixed32() (uint32, bool) {
	var b [4]byte
	ok := c.read(b[:])
	return binary.LittleEndian.Uint32(b[:]), ok
}

func (c *cursor) fixed64() (uint64, bool) {
	var b [8]byte
	ok := c.read(b[:])
	return binary.LittleEndian.Uint64(b[:]), ok
}

// place is the position of the next byte: the buffers left, and an offset in the first.
func (c *cursor) place() (mem.BufferSlice, int) {
	c.advance()
	return c.buffers, c.buffers[0].Len() - len(c.data)
}

// skipField skips a field after its tag. Groups may be nested up to depth.
func (c *cursor) skipField(tag uint64, depth int) bool {
	switch protowire.Type(tag & 7) {
	case protowire.VarintType:
		_, ok := c.varint()
		return ok
	case protowire.Fixed64Type:
		return c.skip(8)
	case protowire.Fixed32Type:
		return c.skip(4)
	case protowire.BytesType:
		n, ok := c.length()
		return ok && c.skip(n)
	case protowire.StartGroupType:
		return depth > 0 && c.skipGroup(tag>>3, depth-1)
	default:
		return false
	}
}

func (c *cursor) skipGroup(number uint64, depth int) bool {
	for {
		tag, ok := c.tag()
		if !ok {
			return false
		}
		if protowire.Type(tag&7) == protowire.EndGroupType {
			return tag>>3 == number
		}
		if !c.skipField(tag, depth) {
			return false
		}
	}
}

// length reads a field's length.
func (c *cursor) length() (int, bool) {
	v, ok := c.varint()
	if !ok || v > uint64(c.left) {
		return 0, false
	}
	return int(v), true
}
