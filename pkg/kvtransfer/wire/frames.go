package wire

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// frameBytes is the largest frame that grpc-go sends and takes.
	frameBytes = 16 << 10
	// smallestBytes is the smallest buffer for one.
	smallestBytes = 1 << 10
	// frameSizes is how many sizes of buffers there are, each twice the one before.
	frameSizes = 5
)

// Frames is a pool for what connections receive: unlike grpc-go's own it does not
// clear buffers, and hands out first the one that came back last, which the
// processor's caches still hold. No frame over a kilobyte gets more than twice what it
// takes: small ones could else make a receiver hold many times its windows. It keeps
// up to keep bytes that nobody uses, and is safe for concurrent use.
func Frames(keep int) mem.BufferPool { return &frames{keep: keep} }

type frames struct {
	keep  int
	mu    sync.Mutex
	free  [frameSizes][]*[]byte
	bytes int // of free
}

// sizeOf is which of the sizes holds n bytes, up to frameBytes.
func sizeOf(n int) int { return bits.Len(uint(max(n, smallestBytes)-1) / smallestBytes) }

// Get implements mem.BufferPool.
func (f *frames) Get(n int) *[]byte {
	if n > frameBytes {
		return mem.DefaultBufferPool().Get(n)
	}
	size := sizeOf(n)
	f.mu.Lock()
	free := f.free[size]
	if last := len(free) - 1; last >= 0 {
		b := free[last]
		f.free[size] = free[:last]
		f.bytes -= cap(*b)
		f.mu.Unlock()
		*b = (*b)[:n]
		return b
	}
	f.mu.Unlock()
	b := make([]byte, n, smallestBytes<<size)
	return &b
}

// Put implements mem.BufferPool.
func (f *frames) Put(b *[]byte) {
	bytes := cap(*b)
	if bytes > frameBytes || bytes != smallestBytes<<sizeOf(bytes) {
		mem.DefaultBufferPool().Put(b)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if size := sizeOf(bytes); f.bytes+bytes <= f.keep {
		f.bytes += bytes
		f.free[size] = append(f.free[size], b)
	}
}
