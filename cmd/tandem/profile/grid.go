package profile

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Grid is the sizes of the steps to measure, each list from small to large. What the
// engine or Options do not allow is left out.
type Grid struct {
	// Chunks are prompt tokens in a step, each behind each of Starts.
	Chunks, Starts []int
	// Batches decode behind each of Contexts.
	Batches, Contexts []int
	// MixedChunks, behind nothing, are computed beside each of MixedBatches behind
	// MixedContext.
	MixedChunks, MixedBatches []int
	MixedContext              int
	// Drafts of each sequence are verified, for each of VerifyBatches behind each of
	// VerifyContexts.
	Drafts, VerifyBatches, VerifyContexts []int
}

// cpuGrid is for the CPU engine.
func cpuGrid() Grid {
	return Grid{
		Chunks: []int{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}, Starts: []int{0, 128, 512, 2048, 8192, 32768},
		Batches: []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256}, Contexts: []int{16, 128, 512, 2048, 8192, 32768},
		MixedChunks: []int{32, 256}, MixedBatches: []int{1, 4, 12, 24}, MixedContext: 128,
		Drafts: []int{1, 2, 4, 8, 15}, VerifyBatches: []int{1, 2, 4, 8, 16}, VerifyContexts: []int{128, 1024},
	}
}

// GPUGrid is for the CUDA engine, which computes longer chunks and larger batches. The
// longest steps fit into 32,768 tokens.
func GPUGrid() Grid {
	return Grid{
		Chunks: []int{16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 1536, 2048, 4096, 8192}, Starts: []int{0, 128, 1024, 8192, 24576},
		Batches: []int{1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}, Contexts: []int{128, 512, 2048, 8192, 24576, 32512},
		MixedChunks: []int{128, 512, 2048}, MixedBatches: []int{1, 8, 32, 128}, MixedContext: 1024,
		Drafts: []int{1, 2, 4, 8, 15}, VerifyBatches: []int{1, 4, 16, 64}, VerifyContexts: []int{512, 8192},
	}
}

// grid is all steps to measure, those that fit.
func grid(e engine.Engine, o Options) (points []*Point, leftOut int) {
	capacity, sizes := e.Capacity(), o.Grid
	if len(sizes.Chunks) == 0 {
		sizes = cpuGrid()
	}
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
	for _, chunk := range upTo(sizes.Chunks, min(chunkMost, longest)) {
		for _, start := range sizes.Starts {
			if start+chunk <= longest {
				add(Point{Kind: Prefill, Chunk: chunk, ChunkStart: start, ChunkSampled: true})
			}
		}
		add(Point{Kind: Prefill, Chunk: chunk})
	}
	contexts := upTo(sizes.Contexts, longest-1)
	for _, batch := range upTo(sizes.Batches, capacity.MaxSequences) {
		for _, context := range contexts {
			add(Point{Kind: Decode, Batch: batch, Context: context})
		}
	}
	for _, chunk := range upTo(sizes.MixedChunks, chunkMost) {
		for _, batch := range upTo(sizes.MixedBatches, capacity.MaxSequences-1) {
			if context := min(sizes.MixedContext, longest-1); chunk <= longest && chunk+batch <= capacity.MaxBatchTokens {
				add(Point{Kind: Mixed, Chunk: chunk, ChunkSampled: true, Batch: batch, Context: context})
			}
		}
	}
	for _, drafts := range upTo(sizes.Drafts, min(capacity.MaxDrafts, longest-2)) {
		for _, batch := range upTo(sizes.VerifyBatches, capacity.MaxSequences) {
			for _, context := range upTo(sizes.VerifyContexts, longest-1-drafts) {
				if batch*(1+drafts) <= capacity.MaxBatchTokens {
					add(Point{Kind: Verify, Batch: batch, Context: context, Drafts: drafts})
				}
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
	add := func(start, tokens int, sample *engine.Sample) {
		s := engine.Sequence{Start: start, Tokens: make([]int32, tokens), Sample: sample}
		for i := range s.Tokens {
			s.Tokens[i] = int32((i*7919 + start + 11) % vocabulary)
		}
		for range s.UsedBlocks(capacity.Layout.BlockTokens) {
			s.Blocks = append(s.Blocks, kvcache.BlockID(next))
			next++
		}
		p.batch.Sequences = append(p.batch.Sequences, s)
	}
	switch {
	case p.ChunkSampled:
		add(p.ChunkStart, p.Chunk, new(engine.Sample))
	case p.Chunk > 0:
		add(p.ChunkStart, p.Chunk, nil)
	}
	for range p.Batch {
		add(p.Context, 1+p.Drafts, &engine.Sample{Drafts: p.Drafts})
	}
	p.work = p.batch.Work()
	return p.batch.Validate(capacity, e.Model()) == nil
}
