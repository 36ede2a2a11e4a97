// Package sse parses server-sent events as the HTML standard specifies
// (https://html.spec.whatwg.org/multipage/server-sent-events.html, "Parsing an event
// stream"), in bounded memory.
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

// DefaultMaxBytes bounds a line and an event's data by default.
const DefaultMaxBytes = 1 << 20

// ErrTooLong means that a line or an event's data exceeds the limit.
var ErrTooLong = errors.New("event stream: longer than the limit")

// startBytes is the initial buffer: about ten events of a server that streams tokens.
const startBytes = 4 << 10

// mark is the byte order mark that a stream may begin with.
var mark = []byte("\xef\xbb\xbf")

// Reader returns the data of a stream's events. It ignores names, ids and retry times. It
// reads more only when it has no whole event, so the last read completed the event it
// returns. Not for concurrent use.
type Reader struct {
	lines *bufio.Scanner
	max   int
	buf   []byte
	// data of the current event; some: there is data, possibly empty.
	data []byte
	some bool
	// begun: past the byte order mark. skipLF: the last line ended with CR, so a
	// following LF belongs to it.
	begun, skipLF bool
	err           error
}

// NewReader reads events of at most maxBytes, 0 for DefaultMaxBytes.
func NewReader(from io.Reader, maxBytes int) *Reader {
	if maxBytes <= 0 {
		maxBytes = DefaultMaxBytes
	}
	r := &Reader{max: maxBytes, buf: make([]byte, min(startBytes, maxBytes+1))}
	r.Reset(from)
	return r
}

// Reset prepares the Reader for another stream and keeps its buffers.
func (r *Reader) Reset(from io.Reader) {
	*r = Reader{lines: bufio.NewScanner(from), max: r.max, buf: r.buf, data: r.data[:0]}
	r.lines.Buffer(r.buf, r.max+1) // a line and its terminator
	r.lines.Split(r.line)
}

// Next returns the data of the next event, valid until the next call. At the end of the
// stream it returns io.EOF; an event without its final blank line is dropped, as the
// standard requires. Other errors are ErrTooLong and those of the stream. Errors are
// sticky.
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

// line is a bufio.SplitFunc. An unterminated line is dropped.
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

// field processes a nonempty line.
func (r *Reader) field(line []byte) error {
	name, value, _ := bytes.Cut(line, []byte{':'})
	if string(name) != "data" {
		// A comment's name is empty.
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
