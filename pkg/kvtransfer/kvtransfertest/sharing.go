package kvtransfertest

import (
	"fmt"
	"os"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

var _ engine.Sharing = (*Pages)(nil)

// NewSharedPages returns the pages of NewHostPages in memory that other processes can map. free
// gives the memory back.
func NewSharedPages(layout kvcache.Layout, blocks int) (p *Pages, free func() error, err error) {
	memory, err := hostpages.MapShared(layout, blocks)
	if err != nil {
		return nil, nil, err
	}
	p = &Pages{at: kvcache.PageMap{Layout: layout, Blocks: blocks}, inHost: true, memory: memory.Bytes(), file: memory.File()}
	return p, memory.Close, nil
}

// Shares implements engine.Sharing. Pages without a file can be shared by NewMapping alone.
func (p *Pages) Shares() bool { return p.inHost }

// File implements engine.Sharing.
func (p *Pages) File() *os.File { return p.file }

// Mapping is pages as a sender has them that mapped them: it can write those that are open.
type Mapping struct {
	pages  *Pages
	unmap  func()
	misuse func(format string, args ...any)

	mu     sync.Mutex
	open   map[kvcache.BlockID]bool
	closed bool
}

// NewMapping returns pages as mapped by a sender of this process. unmap is called once, by
// Close; misuse with what no sender may do.
func NewMapping(pages *Pages, unmap func(), misuse func(format string, args ...any)) *Mapping {
	return &Mapping{pages: pages, unmap: unmap, misuse: misuse, open: map[kvcache.BlockID]bool{}}
}

// View is the memory of a slice.
func (m *Mapping) View(layer int, block kvcache.BlockID) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || !m.open[block] {
		m.misuse("page %d is written, which is not open", block)
		return nil
	}
	return m.pages.at.Slice(m.pages.memory, layer, block)
}

// Open allows that blocks are written.
func (m *Mapping) Open(blocks []kvcache.BlockID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return os.ErrClosed
	}
	for _, b := range blocks {
		if m.open[b] {
			return fmt.Errorf("page %d is open already", b)
		}
		m.open[b] = true
	}
	return nil
}

// Shut ends that.
func (m *Mapping) Shut(blocks []kvcache.BlockID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range blocks {
		if !m.closed && !m.open[b] {
			m.misuse("page %d is shut, which is not open", b)
		}
		delete(m.open, b)
	}
	return nil
}

// Opened is how many blocks are open.
func (m *Mapping) Opened() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.open)
}

// Close unmaps the pages.
func (m *Mapping) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		m.misuse("a mapping is closed twice")
		return
	}
	m.closed, m.open = true, nil
	m.unmap()
}
