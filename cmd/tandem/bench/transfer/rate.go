package transfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/processor"
)

// Rate is how fast one way of moving bytes was in this run.
type Rate struct {
	// Name says what was moved how: "transfer tcp", "plain tcp 256KiB".
	Name string `json:"name"`
	// GBytesPerS is the best round, Median the middle one; 10⁹ bytes.
	GBytesPerS float64 `json:"gbytes_per_s"`
	Median     float64 `json:"median_gbytes_per_s"`
	// Spread is by how much the middle round falls short of the best, as a share.
	Spread float64 `json:"spread"`
	// CPUNsPerByte is the processor time of both sides, nanoseconds a byte, the least
	// of the rounds; 0: not known.
	CPUNsPerByte float64 `json:"cpu_ns_per_byte,omitempty"`

	rounds []float64
}

// contestant is a way of moving bytes. run returns how many it moved, in which time;
// prepare and check, which may be nil, go before it and after it, and count for nothing.
type contestant struct {
	name    string
	prepare func()
	run     func(ctx context.Context) (int64, time.Duration, error)
	check   func() error
}

// compete lets each contestant run once a round, in turns whose order alternates, so
// that what disturbs the machine disturbs all.
func compete(ctx context.Context, contestants []contestant, rounds int, said Progress) ([]Rate, error) {
	rates := make([]Rate, len(contestants))
	cpu := make([][]float64, len(contestants))
	for round := range rounds {
		for turn := range contestants {
			i := turn
			if round%2 == 1 {
				i = len(contestants) - 1 - turn
			}
			c := contestants[i]
			if c.prepare != nil {
				c.prepare()
			}
			before, beforeErr := processor.CPUSeconds(os.Getpid())
			bytes, took, err := c.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			after, afterErr := processor.CPUSeconds(os.Getpid())
			if errors.Join(beforeErr, afterErr) == nil {
				cpu[i] = append(cpu[i], (after-before)*1e9/float64(bytes))
			}
			if c.check != nil {
				if err := c.check(); err != nil {
					return nil, fmt.Errorf("%s: %w", c.name, err)
				}
			}
			rate := float64(bytes) / 1e9 / took.Seconds()
			rates[i].rounds = append(rates[i].rounds, rate)
			said(fmt.Sprintf("round %d of %d: %s %.2f GB/s", round+1, rounds, c.name, rate))
		}
	}
	for i := range rates {
		rates[i].summarize(contestants[i].name, cpu[i])
	}
	return rates, nil
}

func (r *Rate) summarize(name string, cpu []float64) {
	r.Name, r.GBytesPerS, r.Median = name, slices.Max(r.rounds), median(r.rounds)
	r.Spread = 1 - r.Median/r.GBytesPerS
	if len(cpu) > 0 {
		r.CPUNsPerByte = slices.Min(cpu)
	}
}

// median is the middle one of some numbers, the mean of the middle two of an even
// count.
func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// lanes is how many transfers are under way at a time while a rate is measured: the
// next is opened while the last is committed, as between busy workers.
const lanes = 4

// ours is a contestant that moves the KV of prompts through a link.
func (b *Bench) ours(l *link, transport string) contestant {
	bytes := int64(b.plan.blocks() * b.layout.PageBytes())
	prompts := (b.plan.Bytes + bytes - 1) / bytes
	blocks := int(min(prompts, int64(b.prompts))) * b.plan.blocks()
	return contestant{
		name:    "transfer " + transport,
		prepare: func() { b.to.wipe(blocks) },
		run: func(ctx context.Context) (int64, time.Duration, error) {
			began := time.Now()
			err := b.movePrompts(ctx, l, prompts)
			return prompts * bytes, time.Since(began), err
		},
		check: func() error {
			if !same(b.from, b.to, blocks) {
				return errors.New("what arrived is not what was sent")
			}
			return nil
		},
	}
}

// movePrompts moves the KV of so many prompts, some at a time.
func (b *Bench) movePrompts(ctx context.Context, l *link, prompts int64) error {
	var next atomic.Int64
	var tasks sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		tasks.Go(func() {
			for errs[lane] == nil {
				i := next.Add(1) - 1
				if i >= prompts {
					return
				}
				blocks := blockRange(int(i%int64(b.prompts))*b.plan.blocks(), b.plan.blocks())
				_, errs[lane] = l.move(ctx, blocks, nil)
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// plain are contestants that copy plainly: the best two of all sizes of writes, found
// by a short try of each, since a round of all would take most of the time.
func (b *Bench) plain(ctx context.Context, transport string) (best []contestant, closeAll func(), err error) {
	type tried struct {
		c    contestant
		rate float64
	}
	var all []tried
	var open []*raw
	closeAll = func() {
		for _, r := range open {
			r.close()
		}
	}
	for _, write := range rawWrites() {
		r, err := newRaw(ctx, b.from.memory, b.to.memory, transport, b.dir, b.plan.Connections, write)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		open = append(open, r)
		copying := func(ctx context.Context, bytes int64) (int64, time.Duration, error) {
			began := time.Now()
			err := r.copy(ctx, bytes)
			return bytes, time.Since(began), err
		}
		short := max(b.plan.Bytes/8, int64(write))
		if _, _, err := copying(ctx, short); err != nil { // not counted: the connection is new
			closeAll()
			return nil, nil, err
		}
		_, took, err := copying(ctx, short)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		c := contestant{name: fmt.Sprintf("plain %s %dKiB", transport, write>>10), run: func(ctx context.Context) (int64, time.Duration, error) {
			return copying(ctx, b.plan.Bytes)
		}}
		all = append(all, tried{c, float64(short) / took.Seconds()})
	}
	slices.SortFunc(all, func(a, b tried) int {
		if a.rate > b.rate {
			return -1
		}
		return 1
	})
	for _, t := range all[:2] {
		best = append(best, t.c)
	}
	return best, closeAll, nil
}
