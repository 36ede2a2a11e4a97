package kvtransfer

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"
)

// DefaultMaxConnections is twice DefaultMaxStreams, of which each has a connection of
// its own: those of streams that are being ended need not keep others out.
const DefaultMaxConnections = 2 * DefaultMaxStreams

// refusalEvery is how often a Gate says at most that it refuses connections.
const refusalEvery = time.Minute

// Gate bounds the connections that the listeners of one receiver have open together.
// What is over the bound is accepted and closed at once. Left in the listener's queue,
// as netutil.LimitListener leaves it, it would look like a receiver that hangs: its
// sender would wait for its connect timeout and not go on to the ticket's next address.
// A sender for which there is no other takes the receiver to be out of reach.
// It is safe for concurrent use.
type Gate struct {
	most   int
	logger *slog.Logger

	mu      sync.Mutex
	open    int
	refused int // since that was last said
	said    time.Time
}

// NewGate is a gate for so many connections; 0: DefaultMaxConnections. That it refuses
// some is logged once a minute at most; logger may be nil.
func NewGate(connections int, logger *slog.Logger) *Gate {
	return &Gate{most: orDefault(connections, DefaultMaxConnections), logger: orDiscard(logger)}
}

// Limit is a listener whose connections count. Closing it closes l.
func (g *Gate) Limit(l net.Listener) net.Listener { return &limited{Listener: l, gate: g} }

// enter counts a connection, or says that there is no room for it.
func (g *Gate) enter() bool {
	g.mu.Lock()
	if g.open < g.most {
		g.open++
		g.mu.Unlock()
		return true
	}
	g.refused++
	refused, now := g.refused, time.Now()
	due := g.said.IsZero() || now.Sub(g.said) >= refusalEvery
	if due {
		g.refused, g.said = 0, now
	}
	g.mu.Unlock()
	if due {
		g.logger.LogAttrs(context.Background(), slog.LevelWarn, "kv connections are refused: there are as many as may be",
			slog.Int("open", g.most), slog.Int("refused", refused))
	}
	return false
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

// limited is a listener behind a gate.
type limited struct {
	net.Listener
	gate *Gate
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.gate.enter() {
			return &counted{Conn: c, leave: sync.OnceFunc(l.gate.leave)}, nil
		}
		_ = c.Close() // nobody has it
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
