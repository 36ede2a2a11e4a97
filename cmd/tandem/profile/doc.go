// Package profile measures how long an engine's steps take, over a grid of chunk
// sizes, batch sizes and contexts, and makes a latency.Profile of it.
//
// `tandem profile` imports it. It owns nothing: the engine is the caller's, and
// nobody else may step it meanwhile. It starts no goroutines.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Options of a measurement.
type Options struct {
	// Duration is about how long it may take. What does not fit in is left out,
	// the longest steps first.
	Duration time.Duration
	// MaxContext and MaxChunk bound the grid, in tokens; 0: the engine's limits.
	MaxContext, MaxChunk int
	// Layers asks for the time of each layer too.
	Layers bool
	// Progress, if set, is told how much of Duration has passed.
	Progress func(stage string, done, total int64)
}

// Kinds of steps.
const (
	Prefill = "prefill"
	Decode  = "decode"
	Mixed   = "mixed"
)

// Point is one kind of step that was measured.
type Point struct {
	// Kind is Prefill, Decode or Mixed.
	Kind string `json:"kind"`
	// Chunk prompt tokens from position ChunkStart on; 0: none.
	Chunk      int `json:"chunk,omitempty"`
	ChunkStart int `json:"chunk_start,omitempty"`
	// ChunkSampled: a token is drawn at the chunk's end.
	ChunkSampled bool `json:"chunk_sampled,omitempty"`
	// Batch sequences of one token each after Context; 0: none.
	Batch   int `json:"batch,omitempty"`
	Context int `json:"context,omitempty"`
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

// most repeats of one point.
const most = 300

// Measure measures an engine. It fills KV pages with numbers of its own and leaves
// them so.
func Measure(ctx context.Context, e engine.Engine, o Options) (*Result, error) {
	points, leftOut := grid(e, o)
	if len(points) == 0 {
		return nil, errors.New("profile: nothing fits into the engine: give it more KV memory")
	}
	if err := fill(e, points); err != nil {
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
	result.reach(engine.NewCosts(e.Model()))
	if o.Layers {
		if result.Profile.Layers, err = layers(ctx, e, measured, o.Duration/10); err != nil {
			return nil, err
		}
	}
	return result, nil
}

// grid is all steps to measure, those that fit.
func grid(e engine.Engine, o Options) (points []*Point, leftOut int) {
	capacity := e.Capacity()
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
	contexts := upTo([]int{16, 128, 512, 2048, 8192, 32768}, longest-1)
	chunks := upTo([]int{2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}, min(chunkMost, longest))
	for _, chunk := range chunks {
		for _, start := range append([]int{0}, contexts...) {
			if start == 16 || start+chunk > longest {
				continue
			}
			add(Point{Kind: Prefill, Chunk: chunk, ChunkStart: start, ChunkSampled: true})
		}
		add(Point{Kind: Prefill, Chunk: chunk})
	}
	batches := upTo([]int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256}, capacity.MaxSequences)
	for _, batch := range batches {
		for _, context := range contexts {
			add(Point{Kind: Decode, Batch: batch, Context: context})
		}
	}
	for _, chunk := range upTo([]int{32, 256}, chunkMost) {
		for _, batch := range upTo([]int{1, 8}, capacity.MaxSequences-1) {
			if context := min(128, longest-1); chunk <= longest && chunk+batch <= capacity.MaxBatchTokens {
				add(Point{Kind: Mixed, Chunk: chunk, ChunkSampled: true, Batch: batch, Context: context})
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
	add := func(start, tokens int, sampled bool) {
		s := engine.Sequence{Start: start, Tokens: make([]int32, tokens)}
		for i := range s.Tokens {
			s.Tokens[i] = int32((i*7919 + start + 11) % vocabulary)
		}
		size := capacity.Layout.BlockTokens
		for range (start + tokens + size - 1) / size {
			s.Blocks = append(s.Blocks, kvcache.BlockID(next))
			next++
		}
		if sampled {
			s.Sample = &engine.Sample{}
		}
		p.batch.Sequences = append(p.batch.Sequences, s)
	}
	if p.Chunk > 0 {
		add(p.ChunkStart, p.Chunk, p.ChunkSampled)
	}
	for range p.Batch {
		add(p.Context, 1, true)
	}
	p.work = p.batch.Work()
	return p.batch.Validate(capacity, e.Model()) == nil
}

// fill gives every block that is read numbers like those of real keys and values:
// memory that was never written is read faster, and other numbers may not be.
func fill(e engine.Engine, points []*Point) error {
	blocks := 0
	for _, p := range points {
		for _, s := range p.batch.Sequences {
			blocks = max(blocks, int(s.Blocks[len(s.Blocks)-1])+1)
		}
	}
	layout := e.Capacity().Layout
	slice := make([]byte, layout.SliceBytes)
	chance := rand.New(rand.NewPCG(1, 2))
	for i := 0; i+1 < len(slice); i += 2 { // bf16 of either sign, between 2⁻⁷ and 2
		slice[i], slice[i+1] = byte(chance.Uint32()), byte(0x3c+chance.IntN(4))|byte(chance.IntN(2)<<7)
	}
	for block := range blocks {
		for layer := range layout.Layers {
			if err := e.Pages().Write(layer, []kvcache.BlockID{kvcache.BlockID(block)}, slice); err != nil {
				return fmt.Errorf("fill the KV pages: %w", err)
			}
		}
	}
	return nil
}

// measure goes through the points again and again, each time in another order, so
// that a disturbance hits all alike. The first time goes from short steps to long
// ones and ends when a third of the time is over.
func measure(ctx context.Context, e engine.Engine, points []*Point, o Options) ([]*Point, error) {
	order := slices.Clone(points)
	costs := engine.NewCosts(e.Model())
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
	const warm = 3 // steps that are not counted
	for i := range warm {
		if err := order[min(i, len(order)-1)].once(ctx, e, false); err != nil {
			return nil, err
		}
	}
	for i, p := range order {
		if i > 0 && spent() > o.Duration/3 {
			order = order[:i]
			break
		}
		if err := p.once(ctx, e, true); err != nil {
			return nil, err
		}
	}
	chance := rand.New(rand.NewPCG(3, 4))
	for round := 1; round < most && spent() < o.Duration; round++ {
		chance.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, p := range order {
			if err := p.once(ctx, e, true); err != nil {
				return nil, err
			}
			if round > 2 && spent() > o.Duration {
				break
			}
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
		p.times = append(p.times, float64(out.Compute)/float64(time.Millisecond))
	}
	return nil
}

func (p *Point) sum() {
	slices.Sort(p.times)
	p.Repeats = len(p.times)
	p.MedianMs = rank(p.times, 0.5)
	if p.MedianMs > 0 {
		p.Spread = 1 - rank(p.times, 0.16)/p.MedianMs
	}
}

// rank is the q-quantile of sorted numbers.
func rank(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// fewest repeats for a point's spread to count.
const fewest = 8

// fit makes the profile and compares it with every point.
func (r *Result) fit() error {
	phases := make(map[string][]latency.Measured)
	var spreads []float64
	for _, p := range r.Points {
		switch p.Kind {
		case Prefill:
			phases[Prefill] = append(phases[Prefill], latency.Measured{Work: p.work.Prefill, Ms: p.MedianMs})
		case Decode:
			phases[Decode] = append(phases[Decode], latency.Measured{Work: p.work.Decode, Ms: p.MedianMs})
		}
		if p.Repeats >= fewest {
			spreads = append(spreads, p.Spread)
		}
	}
	if len(phases[Prefill]) == 0 || len(phases[Decode]) == 0 {
		return errors.New("profile: the time did not suffice for one step of each kind: pass a longer --duration")
	}
	profile := &latency.Profile{Version: latency.ProfileVersion, Errors: make(map[string]latency.FitError)}
	var err error
	if profile.Prefill, profile.Errors[Prefill], err = latency.Fit(phases[Prefill], latency.FitOptions{Square: true, Context: true, Sample: true, MostRegimes: 3}); err != nil {
		return err
	}
	if profile.Decode, profile.Errors[Decode], err = latency.Fit(phases[Decode], latency.FitOptions{Context: true, MostRegimes: 4}); err != nil {
		return err
	}
	var mixed []float64
	for _, p := range r.Points {
		p.FittedMs = float64(profile.Predict(p.work)) / float64(time.Millisecond)
		p.Error = p.FittedMs/p.MedianMs - 1
		if p.Kind == Mixed {
			mixed = append(mixed, p.Error)
		}
	}
	profile.Errors[Mixed] = latency.NewFitError(mixed)
	if len(spreads) > 0 {
		slices.Sort(spreads)
		profile.Jitter = math.Round(min(rank(spreads, 0.5), latency.MaxJitter)*1e4) / 1e4
	}
	if err := profile.Validate(); err != nil {
		return fmt.Errorf("what was measured makes no profile: %w", err)
	}
	r.Profile = profile
	return nil
}

// reach finds the best rates.
func (r *Result) reach(costs engine.Costs) {
	for _, p := range r.Points {
		prefill, decode := costs.Step(p.work)
		switch {
		case p.Kind == Prefill:
			r.FLOPsPerSecond = max(r.FLOPsPerSecond, prefill.FLOPs/p.MedianMs*1000)
		case p.Kind == Decode && p.Batch == 1:
			r.ReadBytesPerSecond = max(r.ReadBytesPerSecond, decode.ReadBytes/p.MedianMs*1000)
		}
	}
}
