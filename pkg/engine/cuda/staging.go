package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
)

var _ engine.Staging = (*pages)(nil)

const (
	// stagedBytes is how much memory the staging buffers of pages have together, or four of
	// them if that is more. A stream of a transfer holds two or three at a time: one that is
	// read, and those that gRPC has not sent yet.
	stagedBytes = 32 << 20
	// leastStagingBytes is the least size of a buffer: a chunk with its header.
	leastStagingBytes = 1 << 20
	// headerBytes is how much larger than a slice a buffer is at least.
	headerBytes = 4 << 10
)

// stagingSizes are the size of a staging buffer and their number, for slices of this size.
func stagingSizes(slice int) (bytes, count int) {
	bytes = max(leastStagingBytes, padded(slice+headerBytes, headerBytes))
	return bytes, max(stagedBytes/bytes, 4)
}

// staging is host memory that the device copies to and from by itself, in buffers that are
// lent. The memory is mapped, not the driver's: what gRPC still holds when an engine closes
// stays readable. It is safe for concurrent use.
type staging struct {
	memory []byte // does not change
	bytes  int    // of a buffer
	host   *driver.Host

	mu     sync.Mutex
	idle   []*stagingBuffer // the one that came back last is lent next
	lent   int
	closed bool
	unmaps bool // when the last buffer is back
}

// stagingBuffer is one buffer while it is idle, and what stands for it while it is lent: if
// its borrower drops it, the cleanup makes another.
type stagingBuffer struct {
	memory  []byte
	release func()
	cleanup runtime.Cleanup
}

// newStaging maps and pins the memory.
func newStaging(device *driver.Device, slice int) (_ *staging, err error) {
	bytes, count := stagingSizes(slice)
	s := &staging{bytes: bytes}
	if s.memory, err = unix.Mmap(-1, 0, bytes*count, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, fmt.Errorf("map %d staging buffers of %d bytes: %w", count, bytes, err)
	}
	if s.host, err = device.RegisterHost(s.memory); err != nil {
		return nil, errors.Join(err, unix.Munmap(s.memory))
	}
	for i := range count {
		s.idle = append(s.idle, s.newBuffer(i))
	}
	return s, nil
}

func (s *staging) newBuffer(i int) *stagingBuffer {
	b := &stagingBuffer{memory: s.memory[i*s.bytes : (i+1)*s.bytes : (i+1)*s.bytes]}
	b.release = func() { s.put(b) }
	b.cleanup = runtime.AddCleanup(b, func(i int) { s.put(s.newBuffer(i)) }, i)
	return b
}

// take lends a buffer; nil: none is idle, or they are too small.
func (s *staging) take(bytes int) (memory []byte, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.idle) - 1
	if bytes > s.bytes || last < 0 {
		return nil, nil
	}
	b := s.idle[last]
	s.idle[last] = nil
	s.idle = s.idle[:last]
	s.lent++
	return b.memory, b.release
}

func (s *staging) put(b *stagingBuffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lent--
	if !s.closed {
		s.idle = append(s.idle, b)
		return
	}
	b.cleanup.Stop()
	if s.unmaps && s.lent == 0 {
		_ = unix.Munmap(s.memory) // nobody is left to be told
	}
}

// offset is where b lies in the memory.
func (s *staging) offset(b []byte) (at int, within bool) {
	if s == nil {
		return 0, false
	}
	from := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.memory)))
	size := uintptr(len(s.memory))
	return int(from), from < size && uintptr(len(b)) <= size-from
}

// close lends no more, and unpins the memory. No copy may be under way. The memory is
// unmapped with the last buffer that is lent; never, where the driver does not say that the
// device is done with it.
func (s *staging) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	for _, b := range s.idle {
		b.cleanup.Stop()
	}
	s.idle = nil
	if err := s.host.Free(); err != nil {
		return err
	}
	s.unmaps = true
	if s.lent > 0 {
		return nil
	}
	return unix.Munmap(s.memory)
}

// Stage implements engine.Staging. After the device was lost it lends nothing.
func (p *pages) Stage(bytes int) (memory []byte, release func()) {
	if p.staging == nil || p.loss.err() != nil {
		return nil, nil
	}
	return p.staging.take(bytes)
}
