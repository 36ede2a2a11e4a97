package rpc

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/trywrite"
)

// meteredConn is an HTTP/2 connection that knows what its calls hold: it looks at the
// headers of the frames that pass. grpc-go says nothing of a message before it has
// all of it, nor of one after it was queued, and what a client has sent or not read
// by then is the client's to choose.
//
// grpc-go reads from it without a buffer of its own, so that what was handed out is
// what grpc-go has taken in: during its tap, the last frame of headers is the call's.
type meteredConn struct {
	net.Conn
	limiter  *limiter
	buffered *bufio.Reader
	try      *trywrite.Writer // nil: trywrite.New gives none, or it is encrypted
	in       frames           // of the goroutine that reads
	out      frames           // of the goroutine that writes
	begun    uint32           // the stream whose headers were handed out last

	mu         sync.Mutex
	closed     bool
	calls      map[uint32]*meteredCall // by stream
	idleSince  time.Time               // when one ended last, or it began
	receiving  int64                   // bytes of calls that were not ended
	endedBytes int64                   // of those that were
	sending    int64
}

const (
	// readBufferBytes suits requests, which are mostly small: each connection has such a buffer
	// for as long as it lasts. Longer reads pass it by.
	readBufferBytes = 1 << 10
	// prefaceBytes is the length of what a client sends before its first frame.
	prefaceBytes = 24
)

// newMeteredConn meters a connection; plain: what is written is what is sent, so that it may be
// written to the operating system directly.
func newMeteredConn(conn net.Conn, plain bool, l *limiter) *meteredConn {
	var try *trywrite.Writer
	if plain {
		try = trywrite.New(conn)
	}
	return &meteredConn{
		Conn: conn, limiter: l, try: try, buffered: bufio.NewReaderSize(conn, readBufferBytes), in: frames{skip: prefaceBytes},
		calls: make(map[uint32]*meteredCall), idleSince: time.Now(),
	}
}

// Read reads what the client sent.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.buffered.Read(p)
	over := false
	c.in.scan(p[:n], func(f frame) {
		switch f.kind {
		case frameHeaders:
			c.begun = f.stream
		case frameData:
			over = c.came(f) || over
		case frameReset:
			c.remove(f.stream)
		}
	})
	if over {
		c.limiter.relieve()
	}
	return n, err
}

// Write writes what the client is to read.
func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.write(p)
	c.out.scan(p[:n], func(f frame) {
		switch {
		case f.kind == frameData:
			c.went(f)
		case f.kind == frameReset, f.kind == frameHeaders && f.flags&flagEndStream != 0:
			c.remove(f.stream)
		}
	})
	return n, err
}

// write writes p, without waiting if it can.
func (c *meteredConn) write(p []byte) (n int, err error) {
	if c.try != nil {
		if n, err = c.try.Write(p); err != nil || n == len(p) {
			return n, err
		}
	}
	rest, err := c.Conn.Write(p[n:])
	return n + rest, err
}

// Close closes the connection and forgets its calls.
func (c *meteredConn) Close() error {
	c.mu.Lock()
	c.closed = true
	for stream := range c.calls {
		c.removeLocked(stream)
	}
	c.mu.Unlock()
	c.limiter.leave(c)
	return c.Conn.Close()
}

// idle is since when the connection has had no calls. Those of health and reflection are none:
// anybody may watch the health, for ever.
func (c *meteredConn) idle() (since time.Time, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.calls {
		if !call.infrastructure {
			return c.idleSince, false
		}
	}
	return c.idleSince, true
}

// add begins the call whose headers were handed out last.
func (c *meteredConn) add(call *meteredCall) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.calls[c.begun] = call
	c.count(call, call.held)
	call.timer = time.AfterFunc(c.limiter.limits.ReceiveTimeout, call.check)
	return true
}

// count adds to what a call holds until it is answered; mu is held.
func (c *meteredConn) count(call *meteredCall, bytes int64) {
	if call.ended != nil {
		c.endedBytes += bytes
		c.limiter.ended.Add(bytes)
		return
	}
	c.receiving += bytes
	c.limiter.receiving.Add(bytes)
}

// countSending adds to what waits until it is read; mu is held.
func (c *meteredConn) countSending(call *meteredCall, bytes int64) {
	call.sending += bytes
	c.sending += bytes
	c.limiter.sending.Add(bytes)
}

// came notes a frame of data from the client, and says whether the limits have to be
// looked at.
func (c *meteredConn) came(f frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[f.stream]
	if call == nil {
		return false // grpc-go drops it
	}
	call.inBytes += int64(f.bytes)
	bytes := pooled(f.bytes) + frameBytes
	call.inWeight += bytes
	c.count(call, bytes)
	return true
}

// pooled is the memory that grpc-go puts a frame of so many bytes into.
func pooled(bytes int) int64 {
	switch {
	case bytes <= 1<<10:
		return int64(bytes)
	case bytes <= 4<<10:
		return 4 << 10
	}
	return max(16<<10, int64(bytes))
}

// went notes a frame of data to the client.
func (c *meteredConn) went(f frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	call := c.calls[f.stream]
	if call == nil {
		return
	}
	before := call.outBytes
	call.outBytes = max(0, before-int64(f.bytes))
	call.moved = true
	left := int64(0)
	if before > 0 {
		left = call.sending * call.outBytes / before
	}
	c.countSending(call, left-call.sending)
}

// remove forgets a call that is over.
func (c *meteredConn) remove(stream uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(stream)
}

func (c *meteredConn) removeLocked(stream uint32) {
	call := c.calls[stream]
	if call == nil {
		return
	}
	delete(c.calls, stream)
	if !call.infrastructure {
		c.idleSince = time.Now()
	}
	c.count(call, -call.weight())
	c.countSending(call, -call.sending)
	call.gone = true
	call.timer.Stop()
	call.cancel(nil) // the call's own context ended before
}

// endLargest ends the call that holds most; false if there is none to end.
func (c *meteredConn) endLargest(why error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	var largest *meteredCall
	for _, call := range c.calls {
		if call.ended == nil && call.weight() > 0 && (largest == nil || call.weight() > largest.weight()) {
			largest = call
		}
	}
	if largest == nil {
		return false
	}
	largest.end(why)
	return true
}

// meteredCall is one call on a meteredConn. Its fields are under the connection's mu;
// a nil one does nothing.
type meteredCall struct {
	conn           *meteredConn
	cancel         context.CancelCauseFunc
	interrupted    chan struct{} // closed if the call is ended before its message is there
	infrastructure bool          // health or reflection: they count for as long as they last
	timer          *time.Timer

	held     int64 // headers, the call itself, and its message once it is decoded
	inBytes  int64 // received and not taken in
	inWeight int64 // the same with what they take in memory
	outBytes int64 // queued and not written
	sending  int64 // the same with what they take in memory
	moved    bool  // since the last check something was written, or began to wait for that
	received bool  // the first message is whole
	answered bool  // what it holds is the service's matter
	gone     bool
	ended    error // the status that limits ended it with
}

// weight is what the call holds until it is answered.
func (m *meteredCall) weight() int64 { return m.held + m.inWeight }

// end ends the call by the end of its context; mu is held.
func (m *meteredCall) end(why error) {
	if m.ended != nil || m.gone {
		return
	}
	m.conn.count(m, -m.weight())
	m.ended = why
	m.conn.count(m, m.weight())
	if m.received {
		m.cancel(why)
		return
	}
	// grpc-go would say CANCELLED to the client itself.
	close(m.interrupted)
}

// isFirst says whether the first message is still to come.
func (m *meteredCall) isFirst() bool {
	if m == nil {
		return false
	}
	m.conn.mu.Lock()
	defer m.conn.mu.Unlock()
	return !m.received
}

// first runs receive, which receives the call's first message, and returns early if
// the call is ended meanwhile: receive then ends soon after the call does.
func (m *meteredCall) first(receive func() error) error {
	done := make(chan error, 1)
	go func() { done <- receive() }()
	select {
	case err := <-done:
		if err == nil {
			m.begins()
		}
		return err
	case <-m.interrupted:
		return m.why()
	}
}

// begins says that the first message is there, and the service may begin.
func (m *meteredCall) begins() {
	m.conn.mu.Lock()
	defer m.conn.mu.Unlock()
	if m.gone {
		return
	}
	m.received = true
	if m.ended != nil { // at this moment
		m.cancel(m.ended)
		return
	}
	m.timer.Reset(m.conn.limiter.limits.SendTimeout)
}

// why is the status that the call was ended with by limits; nil: it was not.
func (m *meteredCall) why() error {
	if m == nil {
		return nil
	}
	m.conn.mu.Lock()
	defer m.conn.mu.Unlock()
	return m.ended
}

// tookIn says that a message was decoded that was so long, and takes so much memory.
func (m *meteredCall) tookIn(wireBytes, decodedBytes int) {
	if m == nil {
		return
	}
	const prefix = 5 // of a message, as gRPC frames it
	c := m.conn
	c.mu.Lock()
	defer c.relieveUnlocked()
	if m.gone {
		return
	}
	left := max(0, m.inBytes-int64(wireBytes)-prefix)
	weight := int64(0)
	if m.inBytes > 0 {
		weight = m.inWeight * left / m.inBytes
	}
	c.count(m, weight-m.inWeight)
	m.inBytes, m.inWeight = left, weight
	if !m.answered {
		m.held += int64(decodedBytes)
		c.count(m, int64(decodedBytes))
	}
}

// relieveUnlocked unlocks mu and looks at the limits.
func (c *meteredConn) relieveUnlocked() {
	c.mu.Unlock()
	c.limiter.relieve()
}

// answers says that the service has answered; mu is held.
func (m *meteredCall) answers() {
	if m.gone || m.answered || m.infrastructure {
		return
	}
	m.answered = true
	m.conn.count(m, -m.held)
	m.held = 0
}

// queued says that a message of so many bytes is to be sent.
func (m *meteredCall) queued(bytes int) {
	if m == nil {
		return
	}
	c := m.conn
	c.mu.Lock()
	defer c.relieveUnlocked()
	if m.gone {
		return
	}
	m.answers()
	m.moved = m.moved || m.outBytes == 0
	m.outBytes += int64(bytes) + 5
	c.countSending(m, int64(bytes)+messageBytes)
}

// Unsent returns a function that tells how many bytes of the messages of a context's call wait
// to be written; nil: nobody knows, since the server has no Limits. SendMsg does not block while
// they are fewer than NeverBlocks.
func Unsent(ctx context.Context) func() (bytes int64) {
	m := callOf(ctx)
	if m == nil {
		return nil
	}
	return func() int64 {
		m.conn.mu.Lock()
		defer m.conn.mu.Unlock()
		return m.outBytes
	}
}

// NeverBlocks is well below the 64 KiB of a call that grpc-go queues before SendMsg waits.
const NeverBlocks = 16 << 10

// check is called when the call's timer fires.
func (m *meteredCall) check() {
	c := m.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	limits := c.limiter.limits
	switch {
	case m.gone || m.ended != nil:
		return
	case !m.received:
		c.limiter.metrics.endedSlow.Inc()
		m.end(Errorf(codes.DeadlineExceeded, api.ReasonReceiveTimeout, "the request did not arrive within %s: send it faster", limits.ReceiveTimeout))
		return
	case m.outBytes > 0 && !m.moved:
		c.limiter.metrics.endedUnread.Inc()
		m.end(Errorf(codes.ResourceExhausted, api.ReasonNotRead, "the client has read nothing for %s: read the answer as it arrives", limits.SendTimeout))
		return
	}
	m.moved = false
	m.timer.Reset(limits.SendTimeout)
}
