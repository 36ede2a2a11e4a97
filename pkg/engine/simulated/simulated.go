// Package simulated is an engine without arithmetic: a step takes the time that
// a step-time model says and gives tokens made by hashing. Everything around it
// (scheduler, blocks, prefix cache, transfer, services) is the real thing, so a
// cluster can be tried on a laptop.
//
// It is honest about KV. Each token leaves a record in its page for every layer,
// made from the record before it, and the token drawn depends on records of every
// block of the context: a block that was lost, mixed up or written late changes
// the tokens, as it would with a real model.
//
// Anything under cmd, services and their tests may import it. It starts no
// goroutines.
package simulated

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// ArithmeticClass is the class of all simulated engines.
const ArithmeticClass = "simulated/1"

// Digest stands for the model's digest where nobody reads the weights: it tells
// apart models of different shape.
func Digest(spec model.Spec) string {
	spec.Name, spec.Digest = "", ""
	sum := sha256.Sum256(fmt.Appendf(nil, "simulated %+v", spec))
	return hex.EncodeToString(sum[:16])
}

// recordBytes is the size of what one token leaves in one slice.
const recordBytes = 8

// Config describes a simulated device.
type Config struct {
	// Spec is the model that it pretends to run.
	Spec model.Spec
	// Blocks and BlockTokens size the KV memory.
	Blocks, BlockTokens int
	// MaxBatchTokens and MaxSequences bound a step.
	MaxBatchTokens, MaxSequences int
	// SliceBytes is the size of one layer's slice of a block: what a transfer has
	// to move. Default: the records alone, BlockTokens times 8 bytes.
	SliceBytes int
	// StepTime says how long a step takes. Zero: no time at all.
	StepTime latency.Model
	// Wait waits, for tests on virtual time. Default: a timer.
	Wait func(ctx context.Context, d time.Duration) error
}

// Engine implements engine.Engine.
type Engine struct {
	cfg      Config
	capacity engine.Capacity
	pages    pages
	closed   bool
	mu       sync.Mutex // guards closed
}

// New returns an engine.
func New(cfg Config) (*Engine, error) {
	if cfg.Blocks <= 0 || cfg.BlockTokens <= 0 || cfg.MaxBatchTokens <= 0 || cfg.MaxSequences <= 0 {
		return nil, errors.New("simulated engine: blocks, block tokens, batch tokens and sequences must be above 0")
	}
	if cfg.Spec.Layers <= 0 || cfg.Spec.VocabSize <= 1 {
		return nil, errors.New("simulated engine: the model has no layers or no vocabulary")
	}
	if !hasPlainToken(cfg.Spec) {
		return nil, fmt.Errorf("simulated engine: all %d tokens of the vocabulary begin or end a text, so none can be drawn", cfg.Spec.VocabSize)
	}
	if cfg.SliceBytes == 0 {
		cfg.SliceBytes = cfg.BlockTokens * recordBytes
	}
	if cfg.SliceBytes < cfg.BlockTokens*recordBytes {
		return nil, fmt.Errorf("simulated engine: a slice of %d bytes cannot hold %d records of %d bytes", cfg.SliceBytes, cfg.BlockTokens, recordBytes)
	}
	if cfg.Wait == nil {
		cfg.Wait = wait
	}
	layout := kvcache.Layout{
		ModelDigest: cfg.Spec.Digest, ArithmeticClass: ArithmeticClass,
		Layers: cfg.Spec.Layers, KVHeads: cfg.Spec.KVHeads, HeadSize: cfg.Spec.HeadSize,
		ElementType: "record64", BlockTokens: cfg.BlockTokens, Order: "records/1", SliceBytes: cfg.SliceBytes,
	}
	return &Engine{
		cfg: cfg,
		capacity: engine.Capacity{
			Blocks: cfg.Blocks, MaxBatchTokens: cfg.MaxBatchTokens, MaxSequences: cfg.MaxSequences, Threads: 1, Layout: layout,
		},
		pages: pages{layout: layout, blocks: cfg.Blocks, memory: make([]byte, cfg.Blocks*layout.PageBytes())},
	}, nil
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

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Model describes the model.
func (e *Engine) Model() model.Spec { return e.cfg.Spec }

// Capacity is what fits.
func (e *Engine) Capacity() engine.Capacity { return e.capacity }

// Pages gives access to the records.
func (e *Engine) Pages() engine.Pages { return &e.pages }

// Close ends the engine's use. Pages stay readable, as memory of the process.
func (e *Engine) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return nil
}

// Step writes the records of the batch, layer by layer, each at its share of the
// step's time, and draws tokens from them.
func (e *Engine) Step(ctx context.Context, batch engine.Batch) (engine.Output, error) {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	if closed {
		return engine.Output{}, errors.New("simulated engine is closed")
	}
	if err := batch.Validate(e.capacity, e.cfg.Spec); err != nil {
		return engine.Output{}, err
	}
	tokens, contexts := 0, 0
	for _, s := range batch.Sequences {
		if s.Logits != engine.LogitsNone {
			return engine.Output{}, errors.New("the simulated engine has no logits")
		}
		tokens += len(s.Tokens)
		contexts += s.Start + len(s.Tokens)
	}
	total := e.cfg.StepTime.Predict(tokens, contexts)
	var spent time.Duration
	for layer := range e.cfg.Spec.Layers {
		until := total * time.Duration(layer+1) / time.Duration(e.cfg.Spec.Layers)
		if err := e.cfg.Wait(ctx, until-spent); err != nil {
			return engine.Output{}, err
		}
		spent = until
		for _, s := range batch.Sequences {
			e.write(layer, s)
		}
		if batch.LayerDone != nil {
			batch.LayerDone(layer)
		}
	}
	out := engine.Output{Tokens: make([]int32, len(batch.Sequences)), Compute: total}
	for i, s := range batch.Sequences {
		out.Tokens[i] = -1
		if s.Sample != nil {
			out.Tokens[i] = e.draw(s)
		}
	}
	return out, nil
}

// write leaves the records of one sequence's tokens in one layer.
func (e *Engine) write(layer int, s engine.Sequence) {
	state := uint64(layer) + 1
	if s.Start > 0 {
		state = e.record(layer, s.Blocks, s.Start-1)
	}
	for i, token := range s.Tokens {
		state = mix(state ^ uint64(uint32(token))<<20)
		position := s.Start + i
		slice := e.pages.View(layer, s.Blocks[position/e.cfg.BlockTokens])
		binary.LittleEndian.PutUint64(slice[position%e.cfg.BlockTokens*recordBytes:], state)
	}
}

func (e *Engine) record(layer int, table []kvcache.BlockID, position int) uint64 {
	slice := e.pages.View(layer, table[position/e.cfg.BlockTokens])
	return binary.LittleEndian.Uint64(slice[position%e.cfg.BlockTokens*recordBytes:])
}

// draw makes a token of the last record of every block of the context in every
// layer. Tokens that begin or end a text are left out, so that texts have the length
// that was asked for.
func (e *Engine) draw(s engine.Sequence) int32 {
	length := s.Start + len(s.Tokens)
	var all uint64
	for layer := range e.cfg.Spec.Layers {
		for end := e.cfg.BlockTokens; end < length; end += e.cfg.BlockTokens {
			all = mix(all ^ e.record(layer, s.Blocks, end-1))
		}
		all = mix(all ^ e.record(layer, s.Blocks, length-1))
	}
	if s.Sample.Params.Temperature > 0 {
		random := sampler.Philox(
			[4]uint32{uint32(s.Sample.Offset), uint32(s.Sample.Offset >> 32)},
			[2]uint32{uint32(s.Sample.Params.Seed), uint32(s.Sample.Params.Seed >> 32)})
		all = mix(all ^ uint64(random[0])<<32 ^ uint64(random[1]))
	}
	vocabulary := uint64(e.cfg.Spec.VocabSize)
	token := int32(all % vocabulary)
	for slices.Contains(e.cfg.Spec.EOS, token) || token == e.cfg.Spec.BOS {
		token = int32((uint64(token) + 1) % vocabulary)
	}
	return token
}

// mix is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA '14).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
