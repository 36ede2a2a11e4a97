package integration_test

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// lasting is a subtest in which something is started that outlives it: what cannot go
// on fails the subtest, and all that comes later is its test's.
type lasting struct {
	testing.TB
	whole testing.TB
}

func (l lasting) Cleanup(f func())               { l.whole.Cleanup(f) }
func (l lasting) TempDir() string                { return l.whole.TempDir() }
func (l lasting) Failed() bool                   { return l.whole.Failed() }
func (l lasting) Logf(format string, a ...any)   { l.whole.Logf(format, a...) }
func (l lasting) Errorf(format string, a ...any) { l.whole.Errorf(format, a...) }

// part is a worker or a router in this process that can die as a process does: all
// its connections end at once, and nobody is told why.
type part struct {
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu        sync.Mutex
	dead      bool
	leaves    error // what it may end with by itself
	conns     map[net.Conn]bool
	listeners []net.Listener
	servers   []*rpc.Server
}

func newPart(t testing.TB) *part {
	p := &part{conns: map[net.Conn]bool{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	t.Cleanup(p.kill)
	return p
}

// serve serves on an address of its own, which it returns.
func (p *part) serve(t testing.TB, server *rpc.Server) string {
	t.Helper()
	listener, address := faultstest.Listen(t, faultstest.Address(t, "tcp"))
	p.serveOn(listener, server)
	return address
}

// serveKV is serve over a network for a server of kvtransfer.Serving.
func (p *part) serveKV(t testing.TB, network string, server *rpc.Server) string {
	t.Helper()
	listener, address := listenKV(t, network)
	p.serveOn(listener, server)
	return address
}

func (p *part) serveOn(listener net.Listener, server *rpc.Server) {
	p.mu.Lock()
	p.listeners, p.servers = append(p.listeners, listener), append(p.servers, server)
	p.mu.Unlock()
	p.tasks.Go(func() { _ = server.Serve(ownListener{listener, p}) }) // ends with kill
}

// servePages passes the descriptor of pages until the part dies.
func (p *part) servePages(t testing.TB, listener *net.UnixListener, serve func(context.Context, *net.UnixListener) error) {
	p.mu.Lock()
	p.listeners = append(p.listeners, listener)
	p.mu.Unlock()
	p.run(t, func(ctx context.Context) error { return serve(ctx, listener) })
}

// run runs something until the part dies.
func (p *part) run(t testing.TB, what func(context.Context) error) {
	p.tasks.Go(func() {
		err := what(p.ctx)
		p.mu.Lock()
		expected := p.leaves != nil && errors.Is(err, p.leaves)
		p.mu.Unlock()
		if err != nil && !expected {
			t.Errorf("a part ended with %v", err)
		}
	})
}

// mayLeave lets the part end by itself with an error.
func (p *part) mayLeave(with error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaves = with
}

// dial connects as rpc.Dial does, over connections that end with the part.
func (p *part) dial(address string, cfg rpc.ClientConfig) (*grpc.ClientConn, error) {
	connect := cfg.Dialer
	if connect == nil {
		connect = func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}
	}
	cfg.Dialer = func(ctx context.Context, address string) (net.Conn, error) { return p.own(connect(ctx, address)) }
	return rpc.Dial(address, cfg)
}

// kill ends the part, and then clears up what a dead process does not leave.
func (p *part) kill() {
	p.mu.Lock()
	p.dead = true
	for _, l := range p.listeners {
		_ = l.Close()
	}
	for c := range p.conns {
		_ = c.Close()
	}
	servers := p.servers
	p.servers = nil
	p.mu.Unlock()
	p.cancel()
	for _, s := range servers {
		ended, now := context.WithCancel(context.Background())
		now()
		_ = s.Stop(ended) // it says that calls were cut off
	}
	p.tasks.Wait()
}

// own takes a connection for the part's.
func (p *part) own(conn net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		_ = conn.Close()
		return nil, errors.New("the part is dead")
	}
	owned := ownConn{conn, p}
	p.conns[owned] = true
	return owned, nil
}

type ownListener struct {
	net.Listener
	part *part
}

func (l ownListener) Accept() (net.Conn, error) { return l.part.own(l.Listener.Accept()) }

type ownConn struct {
	net.Conn
	part *part
}

func (c ownConn) Close() error {
	// kill closes it with the lock held.
	go func() {
		c.part.mu.Lock()
		defer c.part.mu.Unlock()
		delete(c.part.conns, c)
	}()
	return c.Conn.Close()
}

// gate holds up an engine: it is simulated.Config.Wait. It begins open.
type gate struct {
	mu      sync.Mutex
	passes  int // before it is shut
	shut    bool
	blocked chan struct{} // closed when somebody waits
	opened  chan struct{}
}

// close lets so many layers or steps pass and then no more. What it returns is
// closed when something waits.
func (g *gate) close(passes int) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.passes = true, passes
	g.blocked, g.opened = make(chan struct{}), make(chan struct{})
	return g.blocked
}

// open lets everything pass.
func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		g.shut = false
		close(g.opened)
	}
}

func (g *gate) wait(ctx context.Context, d time.Duration) error {
	g.mu.Lock()
	shut, opened := g.shut && g.passes == 0, g.opened
	if shut {
		select {
		case <-g.blocked:
		default:
			close(g.blocked)
		}
	} else if g.shut {
		g.passes--
	}
	g.mu.Unlock()
	if shut {
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
