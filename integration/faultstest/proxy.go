package faultstest

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Proxy carries the connections of senders to one receiver. Its methods are safe
// for concurrent use.
type Proxy struct {
	address  string
	listener net.Listener
	tasks    sync.WaitGroup

	mu      sync.Mutex
	target  string
	links   map[*link]bool
	holds   []*Hold
	flip    *Flip
	watch   func(d Direction, frame []byte, ended []string)
	silence chan struct{} // not nil: nothing passes until it is closed
	rate    int           // bytes a second; 0: no limit
	closed  bool
}

// link is one connection through a proxy.
type link struct {
	conns  [2]net.Conn // by the direction that it is written in
	broken chan struct{}
	once   sync.Once
}

func (l *link) cut() {
	l.once.Do(func() {
		close(l.broken)
		for _, c := range l.conns {
			_ = c.Close()
		}
	})
}

// Transports are what KV goes over. With "shm" messages go over a Unix socket.
func Transports() []string { return []string{"tcp", "unix", "shm"} }

// Sockets are those of them over which KV goes as a payload.
func Sockets() []string { return []string{"tcp", "unix"} }

// Address is one to listen on for a transport, in the form of rpc.Listen.
func Address(t testing.TB, network string) string {
	t.Helper()
	if network != "tcp" {
		// The path of a socket is short; that of the test's name need not be.
		return api.UnixScheme + filepath.Join(t.TempDir(), "s")
	}
	return "127.0.0.1:0"
}

// Listen opens an address of Address, and says how to dial it.
func Listen(t testing.TB, address string) (listener net.Listener, dial string) {
	t.Helper()
	network, at := split(address)
	listener, err := net.Listen(network, at)
	if err != nil {
		t.Fatal(err)
	}
	if network == "unix" {
		return listener, address
	}
	return listener, listener.Addr().String()
}

func split(address string) (network, at string) {
	if path, is := strings.CutPrefix(address, api.UnixScheme); is {
		return "unix", path
	}
	return "tcp", address
}

// NewProxy is a proxy before target, over the same network, until the end of the
// test.
func NewProxy(t testing.TB, network, target string) *Proxy {
	t.Helper()
	return NewProxyAt(t, Address(t, network), target)
}

// NewProxyAt is NewProxy that listens on an address.
func NewProxyAt(t testing.TB, address, target string) *Proxy {
	t.Helper()
	p := &Proxy{target: target, links: map[*link]bool{}}
	p.listener, p.address = Listen(t, address)
	p.tasks.Go(p.accept)
	t.Cleanup(p.Close)
	return p
}

// Address is where senders connect to.
func (p *Proxy) Address() string { return p.address }

// Target is where its connections go.
func (p *Proxy) Target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

// Retarget sends the connections that come from now on to another receiver.
func (p *Proxy) Retarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Close cuts every connection and takes no more.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Speak()
	p.Cut()
	p.tasks.Wait()
}

// Cut breaks every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.cut()
	}
}

// Reset breaks every TCP connection as `ss -K` does: both ends get a reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		for _, c := range l.conns {
			if tcp, is := c.(*net.TCPConn); is {
				_ = tcp.SetLinger(0) // it may be closed
			}
		}
		l.cut()
	}
}

// Silence lets nothing pass any more, in either direction. Connections stay.
func (p *Proxy) Silence() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silence == nil {
		p.silence = make(chan struct{})
	}
}

// Speak undoes Silence: what was withheld passes.
func (p *Proxy) Speak() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silence != nil {
		close(p.silence)
		p.silence = nil
	}
}

// Slow lets so many bytes a second pass, in each direction of each connection; 0: as many as come.
func (p *Proxy) Slow(bytesPerSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = bytesPerSecond
}

// takes is how long a slow connection has to do with so many bytes.
func (p *Proxy) takes(bytes int) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate == 0 {
		return 0
	}
	return time.Duration(bytes) * time.Second / time.Duration(p.rate)
}

// Watch calls f with every frame before it passes, until the next Watch. f may not
// keep the frame.
func (p *Proxy) Watch(f func(d Direction, frame []byte, ended []string)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watch = f
}

func (p *Proxy) accept() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		p.tasks.Go(func() { p.carry(from) })
	}
}

// connectTimeout bounds how long a receiver may take to accept.
const connectTimeout = 10 * time.Second

func (p *Proxy) carry(from net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	network, at := split(target)
	to, err := new(net.Dialer).DialContext(ctx, network, at)
	if err != nil {
		_ = from.Close()
		return
	}
	l := &link{conns: [2]net.Conn{ToReceiver: to, ToSender: from}, broken: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = true
	if p.closed {
		l.cut()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, d := range []Direction{ToReceiver, ToSender} {
		both.Go(func() {
			defer l.cut()
			p.relay(l, d)
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// relay carries one direction until the connection ends.
func (p *Proxy) relay(l *link, d Direction) {
	r := newReader(d, l.conns[1-d])
	for {
		frame, ended, err := r.next()
		if err != nil {
			return
		}
		for _, wait := range p.before(d, frame, ended) {
			select {
			case <-wait:
			case <-l.broken:
				return
			}
		}
		if d := p.takes(len(frame)); d > 0 {
			timer := time.NewTimer(d)
			select {
			case <-timer.C:
			case <-l.broken:
				timer.Stop()
				return
			}
		}
		if _, err := l.conns[d].Write(frame); err != nil {
			return
		}
	}
}

// before is what a frame has to wait for. It spoils the frame if it is to be spoilt.
func (p *Proxy) before(d Direction, frame []byte, ended []string) (waits []<-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range ended {
		for _, h := range p.holds {
			if h.matches(d, kind) {
				waits = append(waits, h.released)
			}
		}
	}
	if p.silence != nil {
		waits = append(waits, p.silence)
	}
	if p.watch != nil {
		p.watch(d, frame, ended)
	}
	if p.flip != nil && p.flip.spoil(d, frame, ended) {
		p.flip = nil
	}
	return waits
}
