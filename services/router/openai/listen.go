package openai

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/pkg/trywrite"
)

// Listen makes the connections of a listener ones to which a Handler can write a token without
// waiting, from the goroutine that has it. Their server needs ConnContext, too, and no handler
// between it and the Handler may change what is written. TLS goes above: tls.NewListener.
func Listen(inner net.Listener) net.Listener { return listener{inner} }

type listener struct{ net.Listener }

// Accept waits for the next connection.
func (l listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return newConn(inner), nil
}

type connKey struct{}

// ConnContext is the http.Server's. It lets a Handler find the connection of a request.
func ConnContext(ctx context.Context, inner net.Conn) context.Context {
	if encrypted, is := inner.(*tls.Conn); is {
		inner = encrypted.NetConn()
		if c, is := inner.(*conn); is {
			c.encrypted = encrypted
		}
	}
	return context.WithValue(ctx, connKey{}, inner)
}

// connOf is the connection of a request's context; nil: it cannot be written to without waiting.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// conn is a connection that can be written to without waiting. One goroutine at a time writes;
// below TLS the one that reads may, too.
type conn struct {
	net.Conn
	try       *trywrite.Writer
	encrypted *tls.Conn // that writes to this one; nil: nothing is encrypted

	now atomic.Bool // what TLS writes comes from sendNow

	// mu is a leaf. Below TLS, a goroutine that reads may hold it while it waits for the client: it
	// answers updates of keys.
	mu   sync.Mutex
	rest []byte // what the operating system did not take at once

	// whole is what sendNow has kept whole, not encrypted: the chunks of a token. Those that call it,
	// kept and flush own it. A stream that begins drops what one before it has left.
	whole []byte
}

// newConn returns inner itself if trywrite.New gives no Writer for it.
func newConn(inner net.Conn) net.Conn {
	if try := trywrite.New(inner); try != nil {
		return &conn{Conn: inner, try: try}
	}
	return inner
}

// Write writes p, after what was left.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now.Load() {
		return len(p), c.writeNow(p)
	}
	if err := c.flushLocked(len(c.rest)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// writeNow writes p without waiting, and keeps what the operating system does not take; mu is held.
func (c *conn) writeNow(p []byte) error {
	n := 0
	if len(c.rest) == 0 { // else a record before did not go
		var err error
		if n, err = c.try.Write(p); err != nil {
			return err
		}
	}
	if p = p[n:]; len(p) > 0 {
		c.rest = append(c.rest, p...)
	}
	return nil
}

// chunkHead is how many bytes a chunk's size takes at most, with the end of its line.
const chunkHead = len("ffffffff\r\n")

// sendNow writes a chunk of an answer (RFC 9112, section 7.1) without waiting, and keeps what the
// operating system does not take. Nothing may be left of the token before. p is chunkHead bytes, which
// it overwrites, some data, and the "\r\n" that ends a chunk.
func (c *conn) sendNow(p []byte) error {
	const hex = "0123456789abcdef"
	at := chunkHead - 2
	p[at], p[at+1] = '\r', '\n'
	for size := len(p) - chunkHead - 2; size > 0; size >>= 4 {
		at--
		p[at] = hex[size&15]
	}
	if c.encrypted == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.writeNow(p[at:])
	}
	if c.whole != nil { // another of the same token
		c.whole = append(c.whole, p[at:]...)
		return nil
	}
	c.now.Store(true)
	defer c.now.Store(false)
	// Who comes to write from here on does not wait. Who waits already has a lock of TLS, too.
	if !c.mu.TryLock() {
		c.whole = slices.Clone(p[at:])
		return nil
	}
	c.mu.Unlock()
	_, err := c.encrypted.Write(p[at:])
	return err
}

// kept says whether something is left to flush, or may be. It does not wait.
func (c *conn) kept() bool {
	if c.whole != nil || !c.mu.TryLock() {
		return true
	}
	defer c.mu.Unlock()
	return len(c.rest) > 0
}

// flush writes what was left, at most so many bytes of it, or a whole chunk.
func (c *conn) flush(most int) error {
	if whole := c.whole; whole != nil {
		c.whole = nil
		_, err := c.encrypted.Write(whole)
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked(most)
}

func (c *conn) flushLocked(most int) error {
	if len(c.rest) == 0 {
		return nil
	}
	n, err := c.Conn.Write(c.rest[:min(most, len(c.rest))])
	c.rest = c.rest[n:]
	if len(c.rest) == 0 {
		c.rest = nil
	}
	return err
}

// CloseWrite closes the side that the client reads, so that it gets an answer that ends before
// its request does.
func (c *conn) CloseWrite() error {
	if half, is := c.Conn.(interface{ CloseWrite() error }); is {
		return half.CloseWrite()
	}
	return nil
}
