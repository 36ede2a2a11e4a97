// Package kvtransfertest has pages in memory for the tests of whoever sends or
// receives KV. Only tests may import it. It starts no goroutines.
package kvtransfertest

import (
	"fmt"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Layout is one for tests: small slices of a size that is no power of two.
func Layout(layers, sliceBytes int) kvcache.Layout {
	return kvcache.Layout{
		ModelDigest: "kvtransfertest", ArithmeticClass: "test/1", Layers: layers, KVHeads: 1, HeadSize: 1,
		ElementType: "byte", BlockTokens: 1, Order: "test/1", SliceBytes: sliceBytes,
	}
}

// Pages implements engine.Pages in memory that it owns. Unlike an engine's, it
// is safe for any concurrent use, so that the race detector reports what tests
// do wrong and not what they watch.
type Pages struct {
	layout kvcache.Layout
	blocks int

	mu     sync.Mutex
	memory []byte
	fault  error
	hook   func()
}

var _ engine.Pages = (*Pages)(nil)

// NewPages is blocks pages, all zero.
func NewPages(layout kvcache.Layout, blocks int) *Pages {
	return &Pages{layout: layout, blocks: blocks, memory: make([]byte, blocks*layout.PageBytes())}
}

// Layout implements engine.Pages.
func (p *Pages) Layout() kvcache.Layout { return p.layout }

// View implements engine.Pages as a device does whose memory is not the host's.
func (p *Pages) View(int, kvcache.BlockID) []byte { return nil }

// Read implements engine.Pages.
func (p *Pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	return p.each(layer, blocks, dst, func(slice, buffer []byte) { copy(buffer, slice) })
}

// Write implements engine.Pages.
func (p *Pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	return p.each(layer, blocks, src, func(slice, buffer []byte) { copy(slice, buffer) })
}

// Fail makes every Read and Write from now on fail with err, or none if it is
// nil.
func (p *Pages) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = err
}

// Before makes every Read and Write from now on call f first, which may block.
func (p *Pages) Before(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hook = f
}

// Fill gives every byte of a block a value that depends on seed, its block, its
// layer and its place.
func (p *Pages) Fill(block kvcache.BlockID, seed byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	page := p.page(block)
	for i := range page {
		page[i] = seed + byte(block)*7 + byte(i)*31
	}
}

// Page is a copy of a block, layer after layer.
func (p *Pages) Page(block kvcache.BlockID) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]byte(nil), p.page(block)...)
}

func (p *Pages) page(block kvcache.BlockID) []byte {
	size := p.layout.PageBytes()
	return p.memory[int(block)*size : (int(block)+1)*size]
}

func (p *Pages) each(layer int, blocks []kvcache.BlockID, buffer []byte, do func(slice, buffer []byte)) error {
	p.mu.Lock()
	hook := p.hook
	p.mu.Unlock()
	if hook != nil {
		hook()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault != nil {
		return p.fault
	}
	size := p.layout.SliceBytes
	if layer < 0 || layer >= p.layout.Layers || len(buffer) != len(blocks)*size {
		return fmt.Errorf("%d bytes for layer %d of %d blocks", len(buffer), layer, len(blocks))
	}
	for i, block := range blocks {
		if block < 0 || int(block) >= p.blocks {
			return fmt.Errorf("block %d of %d", block, p.blocks)
		}
		do(p.page(block)[layer*size:(layer+1)*size], buffer[i*size:(i+1)*size])
	}
	return nil
}
