package rpc

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"

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
	control    int       // frames without a call, less those that time has forgiven
	controlAt  time.Time // when control was right
}

const (
	// readBufferBytes suits requests, which are mostly small: each connection has such a buffer
	// for as long as it lasts. Longer reads pass it by.
	readBufferBytes = 1 << 10
	// prefaceBytes is the length of what a client sends before its first frame.
	prefaceBytes = 24

	// controlFrames is how many frames that belong to no call may come at a time while a connection has none, and
	// controlFramesPerSecond how many for long. Clients send a few to begin with, pings, and up to controlFramesBack
	// for each frame of an answer, which may have ended its call by then.
	controlFrames          = 1000
	controlFramesPerSecond = 50
	controlFramesBack      = 4
)

// errFlood ends a connection that sends frames and has no call.
var errFlood = errors.New("too many frames without a call")

// newMeteredConn meters a connection; plain: what is written is what is sent, so that it may be
// written to the operating system directly.
func newMeteredConn(conn net.Conn, plain bool, l *limiter) *meteredConn {
	var try *trywrite.Writer
	if plain {
		try = trywrite.New(conn)
	}
	return &meteredConn{
		Conn: conn, limiter: l, try: try, buffered: bufio.NewReaderSize(conn, readBufferBytes), in: frames{skip: prefaceBytes},
		calls: make(map[uint32]*meteredCall), idleSince: time.Now(), controlAt: time.Now(),
	}
}

// Read reads what the client sent.
func (c *meteredConn) Read(p []byte) (int, error) {
	n, err := c.buffered.Read(p)
	over, flood := false, false
	c.in.scan(p[:n], func(f frame) {
		switch f.kind {
		case frameHeaders:
			c.begun = f.stream
		case frameData:
			over = c.came(f) || over
		case frameReset:
			c.remove(f.stream)
		default:
			flood = c.floods() || flood
		}
	})
	if flood {
		c.limiter.metrics.closedFlood.Inc()
		_ = c.Close()
		return 0, errFlood
	}
	if over {
		c.limiter.relieve()
	}
	return n, err
}

// floods notes a frame that belongs to no call, and says whether there were too many while the connection had
// none.
func (c *meteredConn) floods() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy() {
		return false
	}
	now := time.Now()
	forgiven := int(now.Sub(c.controlAt).Seconds() * controlFramesPerSecond)
	if c.control -= forgiven; c.control <= 0 {
		c.control, c.controlAt = 0, now
	} else {
		c.controlAt = c.controlAt.Add(time.Duration(forgiven) * time.Second / controlFramesPerSecond)
	}
	c.control++
	return c.control > controlFrames
}

// Write writes what the client is to read.
func (c *meteredConn) Write(p []byte) (int, error) {
	n, err := c.write(p)
	c.out.scan(p[:n], func(f frame) {
		switch {
		case f.kind == frameData:
			c.went(f)
		case f.kind == frameHeaders && f.flags&flagEndStream != 0:
			c.ended(f)
		case f.kind == frameReset:
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
	return c.idleSince, !c.busy()
}

// busy is the opposite of idle; mu is held.
func (c *meteredConn) busy() bool {
	for _, call := range c.calls {
		if !call.infrastructure {
			return true
		}
	}
	return false
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
	c.control = max(c.control-controlFramesBack, 0)
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

// ended notes the last frame to the client of a call.
func (c *meteredConn) ended(f frame) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.control = max(c.control-controlFramesBack, 0)
	c.removeLocked(f.stream)
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

// relieveUnlocked unlocks mu and looks at the limits.
func (c *meteredConn) relieveUnlocked() {
	c.mu.Unlock()
	c.limiter.relieve()
}
