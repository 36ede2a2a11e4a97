//go:build linux && !race

package transport

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// aheadBytes is how much is read beyond what was asked for: a frame's header, and small frames
// before it. More would have to be copied, which costs more than a system call for each frame.
const aheadBytes = 512

// conn reads ahead: each read of a payload goes straight to its destination and also
// fetches the header that follows.
type conn struct {
	net.Conn
	raw   syscall.RawConn
	ahead []byte // read ahead and not yet returned; part of space
	space [aheadBytes]byte

	// State of readv, in fields so that a read does not allocate.
	readv func(fd uintptr) bool
	parts [2][]byte
	n     int
	err   error
}

func readAhead(c net.Conn) net.Conn {
	if stream, ok := c.(syscall.Conn); ok {
		if raw, err := stream.SyscallConn(); err == nil {
			reads := &conn{Conn: c, raw: raw}
			reads.readv = reads.readOnce
			return reads
		}
	}
	return c
}

// readOnce reads what is available. It returns false if nothing is yet.
func (c *conn) readOnce(fd uintptr) bool {
	for {
		c.n, c.err = unix.Readv(int(fd), c.parts[:])
		if !errors.Is(c.err, unix.EINTR) {
			return !errors.Is(c.err, unix.EAGAIN)
		}
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 || len(p) == 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	c.parts = [2][]byte{p, c.space[:]}
	err := c.raw.Read(c.readv)
	c.parts = [2][]byte{}
	switch {
	case err != nil:
		return 0, err
	case c.err != nil:
		return 0, &net.OpError{Op: "read", Net: c.RemoteAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: c.err}
	case c.n == 0:
		return 0, io.EOF
	}
	c.ahead = c.space[:max(c.n-len(p), 0)]
	return min(c.n, len(p)), nil
}
