// Package profile measures how long an engine's steps take, over a grid of chunk
// sizes, batch sizes and contexts, and makes a latency.Profile of it.
//
// `tandem profile` imports it, and so does the benchmark of the engine, which judges
// limits alike. It owns nothing: the engine is the caller's, and nobody else may step it
// meanwhile. Goroutines fill the pages of an engine that are not host memory, and are waited
// for.
package profile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Options of a measurement.
type Options struct {
	// Duration is about how long it may take. What does not fit in is left out,
	// the longest steps first.
	Duration time.Duration
	// Grid is what to measure; without chunks it is cpuGrid.
	Grid Grid
	// Even spends about as much time on each kind of step, where long ones take a
	// hundred times as long as short ones: once measured a few times, they sit out.
	Even bool
	// MaxContext and MaxChunk bound the grid, in tokens; 0: the engine's limits.
	MaxContext, MaxChunk int
	Layers               bool
	// Between, if set, is called three times, spread over Duration, between two steps:
	// to look at the machine meanwhile. Where the steps are done before Duration is over, what
	// is left of the three comes after them. Its error ends the measurement.
	Between func() error
	// Progress, if set, is told how much of Duration has passed.
	Progress func(stage string, done, total int64)
}

// Kinds of steps.
const (
	Prefill = "prefill"
	Decode  = "decode"
	Mixed   = "mixed"
	Verify  = "verify"
)

// Point is one kind of step that was measured.
type Point struct {
	Kind string `json:"kind"`
	// Chunk prompt tokens from position ChunkStart on; 0: none.
	Chunk      int `json:"chunk,omitempty"`
	ChunkStart int `json:"chunk_start,omitempty"`
	// ChunkSampled: a token is drawn at the chunk's end.
	ChunkSampled bool `json:"chunk_sampled,omitempty"`
	// Batch sequences of one token each after Context; 0: none.
	Batch   int `json:"batch,omitempty"`
	Context int `json:"context,omitempty"`
	// Drafts of each of those sequences are verified, all of them wrong but by chance.
	Drafts int `json:"drafts,omitempty"`
	// Repeats is how often it was measured, MedianMs the median, Spread how far the
	// 16th percentile is below it, over it: what other processes take away makes
	// steps longer only, and is not of the engine.
	Repeats  int     `json:"repeats"`
	MedianMs float64 `json:"median_ms"`
	Spread   float64 `json:"spread"`
	// FittedMs is what the profile says, Error by how much of MedianMs it is off.
	FittedMs float64 `json:"fitted_ms"`
	Error    float64 `json:"error"`

	batch engine.Batch
	work  latency.StepWork
	times []float64 // milliseconds
	spent float64   // their sum
}

// Result is what was measured.
type Result struct {
	// Profile has terms, errors and jitter, and layers if asked for; who measured
	// and what limits there are is the caller's to add.
	Profile *latency.Profile
	// Points in the order of the grid.
	Points []*Point
	// LeftOut is how many points did not fit into the duration or the KV memory.
	LeftOut int
	// FLOPsPerSecond is the most that a prompt chunk reached, ReadBytesPerSecond
	// the most that a step of one single token did.
	FLOPsPerSecond, ReadBytesPerSecond float64
}

// Measure measures an engine. It fills KV pages with numbers of its own and leaves
// them so.
func Measure(ctx context.Context, e engine.Engine, o Options) (*Result, error) {
	points, leftOut := grid(e, o)
	if len(points) == 0 {
		return nil, errors.New("profile: nothing fits into the engine: give it more KV memory")
	}
	if err := fill(ctx, e, points); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	measured, err := measure(ctx, e, points, o)
	if err != nil {
		return nil, err
	}
	result := &Result{Points: measured, LeftOut: leftOut + len(points) - len(measured)}
	if err := result.fit(); err != nil {
		return nil, err
	}
	result.reach(engine.CostsOf(e))
	if o.Layers {
		if result.Profile.Layers, err = layers(ctx, e, measured, o.Duration/10); err != nil {
			return nil, err
		}
	}
	return result, nil
}
