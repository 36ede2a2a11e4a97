//go:build !linux || race

package transport

import (
	"bufio"
	"net"
)

// aheadBytes is the size of a connection's read buffer.
const aheadBytes = 64 << 10

// conn reads ahead through a buffer, for systems without readv and for the race detector,
// which does not understand readv.
type conn struct {
	net.Conn
	reader *bufio.Reader
}

func readAhead(c net.Conn) net.Conn {
	return &conn{Conn: c, reader: bufio.NewReaderSize(c, aheadBytes)}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.reader.Read(p) }
