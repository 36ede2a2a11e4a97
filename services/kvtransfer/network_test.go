package kvtransfer_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// network is how processes of a test reach each other.
type network struct {
	kind  string // "tcp", "unix" or "memory"
	mu    sync.Mutex
	pipes map[string]*bufconn.Listener
}

// everyNetwork runs a test over each kind that is real.
func everyNetwork(t *testing.T, test func(t *testing.T, n *network)) {
	for _, kind := range []string{"tcp", "unix"} {
		t.Run(kind, func(t *testing.T) { test(t, &network{kind: kind}) })
	}
}

func (n *network) listen(t *testing.T) (listener net.Listener, address string) {
	t.Helper()
	var err error
	switch n.kind {
	case "tcp":
		listener, err = kvtransfer.Listen("127.0.0.1:0")
		if err == nil {
			address = listener.Addr().String()
		}
	case "unix":
		address = "unix://" + filepath.Join(t.TempDir(), "s")
		listener, err = kvtransfer.Listen(address)
	default:
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.pipes == nil {
			n.pipes = map[string]*bufconn.Listener{}
		}
		address = fmt.Sprintf("127.0.0.1:%d", 1+len(n.pipes))
		pipe := bufconn.Listen(1 << 20)
		n.pipes[address], listener = pipe, pipe
	}
	if err != nil {
		t.Fatal(err)
	}
	return listener, address
}

// dial is for a process that is never killed.
func (n *network) dial(address string) (*grpc.ClientConn, error) {
	return n.dialFrom(new(cables))(address)
}

// dialFrom dials for a process with such cables.
func (n *network) dialFrom(c *cables) func(address string) (*grpc.ClientConn, error) {
	return func(address string) (*grpc.ClientConn, error) {
		return rpc.Dial(address, kvtransfer.Dialing(rpc.ClientConfig{
			Dialer: func(ctx context.Context, address string) (net.Conn, error) {
				conn, err := n.connect(ctx, address)
				if err != nil {
					return nil, err
				}
				return c.keep(conn)
			},
		}))
	}
}

func (n *network) connect(ctx context.Context, address string) (net.Conn, error) {
	var d net.Dialer
	switch n.kind {
	case "tcp":
		return d.DialContext(ctx, "tcp", address)
	case "unix":
		return d.DialContext(ctx, "unix", strings.TrimPrefix(address, "unix://"))
	}
	n.mu.Lock()
	pipe := n.pipes[address]
	n.mu.Unlock()
	if pipe == nil {
		return nil, fmt.Errorf("nobody listens on %s", address)
	}
	return pipe.DialContext(ctx)
}

// cables are the connections of a process, which its death cuts.
type cables struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
	dead  bool
}

// Accept implements net.Listener.
func (c *cables) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return c.keep(conn)
}

func (c *cables) keep(conn net.Conn) (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		conn.Close()
		return nil, net.ErrClosed
	}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// cut is the end of the process as others see it.
func (c *cables) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dead = true
	c.Listener.Close()
	for _, conn := range c.conns {
		conn.Close()
	}
}
