// Package simulated is an engine without arithmetic: a step takes the time that
// a step-time model says and gives tokens made by hashing. Everything around it
// (scheduler, blocks, prefix cache, transfer, services) is the real thing, so a
// cluster can be tried on a laptop.
//
// It is honest about KV. Each token leaves a record in its page for every layer,
// made from the record before it, and the token drawn depends on records of every
// block of the context: a block that was lost, mixed up or written late changes
// the tokens, as it would with a real model. A record of ones alone stands for a NaN: what
// is made from it is one, too, and no token can be drawn from it.
//
// Things can be asked to go wrong (Trouble): jitter, slowness, stalls, failures
// and death, all drawn from a seed.
//
// Only engines, cmd, simulate and tests import it. It starts no goroutines. Lock order:
// Engine.mu, then link.turn.
package simulated

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/hostpages"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// ArithmeticClass is the class of simulated engines without Config.Brief.
const ArithmeticClass = "simulated/1"

// briefClass is that of those with it: they draw other tokens.
const briefClass = "simulated brief/1"

// Digest stands for the model's digest where nobody reads the weights: it tells
// apart models of different shape. How tokens are drawn and a limit to the context
// do not change it.
func Digest(spec model.Spec) string {
	spec.Name, spec.Digest, spec.Sampling = "", "", model.SamplingDefaults{}
	spec.ContextTokens, spec.LayerWindows = 0, nil
	sum := sha256.Sum256(fmt.Appendf(nil, "simulated %+v", spec))
	return hex.EncodeToString(sum[:16])
}

// MaxDrafts is the most drafts of a sequence in a step, if the profile says what they cost.
const MaxDrafts = 15

// Engine implements engine.Engine.
type Engine struct {
	cfg      Config
	capacity engine.Capacity
	pages    pages
	profile  *latency.Profile
	texts    *repetition // nil: texts do not repeat
	timer    Timer
	fate     *misfortune
	closing  context.Context
	endLink  context.CancelFunc

	// Of the goroutine that steps: what checks its batches, when the last step was
	// done, and by how much that was too late.
	batches      *engine.Validator
	doneAt       time.Time
	late         time.Duration
	cutter       engine.Cutter
	prefetchSink uint64 // see package kvcache

	mu     sync.Mutex // guards closed
	closed bool
}

// New returns an engine.
func New(cfg Config) (*Engine, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("simulated engine: %w", err)
	}
	layout := kvcache.Layout{
		ModelDigest: cfg.Spec.Digest, ArithmeticClass: ArithmeticClass,
		Layers: cfg.Spec.Layers, KVHeads: cfg.Spec.KVHeads, HeadSize: cfg.Spec.HeadSize,
		ElementType: "record64", BlockTokens: cfg.BlockTokens, Order: "records/1", SliceBytes: cfg.SliceBytes,
	}
	if cfg.Brief {
		layout.ArithmeticClass, layout.Order = briefClass, "last record/1"
	}
	var texts *repetition
	if cfg.Acceptance > 0 {
		texts = newRepetition(cfg.Spec, cfg.Acceptance)
		layout.ArithmeticClass += fmt.Sprintf(" repeats %v", cfg.Acceptance) // it draws other tokens
	}
	profile := cfg.Profile
	if profile == nil {
		profile = cfg.StepTime.Profile()
	}
	maxDrafts := MaxDrafts
	if len(profile.Verify) == 0 {
		maxDrafts = 0 // what they cost is not known
	}
	e := &Engine{
		cfg: cfg,
		capacity: engine.Capacity{
			Blocks: cfg.Blocks, MaxBatchTokens: cfg.MaxBatchTokens, MaxSequences: cfg.MaxSequences, MaxDrafts: maxDrafts, Threads: 1, Layout: layout,
		},
		pages:   newPages(layout, cfg.Blocks, cfg.Brief),
		profile: profile,
		texts:   texts,
		fate:    newMisfortune(cfg.Trouble),
		timer:   cfg.newTimer(),
	}
	if cfg.SharedKV && !cfg.Brief && cfg.LinkBytesPerSecond == 0 {
		e.share()
	}
	e.batches = engine.NewValidator(e.capacity, cfg.Spec)
	e.closing, e.endLink = context.WithCancel(context.Background())
	if cfg.LinkBytesPerSecond > 0 {
		slice := time.Duration(cfg.sliceSeconds() * float64(time.Second))
		e.pages.link = &link{slice: slice, ctx: e.closing, turn: make(chan struct{}, 1), timer: cfg.newTimer()}
	}
	return e, nil
}

// share moves the pages, which nobody has used, into memory that other processes can map. It
// lasts as long as the engine is referred to, its pages included, and not only until Close.
func (e *Engine) share() {
	shared, err := hostpages.MapShared(e.capacity.Layout, e.capacity.Blocks)
	if err != nil {
		return // they stay this process's own
	}
	e.pages.whole, e.pages.blocks, e.pages.file = shared.Bytes(), nil, shared.File()
	runtime.AddCleanup(e, func(p *hostpages.Pages) { _ = p.Close() }, shared)
}

// Model describes the model.
func (e *Engine) Model() model.Spec { return e.cfg.Spec }

// Capacity is what fits.
func (e *Engine) Capacity() engine.Capacity { return e.capacity }

// Pages gives access to the records.
func (e *Engine) Pages() engine.Pages { return &e.pages }

// Limits are those of the profile, zero if it has none.
func (e *Engine) Limits() latency.Limits {
	if e.profile.Limits == nil {
		return latency.Limits{}
	}
	return *e.profile.Limits
}

// Close ends the engine's use. Pages stay readable, as memory of the process.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	e.endLink()
	err := e.timer.Close()
	if l := e.pages.link; l != nil {
		err = errors.Join(err, l.close())
	}
	return err
}

// Step takes the time of the batch, writes its records and draws tokens from them:
// layer by layer, each at its share of the time, if somebody wants to know.
func (e *Engine) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return engine.Output{}, errors.New("simulated engine is closed")
	}
	if !e.cfg.Brief {
		if err := e.batches.Validate(batch); err != nil {
			return engine.Output{}, err
		}
	}
	for i := range batch.Sequences {
		if batch.Sequences[i].Logits != engine.LogitsNone {
			return engine.Output{}, errors.New("the simulated engine has no logits")
		}
	}
	batch, cut := e.cutter.Cut(batch)
	work := batch.Work()
	if err := e.cfg.Device.enter(ctx); err != nil {
		return engine.Output{}, err
	}
	defer e.cfg.Device.leave()
	compute, err := e.run(ctx, batch, work)
	if err != nil {
		return engine.Output{}, err
	}
	out := engine.Output{Tokens: batch.NewTokens(), Compute: compute}
	out.CutDrafts(batch, cut)
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		if s.Prompt != nil {
			for at := range s.Tokens {
				out.PromptRow(batch, i, at, func(token int32, top int) sampler.Logprobs {
					made := e.logprobs(token, top)
					made.Rank = 1
					return made
				})
			}
		}
		for row := range s.Rows() {
			known := len(s.Tokens) - s.Sample.Drafts + row
			length := s.Start + known
			out.Draw(batch, i, row, func(offset uint64, h sampler.History) int32 {
				if e.cfg.Brief && row > 0 { // the draft before it was right
					e.write(e.pages.first, s.Blocks, length-1, s.Tokens[known-1:known])
				}
				return e.draw(s, length, offset, h)
			}, func(token int32) sampler.Logprobs {
				return e.logprobs(token, s.Sample.TopLogprobs)
			})
		}
	}
	return out, nil
}

// adjoining is how soon after the last step another one has to begin for the last
// one's lateness to be made up for.
const adjoining = time.Millisecond

// run passes the time of a step and writes its records. It returns the time that
// was asked for, stalls included.
func (e *Engine) run(ctx context.Context, batch engine.Batch, work latency.StepWork) (time.Duration, error) {
	total, fails := e.fate.duration(e.profile.Predict(work))
	begin := time.Now()
	if e.fate.dead(begin) {
		return 0, errDevice
	}
	// A sleep ends late, never early. A step that follows at once begins when it
	// should have, or else a run of short steps would be slower by all that.
	if begin.Sub(e.doneAt) < adjoining {
		begin = begin.Add(-min(e.late, total/2))
	}
	end := begin
	layers := e.cfg.Spec.Layers
	for first := 0; first < layers; {
		next := first + 1
		if batch.LayerDone == nil {
			next = layers // nobody looks at them one by one
		}
		until := e.fate.after(begin, total*time.Duration(next)/time.Duration(layers))
		if err := e.pass(ctx, end, until); err != nil {
			return 0, err
		}
		if e.fate.dead(until) {
			return 0, errDevice
		}
		end = until
		for layer := max(first, e.pages.first); layer < next; layer++ {
			if e.cfg.Brief { // a processor waits for the records of all of them at a time
				for i := range batch.Sequences {
					if s := &batch.Sequences[i]; s.Start > 0 {
						e.prefetchSink += uint64(e.record(layer, s.Blocks, s.Start-1)[0])
					}
				}
			}
			for i := range batch.Sequences {
				s := &batch.Sequences[i]
				tokens := s.Tokens
				if e.cfg.Brief && s.Sample != nil { // wrong drafts would overwrite the one record of a block
					tokens = tokens[:len(tokens)-s.Sample.Drafts]
				}
				e.write(layer, s.Blocks, s.Start, tokens)
				if batch.Mirrors != nil {
					e.store(layer, s, batch.Mirrors[i])
				}
			}
		}
		if batch.LayerDone != nil {
			batch.LayerDone(first)
		}
		first = next
	}
	if batch.LayersDone != nil {
		batch.LayersDone()
	}
	e.doneAt = time.Now()
	e.late = max(e.doneAt.Sub(end), 0)
	if fails {
		return 0, errDevice
	}
	return end.Sub(begin), nil
}

// store stores a layer of what a sequence computes in its mirror too, if it has one.
func (e *Engine) store(layer int, s *engine.Sequence, in engine.Mirror) {
	if in == nil || !in.Hold(layer) {
		return
	}
	defer in.Release()
	for b := s.Start / e.cfg.BlockTokens; b < s.UsedBlocks(e.cfg.BlockTokens); b++ {
		copy(in.View(layer, b), e.pages.View(layer, s.Blocks[b]))
	}
}

// pass waits from one time of a step to the next: by the clock, so that lateness
// does not add up, or for the time between if a caller's function waits.
func (e *Engine) pass(ctx context.Context, from, until time.Time) error {
	if e.cfg.Wait != nil {
		return e.timer.Wait(ctx, until.Sub(from))
	}
	return e.timer.Wait(ctx, time.Until(until))
}
