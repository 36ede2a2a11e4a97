package faultstest

import "sync"

// Hold stops one direction of a connection in front of a message.
type Hold struct {
	direction Direction
	kind      string
	left      int // messages of the kind that still pass; guarded by Proxy.mu
	held      chan struct{}
	released  chan struct{}
	once      sync.Once
}

// Hold stops what goes in a direction in front of the n-th message of a kind, from
// 1, counted from now on over all connections. Whatever follows on that connection
// waits too.
func (p *Proxy) Hold(d Direction, kind string, n int) *Hold {
	h := &Hold{direction: d, kind: kind, left: n, held: make(chan struct{}), released: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holds = append(p.holds, h)
	return h
}

// Held is closed when the message has come.
func (h *Hold) Held() <-chan struct{} { return h.held }

// Release lets it pass. It may be called more than once, also before the message
// has come: then nothing is held.
func (h *Hold) Release() { h.once.Do(func() { close(h.released) }) }

// matches counts a message, and says whether it is the one.
func (h *Hold) matches(d Direction, kind string) bool {
	if d != h.direction || kind != h.kind || h.left == 0 {
		return false
	}
	if h.left--; h.left > 0 {
		return false
	}
	close(h.held)
	return true
}
