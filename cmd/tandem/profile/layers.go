package profile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// layers measures where the time of a step goes: of the longest chunk that was
// measured without a context, and of a single token after the longest.
func layers(ctx context.Context, e engine.Engine, points []*Point, budget time.Duration) (map[string]latency.LayerTimes, error) {
	var prefill, decode *Point
	for _, p := range points {
		switch {
		case p.Kind == Prefill && p.ChunkSampled && p.ChunkStart == 0 && (prefill == nil || p.Chunk > prefill.Chunk):
			prefill = p
		case p.Kind == Decode && p.Batch == 1 && (decode == nil || p.Context > decode.Context):
			decode = p
		}
	}
	times := make(map[string]latency.LayerTimes)
	for _, p := range []*Point{prefill, decode} {
		if p == nil {
			continue
		}
		t, err := layersOf(ctx, e, p, budget/2)
		if err != nil {
			return nil, err
		}
		times[p.Kind] = t
	}
	return times, nil
}

// leastSteps is how many steps are looked at, whatever they take.
const leastSteps = 5

func layersOf(ctx context.Context, e engine.Engine, p *Point, budget time.Duration) (latency.LayerTimes, error) {
	n := e.Model().Layers
	spans := make([][]float64, n+1) // layers, then what is after them
	batch := p.batch
	began := time.Now()
	for step := 0; step < leastSteps || step < most && time.Since(began) < budget; step++ {
		last := time.Now()
		note := func(i int) {
			now := time.Now()
			spans[i] = append(spans[i], float64(now.Sub(last))/float64(time.Millisecond))
			last = now
		}
		batch.LayerDone = note
		if _, err := e.Step(ctx, batch); err != nil {
			return latency.LayerTimes{}, fmt.Errorf("profile: %s step: %w", p.Kind, err)
		}
		note(n)
	}
	medians := make([]float64, n+1)
	for i, s := range spans {
		slices.Sort(s)
		medians[i] = rank(s, 0.5)
	}
	return latency.LayerTimes{Tokens: max(p.Chunk, p.Batch), Context: max(p.Chunk, p.Context+1), LayersMs: medians[:n], HeadMs: medians[n]}, nil
}
