package kvtransfertest

import (
	"sync"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

var _ engine.Staging = (*Pages)(nil)

// staging is the staging buffers of pages. A buffer that is back is overwritten.
type staging struct {
	bytes  int
	memory []byte

	mu     sync.Mutex
	idle   [][]byte
	copies int // Read and Write with a buffer
}

// NewStagingPages returns the pages of NewPages with staging buffers: so many, each of so
// many bytes.
func NewStagingPages(layout kvcache.Layout, blocks, count, bytes int) *Pages {
	p := NewPages(layout, blocks)
	s := &staging{bytes: bytes, memory: make([]byte, count*bytes)}
	for i := range count {
		s.idle = append(s.idle, s.memory[i*bytes:(i+1)*bytes:(i+1)*bytes])
	}
	p.staging = s
	return p
}

// Stage implements engine.Staging.
func (p *Pages) Stage(bytes int) (memory []byte, release func()) {
	s := p.staging
	if s == nil || bytes > s.bytes {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.idle) - 1
	if last < 0 {
		return nil, nil
	}
	b := s.idle[last]
	s.idle = s.idle[:last]
	return b, func() {
		for i := range b {
			b[i] = 0xdd // a later read sees garbage
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.idle = append(s.idle, b)
	}
}

// Staging returns how many staging buffers are idle, and how many calls of Read and Write
// copied to or from one.
func (p *Pages) Staging() (idle, copies int) {
	p.staging.mu.Lock()
	defer p.staging.mu.Unlock()
	return len(p.staging.idle), p.staging.copies
}

// count counts a copy to or from a buffer.
func (s *staging) count(buffer []byte) {
	if s == nil || len(buffer) == 0 {
		return
	}
	from := uintptr(unsafe.Pointer(&buffer[0])) - uintptr(unsafe.Pointer(&s.memory[0]))
	if from < uintptr(len(s.memory)) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.copies++
	}
}
