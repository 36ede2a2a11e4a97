// Package kvtransfertest provides in-memory pages and a block store for tests of KV senders
// and receivers. Only tests may import it. Its goroutines are those of a store's Receiver
// and Sender, which end with its Run.
package kvtransfertest

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/pageloans"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Layout returns a layout for tests.
func Layout(layers, sliceBytes int) kvcache.Layout {
	return kvcache.Layout{
		ModelDigest: "kvtransfertest", ArithmeticClass: "test/1", Layers: layers, KVHeads: 1, HeadSize: 1,
		ElementType: "byte", BlockTokens: 1, Order: "test/1", SliceBytes: sliceBytes,
	}
}

// Pages implements engine.Pages in its own memory, either like a device whose memory the
// host cannot reach, or like host memory. Unlike an engine's pages, it is safe for any
// concurrent use, so that the race detector reports only the tested code's races. A View of
// host pages is still watched.
type Pages struct {
	at      kvcache.PageMap
	inHost  bool
	book    *pageloans.Book[*Pages] // nil: no lending
	staging *staging                // nil: no staging buffers
	file    *os.File                // that holds memory; nil: none does

	fault atomic.Pointer[error]
	hook  atomic.Pointer[func()]

	mu     sync.Mutex
	memory []byte
}

var (
	_ engine.Pages   = (*Pages)(nil)
	_ engine.Lending = (*Pages)(nil)
)

// NewPages returns zeroed pages of a device, accessed by Read and Write.
func NewPages(layout kvcache.Layout, blocks int) *Pages {
	return &Pages{at: kvcache.PageMap{Layout: layout, Blocks: blocks}, memory: make([]byte, blocks*layout.PageBytes())}
}

// NewHostPages returns zeroed pages in host memory, accessed by View. Read and Write fail.
func NewHostPages(layout kvcache.Layout, blocks int) *Pages {
	p := NewPages(layout, blocks)
	p.inHost = true
	return p
}

// Layout implements engine.Pages.
func (p *Pages) Layout() kvcache.Layout { return p.at.Layout }

// View implements engine.Pages.
func (p *Pages) View(layer int, block kvcache.BlockID) []byte {
	if !p.inHost || p.at.Check(layer, block) != nil || p.begin() != nil {
		return nil
	}
	return p.at.Slice(p.memory, layer, block)
}

// Read implements engine.Pages.
func (p *Pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	return p.each(layer, blocks, dst, func(slice, buffer []byte) { copy(buffer, slice) })
}

// Write implements engine.Pages.
func (p *Pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	return p.each(layer, blocks, src, func(slice, buffer []byte) { copy(slice, buffer) })
}

// Fail makes every later Read and Write fail with err, or succeed again if err is nil.
// While it is set, View returns nil.
func (p *Pages) Fail(err error) {
	if err == nil {
		p.fault.Store(nil)
		return
	}
	p.fault.Store(&err)
}

// Before makes every later View, Read and Write call f first. f may block; nil removes it.
func (p *Pages) Before(f func()) {
	if f == nil {
		p.hook.Store(nil)
		return
	}
	p.hook.Store(&f)
}

// begin is the common part of View, Read and Write.
func (p *Pages) begin() error {
	if hook := p.hook.Load(); hook != nil {
		(*hook)()
	}
	if fault := p.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

// Fill sets every byte of a block to a value derived from seed, block, layer and position.
func (p *Pages) Fill(block kvcache.BlockID, seed byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := p.page(block)
	for i := range page {
		page[i] = seed + byte(block)*7 + byte(i)*31 + byte(i>>8)*101
	}
}

// Page returns a copy of a block, layer by layer.
func (p *Pages) Page(block kvcache.BlockID) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]byte(nil), p.page(block)...)
}

func (p *Pages) page(block kvcache.BlockID) []byte {
	size := p.at.Layout.PageBytes()
	return p.memory[int(block)*size : (int(block)+1)*size]
}

var errInHost = errors.New("pages in the host's memory are not copied by Read and Write")

func (p *Pages) each(layer int, blocks []kvcache.BlockID, buffer []byte, do func(slice, buffer []byte)) error {
	if err := p.begin(); err != nil {
		return err
	}
	if p.inHost {
		return errInHost
	}
	if err := p.at.CheckAll(layer, blocks, len(buffer)); err != nil {
		return err
	}
	p.staging.count(buffer)
	p.mu.Lock()
	defer p.mu.Unlock()
	size := p.at.Layout.SliceBytes
	for i, block := range blocks {
		do(p.at.Slice(p.memory, layer, block), buffer[i*size:(i+1)*size])
	}
	return nil
}
