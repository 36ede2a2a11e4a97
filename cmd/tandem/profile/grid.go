package profile

import (
	"fmt"
	"math/rand/v2"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// grid is all steps to measure, those that fit.
func grid(e engine.Engine, o Options) (points []*Point, leftOut int) {
	capacity := e.Capacity()
	longest := e.Model().ContextTokens
	if o.MaxContext > 0 {
		longest = min(longest, o.MaxContext)
	}
	chunkMost := capacity.MaxBatchTokens
	if o.MaxChunk > 0 {
		chunkMost = min(chunkMost, o.MaxChunk)
	}
	add := func(p Point) {
		if p.build(e) {
			points = append(points, &p)
		} else {
			leftOut++
		}
	}
	contexts := upTo([]int{16, 128, 512, 2048, 8192, 32768}, longest-1)
	chunks := upTo([]int{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}, min(chunkMost, longest))
	for _, chunk := range chunks {
		for _, start := range append([]int{0}, contexts...) {
			if start == 16 || start+chunk > longest {
				continue
			}
			add(Point{Kind: Prefill, Chunk: chunk, ChunkStart: start, ChunkSampled: true})
		}
		add(Point{Kind: Prefill, Chunk: chunk})
	}
	batches := upTo([]int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256}, capacity.MaxSequences)
	for _, batch := range batches {
		for _, context := range contexts {
			add(Point{Kind: Decode, Batch: batch, Context: context})
		}
	}
	for _, chunk := range upTo([]int{32, 256}, chunkMost) {
		for _, batch := range upTo([]int{1, 4, 12, 24}, capacity.MaxSequences-1) {
			if context := min(128, longest-1); chunk <= longest && chunk+batch <= capacity.MaxBatchTokens {
				add(Point{Kind: Mixed, Chunk: chunk, ChunkSampled: true, Batch: batch, Context: context})
			}
		}
	}
	return points, leftOut
}

// upTo is the sizes up to a limit, and the limit if there is no other.
func upTo(sizes []int, limit int) []int {
	n := 0
	for n < len(sizes) && sizes[n] <= limit {
		n++
	}
	if n == 0 && limit > 0 {
		return []int{limit}
	}
	return sizes[:n]
}

// build makes the batch; false if it does not fit.
func (p *Point) build(e engine.Engine) bool {
	capacity, vocabulary := e.Capacity(), e.Model().VocabSize
	next := 0
	add := func(start, tokens int, sampled bool) {
		s := engine.Sequence{Start: start, Tokens: make([]int32, tokens)}
		for i := range s.Tokens {
			s.Tokens[i] = int32((i*7919 + start + 11) % vocabulary)
		}
		size := capacity.Layout.BlockTokens
		for range (start + tokens + size - 1) / size {
			s.Blocks = append(s.Blocks, kvcache.BlockID(next))
			next++
		}
		if sampled {
			s.Sample = &engine.Sample{}
		}
		p.batch.Sequences = append(p.batch.Sequences, s)
	}
	if p.Chunk > 0 {
		add(p.ChunkStart, p.Chunk, p.ChunkSampled)
	}
	for range p.Batch {
		add(p.Context, 1, true)
	}
	p.work = p.batch.Work()
	return p.batch.Validate(capacity, e.Model()) == nil
}

// fill gives every block that is read numbers like those of real keys and values:
// memory that was never written is read faster, and other numbers may not be.
func fill(e engine.Engine, points []*Point) error {
	blocks := 0
	for _, p := range points {
		for _, s := range p.batch.Sequences {
			blocks = max(blocks, int(s.Blocks[len(s.Blocks)-1])+1)
		}
	}
	layout := e.Capacity().Layout
	slice := make([]byte, layout.SliceBytes)
	chance := rand.New(rand.NewPCG(1, 2))
	for i := 0; i+1 < len(slice); i += 2 { // bf16 of either sign, between 2⁻⁷ and 2
		slice[i], slice[i+1] = byte(chance.Uint32()), byte(0x3c+chance.IntN(4))|byte(chance.IntN(2)<<7)
	}
	if layout.ElementType == "int8" { // codes, then scales
		codes := 2 * layout.KVHeads * layout.HeadSize * layout.BlockTokens
		for i := range slice[:codes] {
			slice[i] = byte(chance.IntN(255) - 127)
		}
		for i := codes; i+1 < len(slice); i += 2 { // bf16 from 2⁻⁷ to 2⁻⁶: 127 codes make the same
			slice[i], slice[i+1] = byte(chance.IntN(128)), 0x3c
		}
	}
	for block := range blocks {
		for layer := range layout.Layers {
			if err := e.Pages().Write(layer, []kvcache.BlockID{kvcache.BlockID(block)}, slice); err != nil {
				return fmt.Errorf("fill the KV pages: %w", err)
			}
		}
	}
	return nil
}
