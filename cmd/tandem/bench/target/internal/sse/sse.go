// Package sse reads event streams as the HTML standard lays them down
// (https://html.spec.whatwg.org/multipage/server-sent-events.html, "Parsing an
// event stream"), in bounded memory.
//
// Package target imports it. It starts no goroutines and reads no clock.
package sse

import (
	"bytes"
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

// maxEmptyReads is how often a reader may give nothing, and no error.
const maxEmptyReads = 100

// Reader gives the data of a stream's events. Names, ids and retry times are
// parsed and left out: nobody here reconnects, and the data says what it is.
// It reads from below only when it has no whole event, so that what it returns
// came, at its end, with the last read. It is used by one goroutine.
type Reader struct {
	from io.Reader
	max  int
	// buf[at:end] is what was read and not parsed; no line ends before scanned.
	buf              []byte
	at, scanned, end int
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
	return &Reader{from: from, max: maxBytes, buf: make([]byte, min(startBytes, maxBytes+1))}
}

// Reset makes the Reader that of another stream; it keeps its buffers.
func (r *Reader) Reset(from io.Reader) {
	*r = Reader{from: from, max: r.max, buf: r.buf, data: r.data[:0]}
}

// Next is the data of the next event, valid until the next call. At the end of
// the stream it is io.EOF; an event that no blank line ended is then lost, as the
// standard wants it. Other errors are ErrTooLong and those of the stream below.
// After an error it stays.
func (r *Reader) Next() ([]byte, error) {
	if r.err != nil {
		return nil, r.err
	}
	r.data, r.some = r.data[:0], false
	for {
		line, ok := r.line()
		switch {
		case !ok:
			if r.err = r.fill(); r.err != nil {
				return nil, r.err
			}
		case len(line) == 0:
			if r.some {
				return r.data, nil
			}
		default:
			if r.err = r.field(line); r.err != nil {
				return nil, r.err
			}
		}
	}
}

// line cuts the next line off what was read; false if none has ended. The line is
// valid until fill.
func (r *Reader) line() ([]byte, bool) {
	if r.skipLF && r.at < r.end {
		if r.buf[r.at] == '\n' {
			r.at++
		}
		r.skipLF, r.scanned = false, max(r.scanned, r.at)
	}
	if !r.begun {
		mark := []byte("\xef\xbb\xbf")
		if had := r.buf[r.at:r.end]; len(had) < len(mark) && bytes.HasPrefix(mark, had) {
			return nil, false
		}
		r.begun = true
		if bytes.HasPrefix(r.buf[r.at:r.end], mark) {
			r.at += len(mark)
		}
		r.scanned = r.at
	}
	fresh := r.buf[r.scanned:r.end]
	ends := bytes.IndexByte(fresh, '\n')
	if ends >= 0 {
		fresh = fresh[:ends]
	}
	if cr := bytes.IndexByte(fresh, '\r'); cr >= 0 {
		ends, r.skipLF = cr, true
	}
	if ends < 0 {
		r.scanned = r.end
		return nil, false
	}
	line := r.buf[r.at : r.scanned+ends]
	r.at = r.scanned + ends + 1
	r.scanned = r.at
	return line, true
}

// field takes a line that is not empty.
func (r *Reader) field(line []byte) error {
	if len(line) > r.max {
		return fmt.Errorf("%w: a line of over %d bytes", ErrTooLong, r.max)
	}
	name, value, _ := bytes.Cut(line, []byte{':'})
	if string(name) != "data" {
		// A comment has the empty name.
		return nil
	}
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	if r.some {
		r.data = append(r.data, '\n')
	}
	if len(r.data)+len(value) > r.max {
		return fmt.Errorf("%w: an event of over %d bytes", ErrTooLong, r.max)
	}
	r.data, r.some = append(r.data, value...), true
	return nil
}

// fill reads more, after making room for it.
func (r *Reader) fill() error {
	if r.at == r.end {
		r.at, r.scanned, r.end = 0, 0, 0
	}
	if r.end == len(r.buf) {
		switch {
		case r.at > 0:
			copy(r.buf, r.buf[r.at:r.end])
			r.scanned, r.end, r.at = r.scanned-r.at, r.end-r.at, 0
		case r.end > r.max:
			return fmt.Errorf("%w: a line of over %d bytes", ErrTooLong, r.max)
		default:
			r.buf = append(r.buf, make([]byte, min(len(r.buf), r.max+1-len(r.buf)))...)
			r.buf = r.buf[:cap(r.buf)]
		}
	}
	for range maxEmptyReads {
		n, err := r.from.Read(r.buf[r.end:])
		if n > 0 {
			// An error that came with bytes comes again without.
			r.end += n
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}
