package wire

import (
	"sync"

	"google.golang.org/grpc/mem"
)

// frameBytes is the largest frame that grpc-go sends and takes.
const frameBytes = 16 << 10

// Frames is a pool for what connections receive: unlike grpc-go's own it does not
// clear buffers, and hands out first the one that came back last, which the
// processor's caches still hold. It keeps up to keep bytes that nobody uses, and is
// safe for concurrent use.
func Frames(keep int) mem.BufferPool {
	return &frames{free: make([]*[]byte, 0, keep/frameBytes)}
}

type frames struct {
	mu   sync.Mutex
	free []*[]byte
}

// Get implements mem.BufferPool.
func (f *frames) Get(n int) *[]byte {
	if n > frameBytes {
		return mem.DefaultBufferPool().Get(n)
	}
	f.mu.Lock()
	if last := len(f.free) - 1; last >= 0 {
		b := f.free[last]
		f.free = f.free[:last]
		f.mu.Unlock()
		*b = (*b)[:n]
		return b
	}
	f.mu.Unlock()
	b := make([]byte, n, frameBytes)
	return &b
}

// Put implements mem.BufferPool.
func (f *frames) Put(b *[]byte) {
	if cap(*b) != frameBytes {
		mem.DefaultBufferPool().Put(b)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.free) < cap(f.free) {
		f.free = append(f.free, b)
	}
}
