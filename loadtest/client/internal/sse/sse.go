// Package sse reads event streams as the HTML standard lays them down
// (https://html.spec.whatwg.org/multipage/server-sent-events.html, "Parsing an
// event stream"), in bounded memory.
//
// Package client imports it. It starts no goroutines and reads no clock.
package sse

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
)

// DefaultMaxBytes bounds a line, and the data of an event, unless told otherwise.
const DefaultMaxBytes = 1 << 20

// ErrTooLong says that a line, or an event's data, is longer than the limit.
var ErrTooLong = errors.New("event stream: longer than the limit")

// startBytes is the buffer of a stream in which nothing unusual comes: some ten
// events of a server that streams tokens.
const startBytes = 4 << 10

// mark is the byte order mark, which a stream may begin with.
var mark = []byte("\xef\xbb\xbf")

// Reader gives the data of a stream's events. Names, ids and retry times are
// parsed and left out: nobody here reconnects, and the data says what it is.
// It reads from below only when it has no whole event, so that what it returns
// came, at its end, with the last read. It is used by one goroutine.
type Reader struct {
	lines *bufio.Scanner
	max   int
	buf   []byte
	// data is the event's so far; some says that there is any, were it empty.
	data []byte
	some bool
	// begun: the byte order mark, if there was one, is behind. skipLF: the last line
	// ended with a CR; an LF that follows belongs to it.
	begun, skipLF bool
	err           error
}

// NewReader reads events of at most maxBytes; 0: DefaultMaxBytes.
func NewReader(from io.Reader, maxBytes int) *Reader {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	r := &Reader{max: maxBytes, buf: make([]byte, min(startBytes, maxBytes+1))}
	r.Reset(from)
	return r
}

// Reset makes the Reader that of another stream; it keeps its buffers.
func (r *Reader) Reset(from io.Reader) {
	*r = Reader{lines: bufio.NewScanner(from), max: r.max, buf: r.buf, data: r.data[:0]}
	r.lines.Buffer(r.buf, r.max+1) // a line and its end
	r.lines.Split(r.line)
}

// Next is the data of the next event, valid until the next call. At the end of
// the stream it is io.EOF; an event that no blank line ended is then lost, as the
// standard wants it. Other errors are ErrTooLong and those of the stream below.
// After an error it stays.
func (r *Reader) Next() ([]byte, error) {
	r.data, r.some = r.data[:0], false
	for r.err == nil && r.lines.Scan() {
		if line := r.lines.Bytes(); len(line) > 0 {
			r.err = r.field(line)
		} else if r.some {
			return r.data, nil
		}
	}
	if r.err == nil {
		r.err = cmp.Or(r.lines.Err(), io.EOF)
	}
	if errors.Is(r.err, bufio.ErrTooLong) {
		r.err = fmt.Errorf("%w: a line of over %d bytes", ErrTooLong, r.max)
	}
	return nil, r.err
}

// line is a bufio.SplitFunc. What no line end follows is no line.
func (r *Reader) line(data []byte, _ bool) (advance int, line []byte, err error) {
	from := 0
	if !r.begun {
		if len(data) < len(mark) && bytes.HasPrefix(mark, data) {
			return 0, nil, nil
		}
		r.begun = true
		if bytes.HasPrefix(data, mark) {
			from = len(mark)
		}
	}
	if r.skipLF && from < len(data) {
		r.skipLF = false
		if data[from] == '\n' {
			from++
		}
	}
	line, _, ended := bytes.Cut(data[from:], []byte{'\n'})
	if cr := bytes.IndexByte(line, '\r'); cr >= 0 {
		line, ended, r.skipLF = line[:cr], true, true
	}
	if !ended {
		return from, nil, nil
	}
	return from + len(line) + 1, line, nil
}

// field takes a line that is not empty.
func (r *Reader) field(line []byte) error {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if string(name) != "data" {
		// A comment has the empty name.
		return nil
	}
	if r.some {
		r.data = append(r.data, '\n')
	}
	value = bytes.TrimPrefix(value, []byte{' '})
	if len(r.data)+len(value) > r.max {
		return fmt.Errorf("%w: an event of over %d bytes", ErrTooLong, r.max)
	}
	r.data, r.some = append(r.data, value...), true
	return nil
}
