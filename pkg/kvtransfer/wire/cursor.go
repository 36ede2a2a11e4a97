package wire

import (
	"encoding/binary"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

// maxDepth is how deep groups may be nested that nobody knows.
const maxDepth = 100

// cursor reads a message that lies in several buffers. What it cannot read it
// reports, and then it is somewhere behind it.
type cursor struct {
	buffers mem.BufferSlice // the one that is read, and those behind it
	data    []byte          // what is left of the one that is read
	left    int             // bytes of the whole message that are left
}

func newCursor(message mem.BufferSlice) cursor {
	c := cursor{left: message.Len()}
	if len(message) > 0 {
		c.buffers, c.data = message, message[0].ReadOnlyData()
	}
	return c
}

// advance goes to the next buffer that has bytes left, if there is one.
func (c *cursor) advance() {
	for len(c.data) == 0 && len(c.buffers) > 1 {
		c.buffers = c.buffers[1:]
		c.data = c.buffers[0].ReadOnlyData()
	}
}

// skip leaves n bytes out.
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

// uint32 reads a field of that kind, whose upper bits protobuf drops.
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

// place is where the next byte is: in the first of some buffers, at an offset.
func (c *cursor) place() (mem.BufferSlice, int) {
	c.advance()
	return c.buffers, c.buffers[0].Len() - len(c.data)
}

// skipField leaves out what follows a tag, groups up to some depth.
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

// skipGroup leaves out the rest of a group.
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

// length reads that of a field.
func (c *cursor) length() (int, bool) {
	v, ok := c.varint()
	if !ok || v > uint64(c.left) {
		return 0, false
	}
	return int(v), true
}
