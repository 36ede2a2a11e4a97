package simulated

import (
	"fmt"
	"sync/atomic"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// pages is KV memory: Layout.PageBytes bytes a block, the slices of its layers
// side by side. A page takes memory once it is first looked at.
type pages struct {
	layout kvcache.Layout
	blocks []atomic.Pointer[[]byte]
	link   *link // nil: what is written arrives at once
}

func (p *pages) Layout() kvcache.Layout { return p.layout }

// View is the memory of one slice. A block or layer out of range gives nil.
func (p *pages) View(layer int, block kvcache.BlockID) []byte {
	if layer < 0 || layer >= p.layout.Layers || block < 0 || int(block) >= len(p.blocks) {
		return nil
	}
	page := p.blocks[block].Load()
	if page == nil {
		fresh := make([]byte, p.layout.PageBytes())
		if page = &fresh; !p.blocks[block].CompareAndSwap(nil, page) {
			page = p.blocks[block].Load()
		}
	}
	from := layer * p.layout.SliceBytes
	return (*page)[from : from+p.layout.SliceBytes : from+p.layout.SliceBytes]
}

func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	return p.each(layer, blocks, dst, func(slice, buffer []byte) { copy(buffer, slice) })
}

// Write takes the time of the modelled link, if there is one.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	if err := p.each(layer, blocks, src, func(slice, buffer []byte) { copy(slice, buffer) }); err != nil {
		return err
	}
	if p.link != nil {
		return p.link.carry(len(blocks))
	}
	return nil
}

func (p *pages) each(layer int, blocks []kvcache.BlockID, buffer []byte, move func(slice, buffer []byte)) error {
	if len(buffer) != len(blocks)*p.layout.SliceBytes {
		return fmt.Errorf("%d bytes are not %d slices of %d bytes", len(buffer), len(blocks), p.layout.SliceBytes)
	}
	for i, block := range blocks {
		slice := p.View(layer, block)
		if slice == nil {
			return fmt.Errorf("layer %d, block %d is outside %d layers and %d blocks", layer, block, p.layout.Layers, len(p.blocks))
		}
		move(slice, buffer[i*p.layout.SliceBytes:][:p.layout.SliceBytes])
	}
	return nil
}
