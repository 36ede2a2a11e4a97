package eventlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"time"
)

// encoder writes values into buf.
type encoder struct {
	buf    []byte
	action bool      // see longSlice
	base   time.Time // see time
	err    error     // the first
}

func (e *encoder) failed(err error) {
	if e.err == nil {
		e.err = err
	}
}

func (e *encoder) uvarint(x uint64) { e.buf = binary.AppendUvarint(e.buf, x) }

func (e *encoder) bool(x bool) {
	b := byte(0)
	if x {
		b = 1
	}
	e.buf = append(e.buf, b)
}

func (e *encoder) string(x string) {
	e.uvarint(uint64(len(x)))
	e.buf = append(e.buf, x...)
}

// length writes that of a slice or map, one more than it has; 0 is nil.
func (e *encoder) length(v reflect.Value) {
	if v.IsNil() {
		e.uvarint(0)
		return
	}
	e.uvarint(uint64(v.Len()) + 1)
}

// time writes a time by the clock whose start base is: what the wall clock was then, and how
// long ago that is.
func (e *encoder) time(t time.Time) {
	if t != t.Round(0) { // it has a monotonic reading
		t = e.base.Add(t.Sub(e.base))
	}
	e.buf = binary.AppendVarint(e.buf, t.Unix())
	e.uvarint(uint64(t.Nanosecond()))
}

// decoder reads what an encoder wrote. After a failure it gives zero values.
type decoder struct {
	data   []byte
	action bool
	// function gives the one that is read, of a plan's type; nil: there are none to be had.
	function func(p *funcPlan) reflect.Value
	depth    int // of interfaces and pointers
	err      error
}

var errShort = errors.New("it ends within a value")

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
	d.data = nil
}

// maxDepth is how deep values may be nested.
const maxDepth = 64

// enter begins a nested value, unless there are too many.
func (d *decoder) enter() bool {
	if d.depth++; d.depth > maxDepth {
		d.fail("values are nested more than %d deep", maxDepth)
	}
	return d.err == nil
}

func (d *decoder) uvarint() uint64 {
	x, n := binary.Uvarint(d.data)
	if n <= 0 {
		d.fail("%w", errShort)
		return 0
	}
	d.data = d.data[n:]
	return x
}

func (d *decoder) varint() int64 {
	x, n := binary.Varint(d.data)
	if n <= 0 {
		d.fail("%w", errShort)
		return 0
	}
	d.data = d.data[n:]
	return x
}

func (d *decoder) bool() bool {
	if len(d.data) == 0 {
		d.fail("%w", errShort)
		return false
	}
	x := d.data[0]
	d.data = d.data[1:]
	return x != 0
}

// count reads how many bytes or values follow, each of at least a byte.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.data)) {
		d.fail("%w", errShort)
		return 0
	}
	return int(n)
}

// length reads what encoder.length wrote; false: nil. In an action a long slice may take less
// than a byte for each number.
func (d *decoder) length() (n int, is bool) {
	x := d.uvarint()
	if x == 0 {
		return 0, false
	}
	if x--; x > uint64(len(d.data)) && !(d.action && len(d.data) >= 4 && x < 1<<40) {
		d.fail("%w", errShort)
		return 0, false
	}
	return int(x), true
}

// bytes reads n bytes, which stay the decoder's. After a failure they are some zeros, all of
// them up to 64.
func (d *decoder) bytes(n int) []byte {
	if n > len(d.data) {
		d.fail("%w", errShort)
	}
	if d.err != nil {
		return make([]byte, min(n, 64))
	}
	out := d.data[:n]
	d.data = d.data[n:]
	return out
}

func (d *decoder) string() string { return string(d.bytes(d.count())) }

func (d *decoder) time() time.Time {
	seconds, nanoseconds := d.varint(), d.uvarint()
	if nanoseconds >= uint64(time.Second) {
		d.fail("a time has %d nanoseconds", nanoseconds)
	}
	if d.err != nil {
		return time.Time{}
	}
	if t := time.Unix(seconds, int64(nanoseconds)); !t.IsZero() {
		return t
	}
	return time.Time{}
}

func (d *decoder) registered(c *Codec, id uint64) *plan {
	if id >= uint64(len(c.registered)) {
		d.fail("type %d is not known", id)
		return nil
	}
	return c.registered[id]
}
