//go:build !linux || race

package transport

import (
	"bufio"
	"net"
)

// aheadBytes is the size of a connection's read buffer.
const aheadBytes = 64 << 10

// conn is a connection that reads ahead, by way of a buffer: where the system has no
// call for it, and where the race detector would not understand one.
type conn struct {
	net.Conn
	reader *bufio.Reader
}

func readAhead(c net.Conn) net.Conn {
	return &conn{Conn: c, reader: bufio.NewReaderSize(c, aheadBytes)}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) { return c.reader.Read(p) }
