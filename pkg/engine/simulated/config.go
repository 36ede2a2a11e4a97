package simulated

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/pace"
)

// Config describes a simulated device.
type Config struct {
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
	// Profile says how long a step takes. It must be valid. Nil: StepTime does.
	Profile *latency.Profile
	// StepTime says how long a step takes, in the simple form. Zero: no time at
	// all.
	StepTime latency.Model
	// Trouble is what goes wrong.
	Trouble Trouble
	// Device, if set, is what engines share: their steps take turns on it.
	Device *Device
	// LinkBytesPerSecond is the bandwidth at which KV arrives in the pages, counted
	// in the bytes of a real engine, whatever SliceBytes is. 0: at once.
	LinkBytesPerSecond float64
	// Precise ends steps within some tens of µs of their time, on Linux, where Go's
	// timers can be a millisecond late. It is not for virtual time. Close must be
	// called.
	Precise bool
	// Wait waits, for tests that hold a step. Default: a timer.
	Wait func(ctx context.Context, d time.Duration) error
}

// complete checks the configuration and fills in its zeros.
func (cfg *Config) complete() error {
	switch {
	case cfg.Blocks <= 0 || cfg.BlockTokens <= 0 || cfg.MaxBatchTokens <= 0 || cfg.MaxSequences <= 0:
		return errors.New("blocks, block tokens, batch tokens and sequences must be above 0")
	case cfg.Spec.Layers <= 0 || cfg.Spec.VocabSize <= 1:
		return errors.New("the model has no layers or no vocabulary")
	case !hasPlainToken(cfg.Spec):
		return fmt.Errorf("all %d tokens of the vocabulary begin or end a text, so none can be drawn", cfg.Spec.VocabSize)
	}
	if cfg.SliceBytes == 0 {
		cfg.SliceBytes = cfg.BlockTokens * recordBytes
	}
	switch {
	case cfg.SliceBytes < cfg.BlockTokens*recordBytes:
		return fmt.Errorf("a slice of %d bytes cannot hold %d records of %d bytes", cfg.SliceBytes, cfg.BlockTokens, recordBytes)
	case !(cfg.LinkBytesPerSecond >= 0) || math.IsInf(cfg.LinkBytesPerSecond, 1): // NaN too
		return fmt.Errorf("a link of %v bytes a second", cfg.LinkBytesPerSecond)
	case cfg.LinkBytesPerSecond > 0 && cfg.sliceSeconds() > maxSliceSeconds:
		return fmt.Errorf("a link of %v bytes a second takes more than an hour for a slice of %d bytes: make it faster",
			cfg.LinkBytesPerSecond, SliceBytes(cfg.Spec, cfg.BlockTokens))
	}
	if cfg.Profile != nil {
		if err := cfg.Profile.Validate(); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	return cfg.Trouble.Validate()
}

// maxSliceSeconds bounds the time of one slice on the link, so that the time of all
// slices of a chunk can be counted.
const maxSliceSeconds = 3600

// sliceSeconds is the time of one slice on the link.
func (cfg *Config) sliceSeconds() float64 {
	return float64(SliceBytes(cfg.Spec, cfg.BlockTokens)) / cfg.LinkBytesPerSecond
}

func (cfg *Config) newSleeper() sleeper {
	switch {
	case cfg.Wait != nil:
		return given(cfg.Wait)
	case cfg.Precise:
		return paced{pace.New()}
	}
	return paced{pace.Portable()}
}

// hasPlainToken says whether draw can end.
func hasPlainToken(spec model.Spec) bool {
	special := make(map[int32]bool)
	for _, token := range append([]int32{spec.BOS}, spec.EOS...) {
		if token >= 0 && int(token) < spec.VocabSize {
			special[token] = true
		}
	}
	return len(special) < spec.VocabSize
}
