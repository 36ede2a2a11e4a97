package faultstest

import "strings"

// Flip spoils one bit.
type Flip struct {
	// Direction of the frame that is spoilt.
	Direction Direction
	// Frames pass unharmed before it.
	Frames int
	// Bytes of the stream pass unharmed after those, and Bit is the one that is
	// turned over in the next: 0 to 7.
	Bytes, Bit int

	// Said, after the flip, is what was hit: for messages of tests.
	said string
	done chan struct{}
}

// Flip turns over the bit that f says, counted from now on over all connections. It
// replaces one that has not happened yet.
func (p *Proxy) Flip(f Flip) *Flip {
	f.done = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flip = &f
	return &f
}

// Done is closed when the bit was turned over.
func (f *Flip) Done() <-chan struct{} { return f.done }

// String says what was hit. It may be called once Done is closed.
func (f *Flip) String() string { return f.said }

// frameNames are the types of HTTP/2's frames.
var frameNames = [...]string{"DATA", "HEADERS", "PRIORITY", "RST_STREAM", "SETTINGS", "PUSH_PROMISE", "PING", "GOAWAY", "WINDOW_UPDATE", "CONTINUATION"}

// spoil counts a frame, and says whether it was the one.
func (f *Flip) spoil(d Direction, frame []byte, ended []string) bool {
	if d != f.Direction {
		return false
	}
	if f.Frames > 0 {
		f.Frames--
		return false
	}
	if f.Bytes >= len(frame) {
		f.Bytes -= len(frame)
		return false
	}
	f.said = describe(frame, ended, f.Bytes)
	frame[f.Bytes] ^= 1 << f.Bit
	close(f.done)
	return true
}

// describe says what a byte of a frame is part of.
func describe(frame []byte, ended []string, at int) string {
	name := FrameName(frame, ended)
	if at < headerBytes && name != prefaceName {
		return name + ", header of the frame"
	}
	return name
}

// prefaceName is what FrameName calls the first bytes of a client.
const prefaceName = "preface"

// FrameName names a frame by its type and by the messages that end in it.
func FrameName(frame []byte, ended []string) string {
	if string(frame[:min(len(frame), 3)]) == preface[:3] {
		return prefaceName
	}
	name := "unknown frame"
	if kind := int(frame[3]); kind < len(frameNames) {
		name = frameNames[kind]
	}
	if len(ended) > 0 {
		name += " of " + strings.Join(ended, ", ")
	}
	return name
}
