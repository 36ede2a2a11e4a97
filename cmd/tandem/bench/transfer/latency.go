package transfer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
)

// Behind is a transfer of one block while others have the connection. Times are from
// before its reservation to its commit, milliseconds.
type Behind struct {
	// AloneMs and BehindMs are medians, with what nine of ten do not exceed.
	AloneMs     float64 `json:"alone_ms"`
	AloneP90Ms  float64 `json:"alone_p90_ms"`
	BehindMs    float64 `json:"behind_ms"`
	BehindP90Ms float64 `json:"behind_p90_ms"`
	Ratio       float64 `json:"ratio"`
	WorstMs     float64 `json:"worst_ms"`
}

// behind measures FigureBehind: the large transfers are all open, with everything
// offered, and each is followed by another of its kind.
func (b *Bench) behind(ctx context.Context, l *link, r *Result) error {
	one := func(ctx context.Context) (float64, error) {
		m, err := l.move(ctx, kvcache.BlockRange(0, 1), nil)
		return stats.Milliseconds(m.committed.Sub(m.begun)), err
	}
	alone, err := repeat(ctx, b.plan.Samples, one)
	if err != nil {
		return err
	}
	behind, err := b.behindLarge(ctx, l, one)
	if err != nil {
		return err
	}
	r.Behind = &Behind{AloneMs: stats.Median(alone), AloneP90Ms: stats.QuantileOf(alone, 0.9), BehindMs: stats.Median(behind), BehindP90Ms: stats.QuantileOf(behind, 0.9)}
	r.Behind.Ratio = r.Behind.BehindMs / r.Behind.AloneMs
	r.Behind.WorstMs = slices.Max(behind)
	b.said("a block behind large transfers was measured")
	return nil
}

// behindLarge repeats one while large transfers are under way.
func (b *Bench) behindLarge(ctx context.Context, l *link, one func(context.Context) (float64, error)) ([]float64, error) {
	busy, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer stop()
	var offered sync.WaitGroup
	errs := make([]error, b.plan.Large)
	for i := range b.plan.Large {
		offered.Add(1)
		tasks.Go(func() {
			first := sync.OnceFunc(offered.Done)
			defer first()
			// Blocks are read by many and written by many, always with the same bytes.
			blocks := kvcache.BlockRange(i%b.prompts*b.plan.blocks(), b.plan.blocks())
			for busy.Err() == nil && errs[i] == nil {
				_, errs[i] = l.move(busy, blocks, func(t *kvtransfer.Transfer) error {
					l.offer(t, blocks)
					first()
					return nil
				})
			}
			if busy.Err() != nil { // it was told to stop
				errs[i] = nil
			}
		})
	}
	offered.Wait()
	times, err := repeat(ctx, b.plan.Samples, one)
	stop()
	tasks.Wait()
	return times, errors.Join(append(errs, err)...)
}

// Exposed is what of a transfer comes after the last layer was computed. Times are
// medians, milliseconds, those named P90 what nine of ten do not exceed.
type Exposed struct {
	// AfterMs is the transfer when it is sent only then: from the first slice offered
	// to the commit.
	AfterMs    float64 `json:"after_ms"`
	AfterP90Ms float64 `json:"after_p90_ms"`
	// PrefillMs is the simulated prefill: twice that.
	PrefillMs float64 `json:"prefill_ms"`
	// ExposedMs is from the last layer to the commit, when each layer was sent as it
	// was computed. Over shared memory the receiver has it then: engines store it there too.
	ExposedMs    float64 `json:"exposed_ms"`
	ExposedP90Ms float64 `json:"exposed_p90_ms"`
	Ratio        float64 `json:"ratio"`
	// CopiedBytes is what was copied of each such transfer after the prefill had stored it.
	CopiedBytes uint64 `json:"copied_bytes"`
}

// exposed measures FigureExposed, the two ways in turns.
func (b *Bench) exposed(ctx context.Context, l *link, r *Result) error {
	blocks := kvcache.BlockRange(0, b.plan.blocks())
	after := func(ctx context.Context) (float64, error) {
		var offered time.Time
		m, err := l.move(ctx, blocks, func(t *kvtransfer.Transfer) error {
			offered = time.Now()
			l.offer(t, blocks)
			return nil
		})
		return stats.Milliseconds(m.committed.Sub(offered)), err
	}
	first, err := repeat(ctx, b.plan.Samples, after)
	if err != nil {
		return err
	}
	prefill := 2 * stats.Median(first)
	copied := uint64(0)
	computing := func(ctx context.Context) (float64, error) {
		var last time.Time
		m, err := l.move(ctx, blocks, func(t *kvtransfer.Transfer) error {
			mirror, began := t.Mirror(0, len(blocks)), time.Now()
			for layer := range l.layers {
				due := time.Duration(prefill * float64(time.Millisecond) * float64(layer+1) / float64(l.layers))
				if err := waitUntil(ctx, began.Add(due)); err != nil {
					return err
				}
				l.store(mirror, layer, blocks)
				last = time.Now()
				t.Send(layer, 0, blocks)
			}
			return nil
		})
		copied = max(copied, m.copied)
		return stats.Milliseconds(m.committed.Sub(last)), err
	}
	var again, exposed []float64
	for range b.plan.Samples {
		afterMs, err := after(ctx)
		if err != nil {
			return err
		}
		exposedMs, err := computing(ctx)
		if err != nil {
			return err
		}
		again, exposed = append(again, afterMs), append(exposed, exposedMs)
	}
	r.Exposed = &Exposed{
		AfterMs: stats.Median(again), AfterP90Ms: stats.QuantileOf(again, 0.9), PrefillMs: prefill, ExposedMs: stats.Median(exposed), ExposedP90Ms: stats.QuantileOf(exposed, 0.9),
	}
	r.Exposed.Ratio, r.Exposed.CopiedBytes = r.Exposed.ExposedMs/r.Exposed.AfterMs, copied
	b.said("exposed transfers were measured")
	return nil
}

// repeat measures a time so often, after one that is not counted.
func repeat(ctx context.Context, n int, once func(context.Context) (float64, error)) ([]float64, error) {
	var times []float64
	for i := range n + 1 {
		ms, err := once(ctx)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			times = append(times, ms)
		}
	}
	return times, nil
}

func waitUntil(ctx context.Context, due time.Time) error {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
