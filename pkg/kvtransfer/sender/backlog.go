package sender

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

// maxRuns is the maximum number of runs in a chunk.
const maxRuns = 1 << 16

// backlog is a transfer's unsent slices, by layer in order of arrival. New slices of a
// waiting layer join it.
type backlog struct {
	order  []int
	layers []layerBacklog
}

type layerBacklog struct {
	first, last *segment
	slices      int
}

// segment is a range of consecutive blocks.
type segment struct {
	first  int
	blocks []kvcache.BlockID
	next   *segment
}

// segments is a free list, so that a backlog does not allocate in the long run.
type segments struct{ free *segment }

func (p *segments) get() *segment {
	s := p.free
	if s == nil {
		return new(segment)
	}
	p.free = s.next
	*s = segment{}
	return s
}

func (p *segments) put(s *segment) { *s, p.free = segment{next: p.free}, s }

func (b *backlog) empty() bool { return len(b.order) == 0 }

func (b *backlog) add(pool *segments, layers, layer, first int, blocks []kvcache.BlockID) {
	if b.layers == nil {
		b.layers = make([]layerBacklog, layers)
		b.order = make([]int, 0, layers)
	}
	l := &b.layers[layer]
	s := pool.get()
	s.first, s.blocks = first, blocks
	if l.first == nil {
		l.first = s
		b.order = append(b.order, layer)
	} else {
		l.last.next = s
	}
	l.last = s
	l.slices += len(blocks)
}

// next is the maximum number of slices of the next chunk.
func (b *backlog) next() int { return b.layers[b.order[0]].slices }

// inOneLayer reports that all slices are of one layer.
func (b *backlog) inOneLayer() bool { return len(b.order) == 1 }

// clear discards the backlog.
func (b *backlog) clear(pool *segments) {
	for _, layer := range b.order {
		l := &b.layers[layer]
		for l.first != nil {
			s := l.first
			l.first = s.next
			pool.put(s)
		}
		*l = layerBacklog{}
	}
	b.order = b.order[:0]
}

// take removes the next chunk from the first layer and appends it to runs and blocks, which
// must be empty: ascending runs, between one and limit slices, at most maxRuns. The rest of
// the layer goes to the end of the order.
func (b *backlog) take(pool *segments, limit int, runs []wire.Run, blocks []kvcache.BlockID) (layer int, _ []wire.Run, _ []kvcache.BlockID) {
	layer = b.order[0]
	b.order = slices.Delete(b.order, 0, 1)
	l := &b.layers[layer]
	past := -1
	for l.first != nil && len(blocks) < limit && l.first.first >= past {
		s := l.first
		if s.first != past && len(runs) == maxRuns {
			break
		}
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
			l.first = s.next
			pool.put(s)
		}
	}
	l.slices -= len(blocks)
	if l.first != nil {
		b.order = append(b.order, layer)
	}
	return layer, runs, blocks
}
