package mesh

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// connections bounds the connections of an HTTP server. It is safe for concurrent use.
type connections struct {
	most int
	by   string // what allows no more

	mu    sync.Mutex
	since map[net.Conn]time.Time // without a request; the zero time: with one
}

func newConnections(most int, by string) *connections {
	return &connections{most: most, by: by, since: make(map[net.Conn]time.Time)}
}

// refusedConnection is what one too many is told, with what allows no more.
const refusedConnection = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 1\r\nConnection: close\r\n\r\n" +
	"too many connections: %s allows no more\n"

// state is an http.Server's ConnState. For one connection too many, the one that has
// been without a request for longest is closed; if all have one, the new one is
// refused. It is called by who accepts, so it must not wait.
func (c *connections) state(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.since) >= c.most && !c.closeLongest() {
			// Where TLS is, to say anything would wait for the client's part of the handshake, and
			// nobody else would be accepted meanwhile.
			if _, encrypted := conn.(*tls.Conn); !encrypted {
				_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
				_, _ = fmt.Fprintf(conn, refusedConnection, c.by)
			}
			closeAtOnce(conn)
			return
		}
		c.since[conn] = time.Now()
	case http.StateActive:
		if _, known := c.since[conn]; known {
			c.since[conn] = time.Time{}
		}
	case http.StateIdle:
		if _, known := c.since[conn]; known {
			c.since[conn] = time.Now()
		}
	case http.StateHijacked, http.StateClosed:
		delete(c.since, conn)
	}
}

// closeLongest closes the connection that has been without a request for longest;
// false if all have one. mu is held.
func (c *connections) closeLongest() bool {
	var longest net.Conn
	for conn, since := range c.since {
		if !since.IsZero() && (longest == nil || since.Before(c.since[longest])) {
			longest = conn
		}
	}
	if longest == nil {
		return false
	}
	delete(c.since, longest)
	closeAtOnce(longest)
	return true
}

// closeAtOnce closes a connection. TLS would say that first, and wait for a client that reads nothing.
func closeAtOnce(conn net.Conn) {
	if encrypted, is := conn.(*tls.Conn); is {
		conn = encrypted.NetConn()
	}
	_ = conn.Close()
}
