package kvtransfer

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// DefaultMaxConnections is twice DefaultMaxStreams, of which each has a connection of
// its own: those of streams that are being ended need not keep others out.
const DefaultMaxConnections = 2 * DefaultMaxStreams

// refusalEvery is how often a ConnectionLimit says at most that it refuses connections.
const refusalEvery = time.Minute

// ConnectionLimit bounds the connections that the listeners of one receiver have open
// together.
// What is over the bound is accepted and closed at once. Left in the listener's queue,
// as netutil.LimitListener leaves it, it would look like a receiver that hangs: its
// sender would wait for its connect timeout and not go on to the ticket's next address.
// A sender for which there is no other takes the receiver to be out of reach.
// It is safe for concurrent use.
type ConnectionLimit struct {
	most   int
	logger *slog.Logger

	mu      sync.Mutex
	open    int
	refused int // since that was last said
	said    time.Time
}

// NewConnectionLimit allows so many connections; 0: DefaultMaxConnections. That it refuses
// some is logged once a minute at most; logger may be nil.
func NewConnectionLimit(connections int, logger *slog.Logger) *ConnectionLimit {
	return &ConnectionLimit{most: cmp.Or(connections, DefaultMaxConnections), logger: orDiscard(logger)}
}

// Listener is one whose connections count. Closing it closes inner.
func (l *ConnectionLimit) Listener(inner net.Listener) net.Listener {
	return &limited{Listener: inner, limit: l}
}

// acquire counts a connection, or says that it is one too many.
func (l *ConnectionLimit) acquire() bool {
	l.mu.Lock()
	if l.open < l.most {
		l.open++
		l.mu.Unlock()
		return true
	}
	l.refused++
	refused, now := l.refused, time.Now()
	due := l.said.IsZero() || now.Sub(l.said) >= refusalEvery
	if due {
		l.refused, l.said = 0, now
	}
	l.mu.Unlock()
	if due {
		l.logger.LogAttrs(context.Background(), slog.LevelWarn, "kv connections are refused: the limit, --kv-max-connections, is reached",
			slog.Int("open", l.most), slog.Int("refused", refused))
	}
	return false
}

func (l *ConnectionLimit) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
}

// limited is a listener below a limit.
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
		if l.limit.acquire() {
			return &counted{Conn: c, release: sync.OnceFunc(l.limit.release)}, nil
		}
		_ = c.Close() // nobody has it
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
