package protocolmodeltest_test

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// blockBits is the part of a sender's block id that is the index within its transfer; the
// rest is the transfer.
const blockBits = 5

// source is the pages of a sender process.
type source struct {
	w     *world
	s     *session
	fails bool
}

func (p *source) Layout() kvcache.Layout {
	return kvcache.Layout{Layers: layers, SliceBytes: sliceBytes}
}

func (p *source) View(layer int, block kvcache.BlockID) []byte {
	if p.fails || !p.w.views {
		return nil
	}
	return p.slice(layer, block)
}

func (p *source) Write(int, []kvcache.BlockID, []byte) error { return errors.New("not written to") }

// Read implements engine.Pages. It fails the test on released pages.
func (p *source) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	if p.fails {
		return errors.New("unreadable")
	}
	for i, b := range blocks {
		copy(dst[i*sliceBytes:], p.slice(layer, b))
	}
	return nil
}

func (p *source) slice(layer int, b kvcache.BlockID) []byte {
	id := uint64(b >> blockBits)
	if o := p.s.transfers[id]; o == nil || o.released {
		p.w.fatalf("transfer %d: pages are read after its release", id)
	}
	return binary.LittleEndian.AppendUint32(nil, value(id, layer, int(b&(1<<blockBits-1))))
}

// target is the receiver's pages during a copy for one transfer.
type target struct {
	w        *world
	transfer uint64
}

func (p *target) Layout() kvcache.Layout {
	return kvcache.Layout{Layers: layers, SliceBytes: sliceBytes}
}

// View implements engine.Pages. It counts as a write.
func (p *target) View(layer int, block kvcache.BlockID) []byte {
	if !p.w.views || layer < 0 || layer >= layers {
		return nil
	}
	return p.slice(layer, block)
}

func (p *target) Read(int, []kvcache.BlockID, []byte) error { return errors.New("not read from") }

// Write implements engine.Pages. It fails the test on blocks of another owner.
func (p *target) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	if layer < 0 || layer >= layers || len(src) != len(blocks)*sliceBytes {
		return fmt.Errorf("%d bytes for layer %d of %d blocks", len(src), layer, len(blocks))
	}
	for i, b := range blocks {
		copy(p.slice(layer, b), src[i*sliceBytes:][:sliceBytes])
	}
	return nil
}

func (p *target) slice(layer int, b kvcache.BlockID) []byte {
	if p.w.owner[b] != p.transfer {
		p.w.fatalf("late write: block %d of transfer %d belongs to %d", b, p.transfer, p.w.owner[b])
	}
	return p.w.content[b][layer][:]
}

// halving is a coding that keeps the lower half of a slice.
type halving struct{}

func (halving) EncodedBytes() int { return encodedBytes }

func (halving) Encode(dst, src []byte) { copy(dst, src[:encodedBytes]) }

func (halving) Decode(dst, src []byte) error {
	clear(dst)
	copy(dst, src[:encodedBytes])
	return nil
}
