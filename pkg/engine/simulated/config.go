package simulated

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// Config describes a simulated device. Operators choose what RegisterFlags sets.
type Config struct {
	// StepTime says how long a step takes, where there is no Profile. Zero: no time at
	// all.
	StepTime latency.Model
	// Transfer is the bandwidth at which KV arrives at a worker, such as 10GB/s;
	// empty: that of the real connection alone. For makes LinkBytesPerSecond of it.
	Transfer string
	// RealPages lets For choose pages as large as a real engine's, so that transfers
	// send as many bytes. Otherwise they hold records of 8 bytes a token and layer.
	RealPages bool
	// ShareDevice asks whoever makes the engines of a process for one Device, so that
	// they take turns, as CPU engines do.
	ShareDevice bool
	// Jitter is the spread of step times; below 0: the profile's. For makes Trouble of
	// it, of Seed, and of the lists.
	Jitter float64
	// Acceptance is which share of guesses at next tokens by n-grams (package speculation) is
	// right, among those before which none was wrong: LeastAcceptance to 1. Texts repeat
	// themselves that much. 0: they do not.
	Acceptance float64
	// Seed of what is drawn.
	Seed uint64
	// Slow, Fail, Stall and Die are troubles of single workers: ID=FACTOR,
	// ID=PROBABILITY, ID=AT+FOR and ID=AT. The ID * is every worker.
	Slow, Fail, Stall, Die []string

	// Spec is the model that it pretends to run.
	Spec model.Spec
	// Blocks and BlockTokens size the KV memory.
	Blocks, BlockTokens int
	// MaxBatchTokens and MaxSequences bound a step.
	MaxBatchTokens, MaxSequences int
	// SliceBytes is the size of one layer's slice of a block: what a transfer has
	// to move. Default: the records alone, BlockTokens times 8 bytes. The function
	// SliceBytes has a real engine's.
	SliceBytes int
	// Brief keeps one record a block, of the last layer: the one of the last token in it.
	// A step takes the same time however long the contexts and however many the layers
	// are. Each token still depends on all before it, but what changes a block after the
	// next one was begun, or another layer, is not noticed, and batches are not validated:
	// who makes them is trusted. The default for SliceBytes is one record then.
	Brief bool
	// SharedKV has the pages in memory that other processes can map (engine.Sharing), where the
	// system has such.
	SharedKV bool
	// Profile says how long a step takes. It must be valid. Nil: StepTime does.
	Profile *latency.Profile
	// Trouble is what goes wrong.
	Trouble Trouble
	// Device, if set, is what engines share: their steps take turns on it.
	Device *Device
	// LinkBytesPerSecond is the bandwidth at which KV arrives in the pages, counted
	// in the bytes of a real engine, whatever SliceBytes is. 0: at once.
	LinkBytesPerSecond float64
	// NewTimer makes what steps and the link wait by; Close closes it. Default: Go's
	// timers, which can be a millisecond late, and run on virtual time.
	NewTimer func() Timer
	// Wait waits instead, for tests that hold a step.
	Wait func(ctx context.Context, d time.Duration) error
	// Hold is called in each step of the worker that For is of, and ends when the step may go on: for
	// tests that hold a worker of a whole mesh. Nil: none is held.
	Hold func(ctx context.Context, id string) error
}

// complete checks the configuration and fills in its zeros.
func (c *Config) complete() error {
	if err := checkAcceptance(c.Acceptance); err != nil {
		return fmt.Errorf("acceptance: %w", err)
	}
	switch {
	case c.Blocks <= 0 || c.BlockTokens <= 0 || c.MaxBatchTokens <= 0 || c.MaxSequences <= 0:
		return errors.New("blocks, block tokens, batch tokens and sequences must be above 0")
	case c.Spec.Layers <= 0 || c.Spec.VocabSize <= 1:
		return errors.New("the model has no layers or no vocabulary")
	case c.Acceptance > 0 && repeatedTokens(c.Acceptance) > plainTokens(c.Spec):
		return fmt.Errorf("an acceptance of %v needs %d tokens that texts can have, and the vocabulary has %d: raise it, or use another model", c.Acceptance, repeatedTokens(c.Acceptance), plainTokens(c.Spec))
	case plainTokens(c.Spec) == 0:
		return fmt.Errorf("all %d tokens of the vocabulary mark the start or end of a text, so none can be drawn", c.Spec.VocabSize)
	}
	records := c.BlockTokens
	if c.Brief {
		records = 1
	}
	if c.SliceBytes == 0 {
		c.SliceBytes = records * recordBytes
	}
	switch {
	case c.SliceBytes < records*recordBytes:
		return fmt.Errorf("a slice of %d bytes cannot hold %d records of %d bytes", c.SliceBytes, records, recordBytes)
	case !(c.LinkBytesPerSecond >= 0) || math.IsInf(c.LinkBytesPerSecond, 1): // NaN too
		return fmt.Errorf("a link of %v bytes per second: use 0 for no limit, or a finite number above it", c.LinkBytesPerSecond)
	case c.LinkBytesPerSecond > 0 && c.sliceSeconds() > maxSliceSeconds:
		return fmt.Errorf("a link of %v bytes per second takes more than an hour for a slice of %d bytes: make it faster",
			c.LinkBytesPerSecond, SliceBytes(c.Spec, c.BlockTokens))
	}
	if c.Profile != nil {
		if err := c.Profile.Validate(); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	return c.Trouble.Validate()
}

// maxSliceSeconds bounds the time of one slice on the link, so that the time of all
// slices of a chunk can be counted.
const maxSliceSeconds = 3600

// sliceSeconds is the time of one slice on the link.
func (c *Config) sliceSeconds() float64 {
	return float64(SliceBytes(c.Spec, c.BlockTokens)) / c.LinkBytesPerSecond
}

func (c *Config) newTimer() Timer {
	switch {
	case c.Wait != nil:
		return waitFunc(c.Wait)
	case c.NewTimer != nil:
		return c.NewTimer()
	}
	return waitFunc(wait)
}

// plainTokens is how many tokens can be drawn.
func plainTokens(spec model.Spec) int {
	special := make(map[int32]bool)
	for _, token := range append([]int32{spec.BOS}, spec.EOS...) {
		if token >= 0 && int(token) < spec.VocabSize {
			special[token] = true
		}
	}
	return spec.VocabSize - len(special)
}
