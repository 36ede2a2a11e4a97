package faultstest

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/net/http2/hpack"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Direction is which way bytes go through a Proxy.
type Direction int

// The two directions.
const (
	ToReceiver Direction = iota
	ToSender
)

// String is for messages of tests.
func (d Direction) String() string { return [...]string{"to the receiver", "to the sender"}[d] }

// What of HTTP/2 a Proxy understands.
const (
	preface       = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	headerBytes   = 9
	frameData     = 0
	frameHeaders  = 1
	flagPadded    = 0x8
	flagPriority  = 0x20
	messagePrefix = 5
)

// kinds are the messages of the protocol by the number of their field.
var kinds = [...][]string{
	ToReceiver: {1: "hello", 2: "open", 3: "chunk", 4: "commit", 5: "abort", 6: "renew"},
	ToSender:   {1: "hello", 2: "accept", 3: "refuse", 4: "grant", 5: "committed", 6: "failed", 7: "drained"},
}

// reader takes one direction of a connection apart.
type reader struct {
	direction Direction
	from      *bufio.Reader
	begun     bool
	paths     *hpack.Decoder
	path      string
	streams   map[uint32]*messages // of KV
	frame     []byte
}

// messages takes the gRPC messages of one HTTP/2 stream apart.
type messages struct {
	head []byte // prefix and first byte of the message that is being read
	left int    // bytes of it that are still to come
}

func newReader(d Direction, from io.Reader) *reader {
	r := &reader{direction: d, from: bufio.NewReaderSize(from, 64<<10), streams: map[uint32]*messages{}}
	r.paths = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":path" {
			r.path = f.Value
		}
	})
	return r
}

// next is the next frame, which is valid until the next call, and the kinds of the
// messages of KV that end in it. The preface of a client comes as a frame.
func (r *reader) next() (frame []byte, ended []string, err error) {
	if !r.begun && r.direction == ToReceiver {
		r.begun = true
		r.frame = append(r.frame[:0], make([]byte, len(preface))...)
		_, err := io.ReadFull(r.from, r.frame)
		return r.frame, nil, err
	}
	head, err := r.from.Peek(headerBytes)
	if err != nil {
		return nil, nil, err
	}
	size := headerBytes + (int(head[0])<<16 | int(head[1])<<8 | int(head[2]))
	if cap(r.frame) < size {
		r.frame = make([]byte, size)
	}
	r.frame = r.frame[:size]
	if _, err := io.ReadFull(r.from, r.frame); err != nil {
		return nil, nil, err
	}
	ended, err = r.parse(r.frame[3], r.frame[4], binary.BigEndian.Uint32(r.frame[5:])&(1<<31-1), r.frame[headerBytes:])
	return r.frame, ended, err
}

func (r *reader) parse(kind, flags byte, stream uint32, body []byte) (ended []string, err error) {
	if kind != frameData && kind != frameHeaders {
		return nil, nil
	}
	if flags&flagPadded != 0 {
		if len(body) == 0 || int(body[0]) >= len(body) {
			return nil, fmt.Errorf("a frame of %d bytes with too much padding", len(body))
		}
		body = body[1 : len(body)-int(body[0])]
	}
	if kind == frameData {
		if m := r.streams[stream]; m != nil {
			return m.add(r.direction, body), nil
		}
		return nil, nil
	}
	if flags&flagPriority != 0 {
		body = body[min(5, len(body)):]
	}
	r.path = ""
	if _, err := r.paths.Write(body); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	if r.direction == ToSender || r.path == kvtransferv1.KVTransfer_Stream_FullMethodName {
		r.streams[stream] = new(messages)
	}
	return nil, nil
}

// add takes more bytes of the stream.
func (m *messages) add(d Direction, body []byte) (ended []string) {
	for len(body) > 0 {
		if m.left == 0 {
			n := min(messagePrefix+1-len(m.head), len(body))
			m.head = append(m.head, body[:n]...)
			body = body[n:]
			if len(m.head) >= messagePrefix && binary.BigEndian.Uint32(m.head[1:]) == 0 {
				body = append(m.head[messagePrefix:len(m.head):len(m.head)], body...)
				ended, m.head = append(ended, "empty"), nil
				continue
			}
			if len(m.head) <= messagePrefix {
				continue
			}
			m.left = int(binary.BigEndian.Uint32(m.head[1:])) - 1
		} else {
			n := min(m.left, len(body))
			m.left -= n
			body = body[n:]
		}
		if m.left == 0 {
			ended, m.head = append(ended, kindOf(d, m.head[messagePrefix])), nil
		}
	}
	return ended
}

func kindOf(d Direction, tag byte) string {
	if field := int(tag >> 3); field < len(kinds[d]) && kinds[d][field] != "" {
		return kinds[d][field]
	}
	return "unknown"
}
