package rpc

import (
	"cmp"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
)

// refusalEvery is the minimum interval between log lines about refused connections.
const refusalEvery = time.Minute

// ConnectionLimit bounds the open connections over all listeners of one server, whatever they
// carry; Limits do more for servers that strangers call. It is safe for concurrent use.
//
// For one connection too many, the one that has been in its handshake at a Server for longest is
// closed, so that strangers who open connections and stay silent keep nobody out. If none is, the
// new one is accepted and closed at once. If it stayed in the listener's queue, as with
// netutil.LimitListener, the caller would wait for its connect timeout instead of trying another
// address.
type ConnectionLimit struct {
	most   int
	by     string
	logger *slog.Logger
	count  func() // is called for each that is refused, or closed for another one; nil: nothing is

	mu          sync.Mutex
	open        int
	handshaking []*counted // in their handshake, the oldest first
	refusal     logthrottle.Throttle
}

// NewConnectionLimit returns a limit of so many connections, above 0. It logs refusals at most
// once a minute, with what set the limit, such as a flag. logger may be nil.
func NewConnectionLimit(connections int, by string, logger *slog.Logger) *ConnectionLimit {
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	return &ConnectionLimit{most: connections, by: by, logger: logger, refusal: logthrottle.Throttle{Every: refusalEvery}}
}

// Listener wraps inner so that its connections count. Closing it closes inner.
func (l *ConnectionLimit) Listener(inner net.Listener) net.Listener {
	return &limited{Listener: inner, limit: l}
}

// take counts a connection and returns it; nil: it is refused.
func (l *ConnectionLimit) take(conn net.Conn) *counted {
	taken := &counted{Conn: conn, limit: l}
	var refused *counted
	l.mu.Lock()
	if l.open >= l.most {
		refused = taken
		if len(l.handshaking) > 0 {
			refused = l.handshaking[0]
			l.leave(refused)
		}
	}
	if refused != taken {
		l.open++
	}
	l.mu.Unlock()
	if refused != nil {
		if l.count != nil {
			l.count()
		}
		_ = refused.Conn.Close() // nobody uses it
		l.logRefused()
	}
	if refused == taken {
		return nil
	}
	return taken
}

// leave gives back the place of a connection, once. mu is held.
func (l *ConnectionLimit) leave(c *counted) {
	if c.left {
		return
	}
	c.left = true
	l.open--
	l.handshaken(c)
}

// handshaken says that a connection is in no handshake any more. mu is held.
func (l *ConnectionLimit) handshaken(c *counted) {
	l.handshaking = slices.DeleteFunc(l.handshaking, func(other *counted) bool { return other == c })
}

// logRefused says at times how many connections were refused, or closed for another one.
func (l *ConnectionLimit) logRefused() {
	l.mu.Lock()
	unsaid, due := l.refusal.Due(time.Now())
	l.mu.Unlock()
	if due {
		l.logger.Warn("connections are refused: as many are open as there may be",
			slog.String("limit", l.by), slog.Int("open", l.most), slog.Int("refused", unsaid+1))
	}
}

type limited struct {
	net.Listener
	limit *ConnectionLimit
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if taken := l.limit.take(c); taken != nil {
			return taken, nil
		}
	}
}

// counted is a connection that gives back its place when closed.
type counted struct {
	net.Conn
	limit *ConnectionLimit
	left  bool // it has given its place back; under limit.mu
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer func() {
		c.limit.mu.Lock()
		defer c.limit.mu.Unlock()
		c.limit.leave(c)
	}()
	return c.Conn.Close()
}

// handshake says that the connection is in its handshake, until done is called.
func (c *counted) handshake() (done func()) {
	c.limit.mu.Lock()
	defer c.limit.mu.Unlock()
	if !c.left {
		c.limit.handshaking = append(c.limit.handshaking, c)
	}
	return func() {
		c.limit.mu.Lock()
		defer c.limit.mu.Unlock()
		c.limit.handshaken(c)
	}
}

// countedHandshakes tell a ConnectionLimit which connections are in their handshake.
type countedHandshakes struct {
	credentials.TransportCredentials
}

// ServerHandshake implements credentials.TransportCredentials.
func (h countedHandshakes) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c, is := raw.(*counted); is {
		defer c.handshake()()
	}
	return h.TransportCredentials.ServerHandshake(raw)
}

// Clone implements credentials.TransportCredentials.
func (h countedHandshakes) Clone() credentials.TransportCredentials {
	return countedHandshakes{h.TransportCredentials.Clone()}
}
