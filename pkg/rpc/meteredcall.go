package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
)

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
