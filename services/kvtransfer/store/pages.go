package store

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// errPagesClosed is what the pages of a shelf give that was cleared away.
var errPagesClosed = errors.New("the store's pages are unmapped")

// pages is an engine.Pages over memory outside the Go heap. The kernel gives the
// memory as it is first written.
type pages struct {
	at kvcache.PageMap

	mu     sync.RWMutex // held to copy; held exclusively to unmap
	memory []byte       // nil once closed
}

var _ engine.Pages = (*pages)(nil)

// newPages maps so many blocks, all zero.
func newPages(layout kvcache.Layout, blocks int) (*pages, error) {
	at := kvcache.PageMap{Layout: layout, Blocks: blocks}
	memory, err := unix.Mmap(-1, 0, at.Bytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("map %d blocks of %d bytes: %w", blocks, layout.PageBytes(), err)
	}
	adviseHuge(memory)
	return &pages{at: at, memory: memory}, nil
}

// close unmaps. Nobody may use a View any more; Read and Write fail from now on.
func (p *pages) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	memory := p.memory
	p.memory = nil
	if memory == nil {
		return nil
	}
	if err := unix.Munmap(memory); err != nil {
		return fmt.Errorf("unmap the store's pages: %w", err)
	}
	return nil
}

// Layout implements engine.Pages.
func (p *pages) Layout() kvcache.Layout { return p.at.Layout }

// View implements engine.Pages. It is nil for a slice that does not exist and
// after close.
func (p *pages) View(layer int, block kvcache.BlockID) []byte {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.memory == nil || p.at.Check(layer, block) != nil {
		return nil
	}
	return p.slice(layer, block)
}

// Read implements engine.Pages.
func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	err := p.each(layer, blocks, len(dst), func(slice []byte, at int) { copy(dst[at:], slice) })
	if err != nil {
		return fmt.Errorf("read the store's pages: %w", err)
	}
	return nil
}

// Write implements engine.Pages.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	err := p.each(layer, blocks, len(src), func(slice []byte, at int) { copy(slice, src[at:]) })
	if err != nil {
		return fmt.Errorf("write the store's pages: %w", err)
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
	if p.memory == nil {
		return errPagesClosed
	}
	for i, b := range blocks {
		visit(p.slice(layer, b), i*p.at.Layout.SliceBytes)
	}
	return nil
}

func (p *pages) slice(layer int, block kvcache.BlockID) []byte {
	return p.at.Slice(p.memory, layer, block)
}
