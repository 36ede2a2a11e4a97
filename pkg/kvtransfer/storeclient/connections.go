package storeclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"

	"github.com/tandem-serving/tandem/pkg/offload"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// maxAddresses bounds how many of a store's addresses are tried.
const maxAddresses = 8

// connections are a client's connections, to at most maxPeers stores.
type connections struct {
	dial func(address string) (*grpc.ClientConn, error)

	mu     sync.Mutex
	closed bool
	peers  map[string]*peerConns // by worker id
	tick   uint64                // logical time of last use
}

// peerConns are the connections to one incarnation of a store, one for each address tried.
// connections.mu guards it.
type peerConns struct {
	peer  offload.Store
	conns map[string]*grpc.ClientConn
	good  int // index of the address that last answered
	users int
	used  uint64
	gone  bool // removed from the table; closed by the last user
}

// call makes one call to the first reachable address of the store, starting with the one
// that last worked.
func (c *connections) call(ctx context.Context, to offload.Store, do func(kvtransferv1.BlockStoreClient) error) error {
	p, err := c.acquire(to)
	if err != nil {
		return err
	}
	defer c.release(p)
	var failures []error
	addresses := to.Addresses[:min(len(to.Addresses), maxAddresses)]
	first := c.first(p)
	for i := range addresses {
		at := (first + i) % len(addresses)
		conn, err := c.connection(p, addresses[at])
		if err == nil {
			if err = do(kvtransferv1.NewBlockStoreClient(conn)); !unreachable(err) {
				c.answered(p, at)
				return err
			}
		}
		failures = append(failures, fmt.Errorf("%s: %w", addresses[at], err))
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("cannot reach store %q: %w", to.ID, errors.Join(failures...))
}

// acquire returns the entry of a peer and keeps it until release. It replaces an entry with
// another incarnation or other addresses.
func (c *connections) acquire(to offload.Store) (*peerConns, error) {
	if len(to.Addresses) == 0 {
		return nil, fmt.Errorf("store %q has no address", to.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClientClosed
	}
	p := c.peers[to.ID]
	if p != nil && (p.peer.Epoch != to.Epoch || !slices.Equal(p.peer.Addresses, to.Addresses)) {
		c.remove(p)
		p = nil
	}
	if p == nil {
		if len(c.peers) >= maxPeers && !c.evict() {
			return nil, &BusyError{Err: fmt.Errorf("calls to %d stores are already running", maxPeers)}
		}
		to.Addresses = slices.Clone(to.Addresses)
		p = &peerConns{peer: to, conns: make(map[string]*grpc.ClientConn)}
		c.peers[to.ID] = p
	}
	c.tick++
	p.users, p.used = p.users+1, c.tick
	return p, nil
}

func (c *connections) release(p *peerConns) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.users--
	if p.gone && p.users == 0 {
		p.close()
	}
}

// connection returns the connection to one address, creating it if necessary.
func (c *connections) connection(p *peerConns, address string) (*grpc.ClientConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClientClosed
	}
	conn := p.conns[address]
	if conn == nil {
		made, err := c.dial(address)
		if err != nil {
			return nil, fmt.Errorf("dial: %w", err)
		}
		conn, p.conns[address] = made, made
	}
	return conn, nil
}

func (c *connections) first(p *peerConns) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return p.good
}

func (c *connections) answered(p *peerConns, at int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.good = at
}

// evict removes the least recently used peer without calls in progress, if any. Requires
// c.mu.
func (c *connections) evict() bool {
	var oldest *peerConns
	for _, p := range c.peers {
		if p.users == 0 && (oldest == nil || p.used < oldest.used) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	c.remove(oldest)
	return true
}

// remove takes a peer out of the table. Requires c.mu.
func (c *connections) remove(p *peerConns) {
	delete(c.peers, p.peer.ID)
	p.gone = true
	if p.users == 0 {
		p.close()
	}
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, p := range c.peers {
		delete(c.peers, p.peer.ID)
		p.gone = true
		p.close() // running calls fail
	}
}

func (p *peerConns) close() {
	for address, conn := range p.conns {
		_ = conn.Close() // nobody to report to
		delete(p.conns, address)
	}
}
