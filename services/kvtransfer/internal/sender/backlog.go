package sender

import (
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// backlog is what of a transfer waits to be sent, by layer: layers in the order
// in which they came, and what comes to a waiting layer joins its chunk.
type backlog struct {
	order  []int
	layers map[int]*layerBacklog
}

type layerBacklog struct {
	segments []segment
	slices   int
}

// segment is some neighbouring blocks.
type segment struct {
	first  int
	blocks []kvcache.BlockID
}

func (b *backlog) empty() bool { return len(b.order) == 0 }

func (b *backlog) add(layer, first int, blocks []kvcache.BlockID) {
	if b.layers == nil {
		b.layers = map[int]*layerBacklog{}
	}
	l := b.layers[layer]
	if l == nil {
		l = &layerBacklog{}
		b.layers[layer] = l
		b.order = append(b.order, layer)
	}
	l.segments = append(l.segments, segment{first: first, blocks: blocks})
	l.slices += len(blocks)
}

// next is the most slices that the next chunk may have.
func (b *backlog) next() int { return b.layers[b.order[0]].slices }

// take cuts the next chunk off: ascending runs of the first layer, limit slices
// at most, at least one. The rest of the layer goes behind the others.
func (b *backlog) take(limit int) (layer int, runs []wire.Run, blocks []kvcache.BlockID) {
	layer = b.order[0]
	b.order = b.order[1:]
	l := b.layers[layer]
	past := -1
	for len(l.segments) > 0 && len(blocks) < limit && l.segments[0].first >= past {
		s := &l.segments[0]
		n := min(len(s.blocks), limit-len(blocks))
		if s.first == past {
			runs[len(runs)-1].Blocks += uint32(n)
		} else {
			runs = append(runs, wire.Run{First: uint32(s.first), Blocks: uint32(n)})
		}
		past = s.first + n
		blocks = append(blocks, s.blocks[:n]...)
		s.first, s.blocks = past, s.blocks[n:]
		if len(s.blocks) == 0 {
			l.segments = l.segments[1:]
		}
	}
	l.slices -= len(blocks)
	if len(l.segments) > 0 {
		b.order = append(b.order, layer)
	} else {
		delete(b.layers, layer)
	}
	return layer, runs, blocks
}
