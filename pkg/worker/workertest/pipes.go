package workertest

import (
	"context"
	"net"
	"sync"
)

// pipes is a listener whose connections are net.Pipe. gRPC's bufconn makes four timers
// for each connection, and Go's race detector crashes on many of them in one synctest
// bubble (SIGSEGV in runtime.(*timer).modify); a Pipe makes one only where a deadline is set.
type pipes struct {
	accepted chan net.Conn
	once     sync.Once
	closed   chan struct{}
}

func newPipes() *pipes { return &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})} }

// DialContext waits until the other end is accepted.
func (p *pipes) DialContext(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.accepted <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return pipeAddress{} }

type pipeAddress struct{}

func (pipeAddress) Network() string { return "pipe" }
func (pipeAddress) String() string  { return "pipe" }
