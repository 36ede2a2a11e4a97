package identity

import (
	"net"
	"sync"

	"github.com/tandem-serving/tandem/pkg/trywrite"
)

const (
	// corkBytes is how much is collected at most: what bulk senders write at a time.
	corkBytes = 256 << 10
	// uncorkedBytes is what goes out as it is: no more than a record or two.
	uncorkedBytes = 32 << 10
)

// corks are buffers of connections that write much just now.
var corks = sync.Pool{New: func() any { b := make([]byte, 0, corkBytes+uncorkedBytes); return &b }}

// corked is a connection below TLS. TLS writes record by record, 16 KiB each; what it writes
// between cork and uncork goes out in as few system calls as without TLS.
//
// A record or two, such as a token's, goes to the operating system without Go's scheduler being
// told, as it does from package rpc without TLS.
type corked struct {
	net.Conn
	try  *trywrite.Writer // nil: trywrite.New gives none
	mu   sync.Mutex
	held *[]byte // nil: writes go out at once
	err  error
}

func newCorked(conn net.Conn) *corked { return &corked{Conn: conn, try: trywrite.New(conn)} }

func (c *corked) cork() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, _ = corks.Get().(*[]byte) // of which there are no others
}

// Write writes, or keeps for later.
func (c *corked) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return 0, c.err
	case c.held == nil:
		return c.write(p)
	}
	if len(*c.held)+len(p) > cap(*c.held) {
		if err := c.flush(); err != nil {
			return 0, err
		}
	}
	if len(p) > cap(*c.held) {
		return c.Conn.Write(p)
	}
	*c.held = append(*c.held, p...)
	return len(p), nil
}

// write writes p, without waiting if it can; mu is held.
func (c *corked) write(p []byte) (n int, err error) {
	if c.try != nil && len(p) <= uncorkedBytes {
		if n, err = c.try.Write(p); err != nil || n == len(p) {
			return n, err
		}
	}
	rest, err := c.Conn.Write(p[n:])
	return n + rest, err
}

// flush writes what is kept; mu is held.
func (c *corked) flush() error {
	if c.err == nil && len(*c.held) > 0 {
		_, c.err = c.Conn.Write(*c.held)
	}
	*c.held = (*c.held)[:0]
	return c.err
}

func (c *corked) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.flush()
	corks.Put(c.held)
	c.held = nil
	return err
}

// bulk is a TLS connection over a corked one. One goroutine at a time writes.
type bulk struct {
	net.Conn
	below *corked
}

// Write encrypts and writes.
func (b *bulk) Write(p []byte) (int, error) {
	if len(p) <= uncorkedBytes {
		return b.Conn.Write(p)
	}
	b.below.cork()
	n, err := b.Conn.Write(p)
	if flushErr := b.below.uncork(); err == nil {
		err = flushErr
	}
	return n, err
}
