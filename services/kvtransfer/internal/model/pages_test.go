package model_test

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// blockBits of a sender's block say which of a transfer's blocks it is; the others
// say which transfer.
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

func (p *source) View(int, kvcache.BlockID) []byte { return nil }

func (p *source) Write(int, []kvcache.BlockID, []byte) error { return errors.New("not written to") }

// Read implements engine.Pages. What was released must not be read.
func (p *source) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	if p.fails {
		return errors.New("unreadable")
	}
	for i, b := range blocks {
		id := uint64(b >> blockBits)
		if o := p.s.transfers[id]; o == nil || o.released {
			p.w.t.Fatalf("transfer %d: pages are read after its release", id)
		}
		binary.LittleEndian.PutUint32(dst[i*sliceBytes:], value(id, layer, int(b&(1<<blockBits-1))))
	}
	return nil
}

// target is the pages of the receiver, as a copy for a transfer finds them.
type target struct {
	w        *world
	transfer uint64
}

func (p *target) Layout() kvcache.Layout {
	return kvcache.Layout{Layers: layers, SliceBytes: sliceBytes}
}

func (p *target) View(int, kvcache.BlockID) []byte { return nil }

func (p *target) Read(int, []kvcache.BlockID, []byte) error { return errors.New("not read from") }

// Write implements engine.Pages. What another owns must not be written.
func (p *target) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	if layer < 0 || layer >= layers || len(src) != len(blocks)*sliceBytes {
		return fmt.Errorf("%d bytes for layer %d of %d blocks", len(src), layer, len(blocks))
	}
	for i, b := range blocks {
		if p.w.owner[b] != p.transfer {
			p.w.t.Fatalf("late write: block %d of transfer %d belongs to %d", b, p.transfer, p.w.owner[b])
		}
		p.w.content[b][layer] = binary.LittleEndian.Uint32(src[i*sliceBytes:])
	}
	return nil
}

// halving is an encoding that keeps the lower half of a slice.
type halving struct{}

func (halving) EncodedBytes() int { return encodedBytes }

func (halving) Encode(dst, src []byte) { copy(dst, src[:encodedBytes]) }

func (halving) Decode(dst, src []byte) error {
	clear(dst)
	copy(dst, src[:encodedBytes])
	return nil
}
