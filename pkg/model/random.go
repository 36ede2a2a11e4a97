package model

import (
	"context"
	"fmt"
	"runtime"

	"github.com/tandem-serving/tandem/pkg/parallel"
)

// Random is a model of random weights that is in memory alone, for measuring engines
// without a disk. Tensors of one distribution share their bytes, so that it takes the
// memory of the largest few: what such a model says means nothing, and its Digest is
// empty, so that nobody serves it. Weights are distributed as Synthesize does it. Close
// frees nothing: the memory goes with the model.
func Random(ctx context.Context, shape Shape, seed uint64) (*Model, error) {
	_, spec, err := shape.config()
	if err != nil {
		return nil, err
	}
	spec.Name, spec.WeightType = shape.Name, BF16.String()
	m := &Model{spec: spec, layers: make([]LayerWeights, spec.Layers)}
	wanted := slots(spec)
	sizes := map[drawn]int64{}
	for _, w := range wanted {
		key := drawnFrom(w, spec)
		sizes[key] = max(sizes[key], slotBytes(w))
	}
	shared, err := randomBytes(ctx, sizes, seed)
	if err != nil {
		return nil, fmt.Errorf("make random weights: %w", err)
	}
	for _, w := range wanted {
		size := slotBytes(w)
		*w.to(m) = Tensor{Name: w.name, DType: BF16, Shape: w.shape, Data: shared[drawnFrom(w, spec)][:size:size]}
	}
	if spec.TiedEmbeddings {
		m.output = m.embedding
	}
	return m, nil
}

// randomBytes makes so many bytes of each distribution.
func randomBytes(ctx context.Context, sizes map[drawn]int64, seed uint64) (map[drawn][]byte, error) {
	made := map[drawn][]byte{}
	var chunks []synthChunk
	into := map[*source][]byte{}
	for key, size := range sizes {
		from := newSource(seed, fmt.Sprint(key.mean, key.deviation), key.mean, key.deviation)
		made[key] = make([]byte, size)
		into[from] = made[key]
		for at := int64(0); at < size; at += synthChunkBytes {
			chunks = append(chunks, synthChunk{from, at, at, int(min(synthChunkBytes, size-at))})
		}
	}
	return made, parallel.Do(ctx, runtime.GOMAXPROCS(0), int64(len(chunks)), func(i int64) error {
		c := chunks[i]
		c.from.fill(into[c.from][c.at:c.at+int64(c.bytes)], c.offset)
		return nil
	}, func(int64) {})
}
