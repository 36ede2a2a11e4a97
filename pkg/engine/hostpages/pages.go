// Package hostpages implements KV pages in the host's memory, outside the Go heap. Engines, the
// block store, the benchmark of transfers and tests import it. A goroutine of Pages takes memory
// ahead of its use, now and then; Close waits for it. Who holds mu only tries to lock taking.
package hostpages

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// ErrClosed is what pages give after Close.
var ErrClosed = errors.New("the pages are closed")

// Pages implements engine.Pages over one memory.
type Pages struct {
	at   kvcache.PageMap
	free func() error
	file *os.File // that holds the memory; nil: it is this process's own

	taken  atomic.Int64 // how many bytes from the start are taken, or need not be (ahead.go)
	taking sync.Mutex   // held by the goroutine that takes more

	mu     sync.RWMutex // held to copy; held exclusively to close
	memory []byte       // nil once closed
}

var _ engine.Pages = (*Pages)(nil)

// Over is pages over memory, which holds exactly so many blocks. Close gives it back by
// way of free.
func Over(layout kvcache.Layout, blocks int, memory []byte, free func() error) *Pages {
	return &Pages{at: kvcache.PageMap{Layout: layout, Blocks: blocks}, memory: memory, free: free}
}

// Map is pages over memory of their own, all zero, in huge pages where the kernel has
// some. It takes the memory shortly before it is first written.
func Map(layout kvcache.Layout, blocks int) (*Pages, error) {
	memory, err := unix.Mmap(-1, 0, blocks*layout.PageBytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d blocks of %d bytes: %w", blocks, layout.PageBytes(), err)
	}
	adviseHuge(memory)
	return Over(layout, blocks, memory, func() error { return unix.Munmap(memory) }), nil
}

// Close gives the memory back, once: nobody may use a View any more, and Read and Write
// fail from now on.
func (p *Pages) Close() error {
	p.mu.Lock()
	open := p.memory != nil
	p.memory = nil
	p.mu.Unlock()
	if !open {
		return nil
	}
	p.taking.Lock() // the goroutine that takes memory sees that they are closed
	defer p.taking.Unlock()
	if err := p.free(); err != nil {
		return fmt.Errorf("give back KV pages: %w", err)
	}
	return nil
}

// Closed says whether Close was called.
func (p *Pages) Closed() bool { return p.Bytes() == nil }

// Bytes is the whole memory, block after block; nil after Close.
func (p *Pages) Bytes() []byte {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.memory
}

// Shares implements engine.Sharing: only pages of MapShared can be.
func (p *Pages) Shares() bool { return p.file != nil }

// File implements engine.Sharing.
func (p *Pages) File() *os.File {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.memory == nil {
		return nil
	}
	return p.file
}

// Layout implements engine.Pages.
func (p *Pages) Layout() kvcache.Layout { return p.at.Layout }

// View implements engine.Pages. It is nil for a slice that does not exist and after
// Close.
func (p *Pages) View(layer int, block kvcache.BlockID) []byte {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.memory == nil || p.at.Check(layer, block) != nil {
		return nil
	}
	p.reached(block, 1)
	return p.at.Slice(p.memory, layer, block)
}

// Read implements engine.Pages.
func (p *Pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	err := p.each(layer, blocks, len(dst), func(slice []byte, at int) { copy(dst[at:], slice) })
	if err != nil {
		return fmt.Errorf("read KV pages: %w", err)
	}
	return nil
}

// Write implements engine.Pages.
func (p *Pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	err := p.each(layer, blocks, len(src), func(slice []byte, at int) { copy(slice, src[at:]) })
	if err != nil {
		return fmt.Errorf("write KV pages: %w", err)
	}
	return nil
}

// each visits slices after it has checked all of them.
func (p *Pages) each(layer int, blocks []kvcache.BlockID, bytes int, visit func(slice []byte, at int)) error {
	if err := p.at.CheckAll(layer, blocks, bytes); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.memory == nil {
		return ErrClosed
	}
	if n := len(blocks); n > 0 {
		p.reached(blocks[n-1], n)
	}
	for i, b := range blocks {
		visit(p.at.Slice(p.memory, layer, b), i*p.at.Layout.SliceBytes)
	}
	return nil
}
