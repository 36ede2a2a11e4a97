package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/processor"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Rate is how fast one way of moving bytes was in this run.
type Rate struct {
	// Name says what was moved how: "transfer tcp", "plain tcp 256KiB".
	Name string `json:"name"`
	// GBytesPerS is the best round, and for a plain copy the best try before them if
	// that was faster; Median is the middle round; 10⁹ bytes.
	GBytesPerS float64 `json:"gbytes_per_s"`
	Median     float64 `json:"median_gbytes_per_s"`
	// Spread is by how much Median falls short of GBytesPerS, as a share.
	Spread float64 `json:"spread"`
	// CPUNsPerByte is the processor time of both sides, nanoseconds a byte, the least
	// of the rounds; 0: not known.
	CPUNsPerByte float64 `json:"cpu_ns_per_byte,omitempty"`

	rounds []float64
}

// contender is a way of moving bytes. run returns how many it moved, in which time;
// prepare and check, which may be nil, go before it and after it, and count for nothing.
type contender struct {
	name    string
	prepare func()
	run     func(ctx context.Context) (int64, time.Duration, error)
	check   func() error
	// tried is how fast it was before the rounds, 10⁹ bytes a second; 0: not known.
	tried float64
}

// takeTurns lets each contender run once a round, in turns whose order alternates, so
// that what disturbs the machine disturbs all.
func takeTurns(ctx context.Context, contenders []contender, rounds int, said Progress) ([]Rate, error) {
	rates := make([]Rate, len(contenders))
	cpu := make([][]float64, len(contenders))
	for round := range rounds {
		for turn := range contenders {
			i := turn
			if round%2 == 1 {
				i = len(contenders) - 1 - turn
			}
			c := contenders[i]
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
		rates[i].summarize(contenders[i].name, contenders[i].tried, cpu[i])
	}
	return rates, nil
}

func (r *Rate) summarize(name string, tried float64, cpu []float64) {
	r.Name, r.GBytesPerS, r.Median = name, max(tried, slices.Max(r.rounds)), stats.Median(r.rounds)
	r.Spread = 1 - r.Median/r.GBytesPerS
	if len(cpu) > 0 {
		r.CPUNsPerByte = slices.Min(cpu)
	}
}

// lanes is how many transfers are under way at a time while a rate is measured: the
// next is opened while the last is committed, as between busy workers.
const lanes = 4

// ours is a contender that moves the KV of prompts through a link.
func (b *Bench) ours(l *link, transport string) contender {
	each := int64(b.plan.blocks() * b.layout.PageBytes())
	prompts := (b.plan.Bytes + each - 1) / each
	blocks := int(min(prompts, int64(b.prompts))) * b.plan.blocks()
	return contender{
		name:    "transfer " + transport,
		prepare: func() { clear(first(b.to, blocks)) },
		run: func(ctx context.Context) (int64, time.Duration, error) {
			began := time.Now()
			err := b.movePrompts(ctx, l, prompts)
			return prompts * each, time.Since(began), err
		},
		check: func() error {
			if !bytes.Equal(first(b.from, blocks), first(b.to, blocks)) {
				return errors.New("the pages that arrived differ from those that were sent")
			}
			return nil
		},
	}
}

// movePrompts moves the KV of so many prompts, some at a time, no two of them the
// same.
func (b *Bench) movePrompts(ctx context.Context, l *link, prompts int64) error {
	var next atomic.Int64
	free := make(chan int, b.prompts) // at least lanes: nobody waits
	for prompt := range b.prompts {
		free <- prompt
	}
	var tasks sync.WaitGroup
	errs := make([]error, lanes)
	for lane := range lanes {
		tasks.Go(func() {
			for errs[lane] == nil {
				if next.Add(1) > prompts {
					return
				}
				prompt := <-free
				_, errs[lane] = l.move(ctx, kvcache.BlockRange(prompt*b.plan.blocks(), b.plan.blocks()), nil)
				free <- prompt
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}
