package rpc

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// refusalEvery is the minimum interval between log lines about refused connections.
const refusalEvery = time.Minute

// ConnectionLimit bounds the open connections over all listeners of one server, whatever they
// carry; Limits do more for servers that strangers call. It is safe for concurrent use.
//
// Connections over the bound are accepted and closed at once. If they stayed in the
// listener's queue, as with netutil.LimitListener, the caller would wait for its connect
// timeout instead of trying another address.
type ConnectionLimit struct {
	most   int
	by     string
	logger *slog.Logger

	mu      sync.Mutex
	open    int
	refused int // since the last log line
	said    time.Time
}

// NewConnectionLimit returns a limit of so many connections, above 0. It logs refusals at most
// once a minute, with what set the limit, such as a flag. logger may be nil.
func NewConnectionLimit(connections int, by string, logger *slog.Logger) *ConnectionLimit {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	return &ConnectionLimit{most: connections, by: by, logger: logger}
}

// Listener wraps inner so that its connections count. Closing it closes inner.
func (l *ConnectionLimit) Listener(inner net.Listener) net.Listener {
	return &limited{Listener: inner, limit: l}
}

// acquire counts a connection, or returns false at the limit.
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
		l.logger.LogAttrs(context.Background(), slog.LevelWarn, "connections are refused: as many are open as there may be",
			slog.String("limit", l.by), slog.Int("open", l.most), slog.Int("refused", refused))
	}
	return false
}

func (l *ConnectionLimit) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
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
		if l.limit.acquire() {
			return &counted{Conn: c, release: sync.OnceFunc(l.limit.release)}, nil
		}
		_ = c.Close() // nobody uses it
	}
}

// counted is a connection that releases its place when closed.
type counted struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}
