package wire

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

const (
	// frameBytes is the largest frame that grpc-go sends and accepts.
	frameBytes = 16 << 10
	// smallestBytes is the smallest buffer.
	smallestBytes = 1 << 10
	// frameSizes is the number of buffer sizes, each double the previous one.
	frameSizes = 5
)

// Frames returns a pool for received data. Unlike grpc-go's, it does not clear buffers and
// reuses the most recent first, which is still in the processor's caches. A buffer over 1
// KiB is at most twice its frame's size, so that small frames cannot make a receiver hold
// many times its windows. The pool keeps up to keep unused bytes and is safe for concurrent
// use.
func Frames(keep int) mem.BufferPool { return &frames{keep: keep} }

type frames struct {
	keep  int
	mu    sync.Mutex
	free  [frameSizes][]*[]byte
	bytes int // total of free
}

// sizeOf is the index of the smallest size that holds n bytes, up to frameBytes.
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
