package wire

import (
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// keptBytes is how much memory a pool keeps that nobody uses.
	keptBytes = 4 << 20
	// roundBytes is what buffers are multiples of, and their memory begins at.
	roundBytes = 4 << 10
)

// pool keeps buffers for the messages of one codec, a few at a time: the one that
// came back last is the next to go out, since it is still in the processor's caches.
// It is safe for concurrent use. Buffers that gRPC drops with a broken connection
// are the garbage collector's.
type pool struct {
	mu    sync.Mutex
	free  []*buffer
	bytes int // of free
}

// buffer is memory for one message. It is the mem.BufferPool of its own memory: so
// it comes back as the whole that it is, when gRPC has dropped the last reference.
type buffer struct {
	pool  *pool
	all   []byte
	used  []byte // the part that holds the message
	slice [1]mem.Buffer
}

// get gives a buffer of at least n bytes, which hold anything.
func (p *pool) get(n int) *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	for last := len(p.free) - 1; last >= 0; last-- {
		b := p.free[last]
		p.free[last] = nil
		p.free = p.free[:last]
		p.bytes -= len(b.all)
		if len(b.all) >= n {
			return b
		}
	}
	return &buffer{pool: p, all: make([]byte, (n+roundBytes-1)/roundBytes*roundBytes)}
}

func (p *pool) put(b *buffer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+len(b.all) > keptBytes {
		return
	}
	p.bytes += len(b.all)
	p.free = append(p.free, b)
}

// message is the used part of a buffer as a message that gRPC frees.
func (b *buffer) message() mem.BufferSlice {
	b.slice[0] = mem.NewBuffer(&b.used, b)
	return b.slice[:]
}

// Get implements mem.BufferPool. Nobody calls it: buffers come from a pool.
func (b *buffer) Get(n int) *[]byte {
	memory := make([]byte, n)
	return &memory
}

// Put implements mem.BufferPool.
func (b *buffer) Put(*[]byte) { b.pool.put(b) }
