// Package rpctest has an HTTP/2 client that behaves as badly as its tests want. Only
// tests import it. A Peer's goroutines end with its connection.
package rpctest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Peer is one connection of a client that sends what it is told to, frame by frame.
// It keeps to flow control, without which a server would end its calls, and owns one
// goroutine, which Close ends. Its methods are for one goroutine at a time.
type Peer struct {
	conn   net.Conn
	framer *http2.Framer
	next   uint32
	done   chan struct{}

	mu      sync.Mutex // of framer's writes and what follows
	changed chan struct{}
	window  int64 // of the connection, for what is sent
	initial int64 // of each new call
	windows map[uint32]int64
	codes   map[uint32]string
	reason  string // of the server's goodbye
	err     error
}

// Config says how a Peer reads. The zero value reads everything.
type Config struct {
	// Unread: the server may send no byte of any message.
	Unread bool
}

// Dial connects to host:port.
func Dial(ctx context.Context, address string, config Config) (*Peer, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	p := &Peer{
		conn: conn, framer: http2.NewFramer(conn, conn), next: 1, done: make(chan struct{}), changed: make(chan struct{}),
		window: 65535, initial: 65535, windows: make(map[uint32]int64), codes: make(map[uint32]string),
	}
	p.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var settings []http2.Setting
	if config.Unread {
		settings = append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	}
	if _, err = conn.Write([]byte(http2.ClientPreface)); err == nil {
		err = p.framer.WriteSettings(settings...)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	go p.read()
	return p, nil
}

// Close closes the connection.
func (p *Peer) Close() {
	_ = p.conn.Close()
	<-p.done
}

// Done is closed when the connection is.
func (p *Peer) Done() <-chan struct{} { return p.done }

func (p *Peer) read() {
	defer close(p.done)
	for {
		frame, err := p.framer.ReadFrame()
		p.mu.Lock()
		if err != nil {
			p.err = err
		} else {
			p.take(frame)
		}
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// take notes what a frame says; mu is held.
func (p *Peer) take(frame http2.Frame) {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return
		}
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			for stream := range p.windows {
				p.windows[stream] += int64(v) - p.initial
			}
			p.initial = int64(v)
		}
		_ = p.framer.WriteSettingsAck()
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = p.framer.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			p.window += int64(f.Increment)
		} else {
			p.windows[f.StreamID] += int64(f.Increment)
		}
	case *http2.DataFrame:
		if n := len(f.Data()); n > 0 {
			_ = p.framer.WriteWindowUpdate(0, uint32(n))
			_ = p.framer.WriteWindowUpdate(f.StreamID, uint32(n))
		}
	case *http2.RSTStreamFrame:
		if _, known := p.codes[f.StreamID]; !known {
			p.codes[f.StreamID] = f.ErrCode.String()
		}
	case *http2.GoAwayFrame:
		p.reason = string(f.DebugData())
	case *http2.MetaHeadersFrame:
		for _, field := range f.Fields {
			if field.Name == "grpc-status" {
				p.codes[f.StreamID] = field.Value
			}
		}
	}
}

// Open begins a call of a full method, with further headers, name after name and
// value, and returns its stream.
func (p *Peer) Open(fullMethod string, header ...string) (uint32, error) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	encoder.SetMaxDynamicTableSize(0)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", fullMethod}, {":authority", "test"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	for i := 0; i+1 < len(header); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: header[i], Value: header[i+1]})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	stream := p.next
	p.next += 2
	p.windows[stream] += p.initial
	fragment := block.Next(16 << 10)
	if err := p.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: fragment, EndHeaders: block.Len() == 0}); err != nil {
		return 0, err
	}
	for block.Len() > 0 {
		fragment = block.Next(16 << 10)
		if err := p.framer.WriteContinuation(stream, block.Len() == 0, fragment); err != nil {
			return 0, err
		}
	}
	return stream, nil
}

// Prefix begins a message of so many bytes.
func Prefix(bytes int) []byte { return binary.BigEndian.AppendUint32([]byte{0}, uint32(bytes)) }

// Settings sends so many frames of settings, or until the connection is closed.
func (p *Peer) Settings(n int) error {
	for range n {
		p.mu.Lock()
		err := p.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1 << 14})
		p.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// Send sends bytes of a call's messages, as the server's windows allow, in frames of
// at most frameBytes, and with the last of them the end if it is to.
func (p *Peer) Send(ctx context.Context, stream uint32, data []byte, frameBytes int, end bool) error {
	for {
		p.mu.Lock()
		n := int(min(int64(len(data)), int64(frameBytes), p.window, p.windows[stream]))
		_, over := p.codes[stream]
		err, changed := p.err, p.changed
		if err == nil && !over && (n > 0 || len(data) == 0) {
			p.window -= int64(n)
			p.windows[stream] -= int64(n)
			err = p.framer.WriteData(stream, end && n == len(data), data[:n])
			data = data[n:]
		}
		p.mu.Unlock()
		switch {
		case err != nil:
			return err
		case over:
			return fmt.Errorf("the call ended with status %s", p.codes[stream])
		case len(data) == 0:
			return nil
		case n > 0:
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Status is how a call ended, if it has: with a status, or -1 if it was reset.
func (p *Peer) Status(stream uint32) (code int, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	status, over := p.codes[stream]
	if code, err := strconv.Atoi(status); err == nil {
		return code, over
	}
	return -1, over
}

// Await waits for a call's end and returns its Status.
func (p *Peer) Await(ctx context.Context, stream uint32) (code int, err error) {
	for {
		p.mu.Lock()
		err, changed := p.err, p.changed
		p.mu.Unlock()
		if code, over := p.Status(stream); over {
			return code, nil
		}
		if err != nil {
			return 0, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// Goodbye is what the server said when it closed the connection.
func (p *Peer) Goodbye() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}
