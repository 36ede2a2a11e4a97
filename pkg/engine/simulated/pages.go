package simulated

import (
	"fmt"
	"os"
	"sync/atomic"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// pages is KV memory: the slices of a block's layers side by side, of those layers that
// have records. A page takes memory once it is first looked at.
type pages struct {
	layout kvcache.Layout
	first  int      // layer that has records; those before have none
	bytes  int      // of a page
	count  int      // of blocks
	whole  []byte   // all pages, where they are small or shared
	file   *os.File // that holds whole; nil: none does
	blocks []atomic.Pointer[[]byte]
	link   *link // nil: what is written arrives at once
}

func newPages(layout kvcache.Layout, blocks int, brief bool) pages {
	if brief {
		return pages{layout: layout, first: layout.Layers - 1, bytes: layout.SliceBytes, count: blocks, whole: make([]byte, blocks*layout.SliceBytes)}
	}
	return pages{layout: layout, bytes: layout.PageBytes(), count: blocks, blocks: make([]atomic.Pointer[[]byte], blocks)}
}

// in says whether there is such a slice.
func (p *pages) in(layer int, block kvcache.BlockID) bool {
	return layer >= 0 && layer < p.layout.Layers && block >= 0 && int(block) < p.count
}

// Shares and File implement engine.Sharing.
func (p *pages) Shares() bool   { return p.file != nil }
func (p *pages) File() *os.File { return p.file }

func (p *pages) Layout() kvcache.Layout { return p.layout }

// View is the memory of one slice. A block or layer out of range, or a layer without
// records, gives nil.
func (p *pages) View(layer int, block kvcache.BlockID) []byte {
	if layer < p.first || !p.in(layer, block) {
		return nil
	}
	if p.whole != nil {
		from := int(block)*p.bytes + (layer-p.first)*p.layout.SliceBytes
		return p.whole[from : from+p.layout.SliceBytes : from+p.layout.SliceBytes]
	}
	page := p.blocks[block].Load()
	if page == nil {
		fresh := make([]byte, p.bytes)
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
		if !p.in(layer, block) {
			return fmt.Errorf("layer %d, block %d is outside %d layers and %d blocks", layer, block, p.layout.Layers, p.count)
		}
		if layer >= p.first {
			move(p.View(layer, block), buffer[i*p.layout.SliceBytes:][:p.layout.SliceBytes])
		}
	}
	return nil
}
