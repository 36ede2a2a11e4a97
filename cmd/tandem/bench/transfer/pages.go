package transfer

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// pages is an engine.Pages like that of the CPU engine: memory outside Go's heap,
// with the same advice on huge pages, every page of it touched. Callers see to it
// that slices are not read while they are written.
type pages struct {
	layout kvcache.Layout
	blocks int
	memory []byte
}

var _ engine.Pages = (*pages)(nil)

// newPages are blocks of which every byte is chance, drawn from seed.
func newPages(layout kvcache.Layout, blocks int, seed uint64) (*pages, error) {
	memory, err := unix.Mmap(-1, 0, blocks*layout.PageBytes(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("%d KV blocks of %d bytes: %w", blocks, layout.PageBytes(), err)
	}
	adviseHuge(memory)
	state := seed
	for at := 0; at+8 <= len(memory); at += 8 {
		state ^= state << 13 // xorshift64 (Marsaglia, 2003)
		state ^= state >> 7
		state ^= state << 17
		binary.LittleEndian.PutUint64(memory[at:], state)
	}
	return &pages{layout: layout, blocks: blocks, memory: memory}, nil
}

func (p *pages) close() error { return unix.Munmap(p.memory) }

// Layout implements engine.Pages.
func (p *pages) Layout() kvcache.Layout { return p.layout }

// View implements engine.Pages.
func (p *pages) View(layer int, block kvcache.BlockID) []byte {
	if p.check(layer, block) != nil {
		return nil
	}
	return p.slice(layer, block)
}

// Read implements engine.Pages.
func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	return p.each(layer, blocks, dst, func(slice, buffer []byte) { copy(buffer, slice) })
}

// Write implements engine.Pages.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	return p.each(layer, blocks, src, func(slice, buffer []byte) { copy(slice, buffer) })
}

func (p *pages) each(layer int, blocks []kvcache.BlockID, buffer []byte, do func(slice, buffer []byte)) error {
	size := p.layout.SliceBytes
	if len(buffer) != len(blocks)*size {
		return fmt.Errorf("%d bytes for %d slices of %d", len(buffer), len(blocks), size)
	}
	for i, block := range blocks {
		if err := p.check(layer, block); err != nil {
			return err
		}
		do(p.slice(layer, block), buffer[i*size:(i+1)*size])
	}
	return nil
}

func (p *pages) check(layer int, block kvcache.BlockID) error {
	if layer < 0 || layer >= p.layout.Layers || block < 0 || int(block) >= p.blocks {
		return fmt.Errorf("layer %d of block %d: there are %d and %d", layer, block, p.layout.Layers, p.blocks)
	}
	return nil
}

func (p *pages) slice(layer int, block kvcache.BlockID) []byte {
	at := int(block)*p.layout.PageBytes() + layer*p.layout.SliceBytes
	end := at + p.layout.SliceBytes
	return p.memory[at:end:end]
}

// wipe makes the first blocks hold nothing that chance gives.
func (p *pages) wipe(blocks int) { clear(p.memory[:blocks*p.layout.PageBytes()]) }

// same says whether the first blocks of two pools hold the same.
func same(a, b *pages, blocks int) bool {
	n := blocks * a.layout.PageBytes()
	return bytes.Equal(a.memory[:n], b.memory[:n])
}

// blockRange is n neighbouring blocks.
func blockRange(first, n int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, n)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(first + i)
	}
	return blocks
}
