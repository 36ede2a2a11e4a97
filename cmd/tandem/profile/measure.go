package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

const (
	// most repeats of one point.
	most = 300
	// betweens is how often Options.Between is called.
	betweens = 3
	// beforeEven is how often each point is measured before Options.Even looks.
	beforeEven = 3
)

// measure goes through the points again and again, each time in another order, so
// that a disturbance hits all alike. The first time goes from short steps to long
// ones and ends when a third of the time is over.
func measure(ctx context.Context, e engine.Engine, points []*Point, o Options) ([]*Point, error) {
	order := slices.Clone(points)
	costs := engine.CostsOf(e)
	size := func(p *Point) float64 {
		prefill, decode := costs.Step(p.work)
		return prefill.FLOPs + decode.FLOPs
	}
	slices.SortStableFunc(order, func(a, b *Point) int { return cmp.Compare(size(a), size(b)) })
	began := time.Now()
	spent := func() time.Duration {
		d := time.Since(began)
		if o.Progress != nil {
			o.Progress("profile", int64(min(d, o.Duration)), int64(o.Duration))
		}
		return d
	}
	calls := 0
	between := func() error {
		if o.Between == nil || calls == betweens || time.Since(began) < o.Duration*time.Duration(calls+1)/(betweens+1) {
			return nil
		}
		calls++
		return o.Between()
	}
	const warm = 3 // steps that are not counted
	for i := range warm {
		if err := order[min(i, len(order)-1)].once(ctx, e, false); err != nil {
			return nil, err
		}
	}
	seen := make(map[string]bool)
	for i, p := range order {
		if spent() > o.Duration/3 && seen[Prefill] && seen[Decode] {
			order = order[:i]
			break
		}
		seen[p.Kind] = true
		if err := errors.Join(p.once(ctx, e, true), between()); err != nil {
			return nil, err
		}
	}
	chance := rand.New(rand.NewPCG(3, 4))
	for round := 1; round < most && spent() < o.Duration; round++ {
		chance.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		share := 0.0 // of the time, on average
		for _, p := range order {
			share += p.spent / float64(len(order))
		}
		for _, p := range order {
			if o.Even && round >= beforeEven && p.spent > 1.5*share {
				continue
			}
			if err := errors.Join(p.once(ctx, e, true), between()); err != nil {
				return nil, err
			}
			if round > 2 && spent() > o.Duration {
				break
			}
		}
	}
	for ; o.Between != nil && calls < betweens; calls++ { // the steps took less than Duration
		if err := o.Between(); err != nil {
			return nil, err
		}
	}
	measured := slices.DeleteFunc(slices.Clone(points), func(p *Point) bool { return len(p.times) == 0 })
	for _, p := range measured {
		p.sum()
	}
	return measured, nil
}

func (p *Point) once(ctx context.Context, e engine.Engine, counts bool) error {
	out, err := e.Step(ctx, p.batch)
	if err != nil {
		return fmt.Errorf("profile: %s step: %w", p.Kind, err)
	}
	if counts {
		ms := float64(out.Compute) / float64(time.Millisecond)
		p.times, p.spent = append(p.times, ms), p.spent+ms
	}
	return nil
}

func (p *Point) sum() {
	slices.Sort(p.times)
	p.Repeats = len(p.times)
	p.MedianMs = stats.Quantile(p.times, 0.5)
	if p.MedianMs > 0 {
		p.Spread = 1 - stats.Quantile(p.times, 0.16)/p.MedianMs
	}
}

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
		medians[i] = stats.Quantile(s, 0.5)
	}
	return latency.LayerTimes{Tokens: max(p.Chunk, p.Batch), Context: max(p.Chunk, p.Context+1), LayersMs: medians[:n], HeadMs: medians[n]}, nil
}
