package cpu

import (
	"fmt"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine/cpu/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// pages is an engine.Pages over memory outside the Go heap.
type pages struct {
	at     kvcache.PageMap
	memory kernels.Memory

	mu     sync.RWMutex // held to copy; held exclusively to unmap
	closed bool
}

func newPages(layout kvcache.Layout, blocks int) (*pages, error) {
	at := kvcache.PageMap{Layout: layout, Blocks: blocks}
	memory, err := kernels.Allocate(at.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%d KV blocks: %w", blocks, err)
	}
	return &pages{at: at, memory: memory}, nil
}

// Layout implements engine.Pages.
func (p *pages) Layout() kvcache.Layout { return p.at.Layout }

// View implements engine.Pages. It is nil for a slice that does not exist and
// after the engine was closed.
func (p *pages) View(layer int, block kvcache.BlockID) []byte {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed || p.at.Check(layer, block) != nil {
		return nil
	}
	return p.slice(layer, block)
}

// Read implements engine.Pages.
func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	err := p.each(layer, blocks, len(dst), func(slice []byte, at int) { copy(dst[at:], slice) })
	if err != nil {
		return fmt.Errorf("read KV pages: %w", err)
	}
	return nil
}

// Write implements engine.Pages.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	err := p.each(layer, blocks, len(src), func(slice []byte, at int) { copy(slice, src[at:]) })
	if err != nil {
		return fmt.Errorf("write KV pages: %w", err)
	}
	return nil
}

// each visits slices after it has checked all of them.
func (p *pages) each(layer int, blocks []kvcache.BlockID, bytes int, visit func(slice []byte, at int)) error {
	if err := p.at.CheckAll(layer, blocks, bytes); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errClosed
	}
	for i, b := range blocks {
		visit(p.slice(layer, b), i*p.at.Layout.SliceBytes)
	}
	return nil
}

func (p *pages) slice(layer int, block kvcache.BlockID) []byte {
	return p.at.Slice(p.memory.Bytes(), layer, block)
}

func (p *pages) isClosed() bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	return p.closed
}

// free unmaps, and says whether this call did.
func (p *pages) free() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.closed = true
	p.memory.Free()
	return true
}
