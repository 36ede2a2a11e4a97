package rpc

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Limits bound what strangers can make a server hold. They are for the servers that
// clients reach; a server without them trusts its peers. See Server for what counts.
type Limits struct {
	// ReceiveBytes bounds what all calls hold until they are answered: headers, what
	// has come of messages, and messages as they are in memory once they are decoded.
	// When it is exceeded, calls are ended with RESOURCE_EXHAUSTED until it is kept:
	// the largest one of the connection that holds most, and so on. 0: no limits of
	// any kind.
	ReceiveBytes int64
	// SendBytes bounds what waits in all connections until clients read it. When it
	// is exceeded, the connection that holds most is closed. 0: as ReceiveBytes.
	SendBytes int64
	// ReceiveTimeout is how long the first message of a call may take to come. A call
	// that exceeds it ends with DEADLINE_EXCEEDED. 0: DefaultReceiveTimeout.
	ReceiveTimeout time.Duration
	// SendTimeout is how long a client may read nothing of what waits for it. Its
	// call is then ended with RESOURCE_EXHAUSTED, at the latest after twice as long.
	// 0: DefaultSendTimeout.
	SendTimeout time.Duration
	// Connections is the most at a time. For one more, the one that has been without
	// calls for longest is closed; if all have calls, the new one is refused. Calls of
	// health and reflection do not count. With those in their handshake, which takes
	// 10 s at most, twice as many may be open; for one more, the oldest of these is closed. 0:
	// DefaultConnections.
	Connections int
	// ConnectionsBy is what set Connections, such as a flag, for people. Empty: the server's name.
	ConnectionsBy string
}

// Defaults of Limits.
const (
	DefaultReceiveTimeout = 30 * time.Second
	DefaultSendTimeout    = 30 * time.Second
	DefaultConnections    = 2048
)

const (
	// callBytes is about what a call takes beside its headers: its goroutine's stack
	// and grpc-go's records of it.
	callBytes = 8 << 10
	// frameBytes is about what grpc-go keeps with each frame that it has received,
	// and messageBytes with each message that is to be sent.
	frameBytes   = 64
	messageBytes = 256
)

// withDefaults fills in what is zero.
func (l Limits) withDefaults() Limits {
	l.SendBytes = cmp.Or(l.SendBytes, l.ReceiveBytes)
	l.ReceiveTimeout = cmp.Or(l.ReceiveTimeout, DefaultReceiveTimeout)
	l.SendTimeout = cmp.Or(l.SendTimeout, DefaultSendTimeout)
	l.Connections = cmp.Or(l.Connections, DefaultConnections)
	return l
}

// limiter keeps Limits: it knows all connections, and they know their calls. Lock
// order: limiter.relieving, limiter.mu, then one connection's mu.
type limiter struct {
	limits  Limits
	metrics *limitMetrics

	receiving atomic.Int64 // bytes of calls that were not ended
	ended     atomic.Int64 // bytes of calls that were, and are still there
	sending   atomic.Int64
	relieving sync.Mutex

	mu          sync.Mutex
	connections map[*meteredConn]struct{}
}

func newLimiter(limits Limits, metrics *limitMetrics) *limiter {
	return &limiter{limits: limits.withDefaults(), metrics: metrics, connections: make(map[*meteredConn]struct{})}
}

// admit takes in a connection, or says that it has to be refused; plain is as for newMeteredConn.
func (l *limiter) admit(conn net.Conn, plain bool) (*meteredConn, bool) {
	c := newMeteredConn(conn, plain, l)
	l.mu.Lock()
	var longest *meteredConn
	if len(l.connections) >= l.limits.Connections {
		var since time.Time
		for other := range l.connections {
			if at, idle := other.idle(); idle && (longest == nil || at.Before(since)) {
				longest, since = other, at
			}
		}
		if longest == nil {
			l.mu.Unlock()
			l.metrics.refused.Inc()
			return nil, false
		}
		delete(l.connections, longest)
	}
	l.connections[c] = struct{}{}
	l.mu.Unlock()
	if longest != nil {
		l.metrics.closedIdle.Inc()
		_ = longest.Close()
	}
	return c, true
}

// leave forgets a connection.
func (l *limiter) leave(c *meteredConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.connections, c)
}

// count is how many connections there are.
func (l *limiter) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.connections)
}

// begin is grpc-go's tap: it is called with each call whose headers have come, from
// the goroutine that reads its connection and before the next frame is read, and
// returns the context of the call.
func (l *limiter) begin(ctx context.Context, info *tap.Info) (context.Context, error) {
	p, _ := peer.FromContext(ctx)
	auth, ok := p.AuthInfo.(meteredAuth)
	if !ok {
		return ctx, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &meteredCall{
		conn: auth.conn, cancel: cancel, interrupted: make(chan struct{}), held: callBytes + sizeOf(info.Header),
		infrastructure: isInfrastructure(info.FullMethodName),
	}
	if !auth.conn.add(c) {
		err := Error(codes.Unavailable, api.ReasonReceiveMemory, "the connection is closed", 0)
		cancel(err)
		return ctx, err
	}
	l.relieve()
	return context.WithValue(ctx, callKey{}, c), nil
}

// sizeOf is what headers take.
func sizeOf(header metadata.MD) int64 {
	const each = 64 // of a name in the map, and of a value in its list
	var n int64
	for name, values := range header {
		n += each + int64(len(name))
		for _, v := range values {
			n += each/4 + int64(len(v))
		}
	}
	return n
}

// callKey is the context key of a *meteredCall.
type callKey struct{}

// callOf is the call of a context; nil without Limits, and its methods take that.
func callOf(ctx context.Context) *meteredCall {
	c, _ := ctx.Value(callKey{}).(*meteredCall)
	return c
}

// relieve ends calls, and closes connections, until the limits are kept. Its caller
// holds no lock of this package.
func (l *limiter) relieve() {
	if !l.exceeded() {
		return
	}
	// One at a time: another would end more than has to be.
	l.relieving.Lock()
	defer l.relieving.Unlock()
	full := Error(codes.ResourceExhausted, api.ReasonReceiveMemory,
		fmt.Sprintf("the %d MiB for incoming requests are full: try again", l.limits.ReceiveBytes>>20), time.Second)
	for l.receiving.Load() > l.limits.ReceiveBytes {
		c := l.most(func(c *meteredConn) int64 { return c.receiving })
		if c == nil || !c.endLargest(full) {
			break // what is left is on its way out
		}
		l.metrics.endedMemory.Inc()
	}
	// A client that goes on sending to calls that were ended, and does not take note.
	for l.ended.Load() > l.limits.ReceiveBytes {
		if !l.closeMost(func(c *meteredConn) int64 { return c.endedBytes }) {
			break
		}
	}
	for l.sending.Load() > l.limits.SendBytes {
		if !l.closeMost(func(c *meteredConn) int64 { return c.sending }) {
			break
		}
	}
}

// exceeded says whether a limit is.
func (l *limiter) exceeded() bool {
	return l.receiving.Load() > l.limits.ReceiveBytes || l.ended.Load() > l.limits.ReceiveBytes || l.sending.Load() > l.limits.SendBytes
}

// most is the connection with the most of what of counts under the connection's mu;
// nil if none has any.
func (l *limiter) most(of func(*meteredConn) int64) *meteredConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	var most *meteredConn
	var bytes int64
	for c := range l.connections {
		c.mu.Lock()
		n := of(c)
		c.mu.Unlock()
		if n > bytes {
			most, bytes = c, n
		}
	}
	return most
}

// closeMost closes the connection that has the most, if any has some.
func (l *limiter) closeMost(of func(*meteredConn) int64) bool {
	c := l.most(of)
	if c == nil {
		return false
	}
	l.metrics.closedMemory.Inc()
	_ = c.Close()
	return true
}
