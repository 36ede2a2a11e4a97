package wire

import (
	"sync"

	"google.golang.org/grpc/mem"

	"github.com/tandem-serving/tandem/pkg/engine"
)

const (
	// keptBytes is how much unused memory a pool keeps.
	keptBytes = 4 << 20
	// roundBytes is the alignment of buffers and of their sizes.
	roundBytes = 4 << 10
)

// pool keeps a few buffers for a codec's messages. It reuses the most recent first, which
// is still in the processor's caches. Buffers that gRPC drops with a broken connection are
// garbage-collected. It is safe for concurrent use.
type pool struct {
	mu    sync.Mutex
	free  []*buffer
	bytes int // total of free
}

// buffer is memory for one message. It is its own mem.BufferPool, so that it returns as a
// whole when gRPC drops the last reference.
type buffer struct {
	pool    *pool
	all     []byte
	used    []byte // the part that holds the message
	slice   [1]mem.Buffer
	release func() // of a staging buffer; nil: the memory is the pool's
}

// get returns a buffer of at least n bytes with arbitrary contents.
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

// getFor is get for what is read from pages or written to them: the buffer is a staging
// buffer if the pages have one free.
func (p *pool) getFor(pages engine.Pages, n int) *buffer {
	if staging, has := pages.(engine.Staging); has {
		if memory, release := staging.Stage(n); memory != nil {
			return &buffer{pool: p, all: memory, release: release}
		}
	}
	return p.get(n)
}

func (p *pool) put(b *buffer) {
	if b.release != nil {
		b.release()
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes+len(b.all) > keptBytes {
		return
	}
	p.bytes += len(b.all)
	p.free = append(p.free, b)
}

// message returns the used part as a message that gRPC frees.
func (b *buffer) message() mem.BufferSlice {
	b.slice[0] = mem.NewBuffer(&b.used, b)
	return b.slice[:]
}

// Get implements mem.BufferPool. It is never called: buffers come from a pool.
func (b *buffer) Get(n int) *[]byte {
	memory := make([]byte, n)
	return &memory
}

// Put implements mem.BufferPool.
func (b *buffer) Put(*[]byte) { b.pool.put(b) }
