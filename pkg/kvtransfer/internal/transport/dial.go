package transport

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/tandem-serving/tandem/pkg/api"
)

const (
	// loopbackBytes is the requested send buffer of a TCP connection within this machine;
	// Linux doubles it. Bytes in flight need not fill a network but should fit into a
	// cache.
	loopbackBytes = 256 << 10
	// unixBytes is the same for Unix sockets, whose default is so small that sender and
	// receiver wait for each other.
	unixBytes = 1 << 20
)

// Dial connects to "host:port" or "unix:///path".
func Dial(ctx context.Context, address string) (net.Conn, error) {
	var dialer net.Dialer
	if path, ok := strings.CutPrefix(address, api.UnixScheme); ok {
		c, err := dialer.DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		return limit(c, unixBytes)
	}
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if !isLocal(c) {
		return c, nil
	}
	return limit(c, loopbackBytes)
}

// isLocal reports whether both ends of a TCP connection are on this machine.
func isLocal(c net.Conn) bool {
	local, isTCP := c.LocalAddr().(*net.TCPAddr)
	remote, _ := c.RemoteAddr().(*net.TCPAddr)
	return isTCP && remote != nil && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP))
}

func limit(c net.Conn, bytes int) (net.Conn, error) {
	if buffered, ok := c.(interface{ SetWriteBuffer(bytes int) error }); ok {
		if err := buffered.SetWriteBuffer(bytes); err != nil {
			_ = c.Close()
			return nil, fmt.Errorf("size the send buffer: %w", err)
		}
	}
	return c, nil
}
