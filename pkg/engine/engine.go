// Package engine is the boundary between the parts of Tandem that are the same
// for every device (scheduling, blocks, sampling policy, transfer) and the one
// part that is not: running a model. Implementations are engine/cpu,
// engine/cuda and engine/simulated, among which engine/engines chooses; engine/enginetest
// holds the tests that every one of them has to pass.
//
// Anything under pkg and services may import it. It starts no goroutines.
package engine

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Engine runs one model on one device. It owns the KV pages; weights may be
// shared with other engines of the same process.
//
// Step is called by one goroutine at a time. Everything else is safe for
// concurrent use, Pages while a Step runs included.
type Engine interface {
	// Model describes the model.
	Model() model.Spec
	// Capacity is what fits. It does not change.
	Capacity() Capacity
	// Step computes a batch: prompt chunks and single tokens mixed. On an error
	// no KV position of the batch may be relied on, and none before it changed.
	// A cancelled context may end it early with the context's error.
	Step(ctx context.Context, batch Batch) (Output, error)
	// Pages gives access to the KV pages for transfer.
	Pages() Pages
	// Close frees pages and threads. No Step may be running.
	Close() error
}

// ErrDeviceLost is part of the error of every Step after the device failed in a way that
// no later Step gets over, and only a new process does.
var ErrDeviceLost = errors.New("the device is lost: restart the worker")

// Capacity is what an engine can hold.
type Capacity struct {
	// Blocks is the number of KV blocks; their ids are 0 to Blocks-1.
	Blocks int
	// MaxBatchTokens is the most tokens of one Step, over all sequences.
	MaxBatchTokens int
	// MaxSequences is the most sequences of one Step.
	MaxSequences int
	// MaxDrafts is the most drafts of one sequence in a Step (Sample.Drafts); 0: the engine
	// does not verify any.
	MaxDrafts int
	// MakesDrafts: the engine makes drafts itself where it is asked to (Sample.DraftRequest).
	MakesDrafts bool
	// PoolsHiddenStates: the engine gives hidden states (Sequence.Pooling).
	PoolsHiddenStates bool
	// Threads is the number of compute threads, for people.
	Threads int
	// BytesPerWeight is what a step reads for each weight.
	BytesPerWeight BytesPerWeight
	// KVTokenBytes is what a step reads of one layer for each token of context; 0: two
	// bytes an element, as for bf16.
	KVTokenBytes float64
	// Layout describes the pages.
	Layout kvcache.Layout
}

// BytesPerWeight is what a step reads for each weight of a layer's matrices and of the
// output matrix; 0: 2, as for bf16.
type BytesPerWeight struct {
	Layers, Head float64
}

// Batch is the work of one Step. Neither the engine nor the caller changes it
// while the Step runs, but for TokenBuffer.
type Batch struct {
	// Sequences to advance, each at most once.
	Sequences []Sequence
	// LayerDone, if set, is called for each layer, in order from 0, as soon as the
	// KV of that layer for every token of the batch is in its pages, which can be
	// before the rest of the layer is computed. It runs on the Step's own path and
	// must not block.
	LayerDone func(layer int)
	// LayersDone, if set, is called once, when all layers are computed: what is left
	// of the Step are logits and draws. It runs and must not block as LayerDone.
	LayersDone func()
	// Mirrors, if set, has for each sequence where its keys and values may be stored besides, or nil.
	// Each block that a mirror has slices for is computed whole by this Step. An engine may ignore
	// them.
	Mirrors []Mirror
	// TokenBuffer, if it holds a token of each sequence, is what Output.Tokens is made in, so
	// that nothing is allocated for them: they stay as they are until the caller uses
	// it again. Without it a Step allocates, and its tokens are the caller's for good.
	TokenBuffer []int32
}

// NewTokens is what an engine begins Output.Tokens with: a -1 for each sequence, in
// TokenBuffer where that is large enough.
func (b Batch) NewTokens() []int32 {
	n := len(b.Sequences)
	tokens := b.TokenBuffer[:min(n, cap(b.TokenBuffer))]
	if len(tokens) < n {
		tokens = make([]int32, n)
	}
	for i := range tokens {
		tokens[i] = -1
	}
	return tokens
}

// Sequence is the part of one sequence that a Step computes.
type Sequence struct {
	// Tokens to compute, at least one: a chunk of the prompt or the last token
	// sampled.
	Tokens []int32
	// Start is the position of Tokens[0]: how many tokens' KV is in the pages.
	Start int
	// Blocks is the block table. It covers Start+len(Tokens) positions.
	Blocks []kvcache.BlockID
	// Sample says how to draw the token after the last of Tokens; nil draws none.
	Sample *Sample
	// Logits asks for logits besides.
	Logits LogitsWanted
	// Pooling, if set, gets the hidden state of each of Tokens. Only an engine whose
	// Capacity says so takes it.
	Pooling *Pooling
	// Prompt, if set, asks how likely tokens of a prompt are.
	Prompt *PromptLogprobs
}

// Mirror is pages of another process of this host that a Step writes into besides its own, so that
// nobody has to copy what it computed. Their layout is that of the engine's pages. They are no memory
// of Go's.
type Mirror interface {
	// Hold keeps the pages writable until Release, which follows each Hold that gave true, once all
	// of the layer's keys and values are there: soon, since whoever ends the use of the pages waits
	// for that. An engine holds all layers, in order, or those from one on. False: the pages cannot be
	// written any more, in this Step or later.
	Hold(layer int) bool
	Release()
	// View is the slice of a block, by its place in the sequence's table, not to be touched but
	// between Hold and Release; nil: the block has none.
	View(layer, block int) []byte
}

// UsedBlocks is how many blocks of the table hold the context after the step.
func (s *Sequence) UsedBlocks(blockTokens int) int {
	return kvcache.BlocksFor(s.Start+len(s.Tokens), blockTokens)
}

// PromptLogprobs asks how likely the tokens of a prompt are, given those before.
type PromptLogprobs struct {
	// Next is the token after each of the sequence's Tokens, or after the first of them: the last
	// of a prompt has none. Nobody changes it while the Step runs.
	Next []int32
	// Top is how many of the likeliest tokens are wanted, at most sampler.MaxTopLogprobs.
	Top int
}

// Sample is one draw.
type Sample struct {
	// Offset is the number of tokens that the request generated before, drafts not
	// included: the counter of the generator.
	Offset uint64
	// Drafts is how many of Tokens, the last ones, are drafts of what is drawn. A token is
	// drawn after the one before them and, as long as each was what the draft says, after
	// every draft: so the draws are those of as many Steps with a token each. The KV of the
	// drafts that were wrong, and of those behind them, is of no use. What Constraint does not
	// allow is wrong, and an engine need not compute it (Cutter).
	Drafts int
	// DraftRequest asks for drafts that the engine makes itself, where there are no Drafts. An engine
	// whose Capacity does not say that it makes any ignores it.
	DraftRequest DraftRequest
	// MostForced is how many tokens a Forcer gives at most. Engines ignore it.
	MostForced int
	// History is the request's tokens so far, drafts not included, for penalties. Nobody
	// changes it while the Step runs.
	History sampler.History
	// Logprobs asks how likely the token is, and TopLogprobs for so many of the
	// likeliest ones beside it, at most sampler.MaxTopLogprobs.
	Logprobs    bool
	TopLogprobs int
	// Params are the request's.
	Params sampler.Params
	// Constraint, if set, says which tokens may be drawn. Of them alone the draw is as it
	// would be of all.
	Constraint sampler.Constraint
}

// DraftRequest asks an engine for drafts of its own.
type DraftRequest struct {
	// Sequence names the sequence for as long as the engine lives, so that the engine knows what it
	// has computed of it to draft by.
	Sequence uint64
	// Most is how many drafts there may be; 0: none. Sequence.Blocks covers as many positions more.
	Most int
	// Left is how many tokens the output may still have, this step's included; 0: not known.
	Left int
}

// Draw draws from logits by the definition of package sampler: what comes after so many tokens,
// which offset and h say. They are the sample's own where no draft comes before.
func (s *Sample) Draw(by *sampler.Sampler, logits []float32, offset uint64, h sampler.History) int32 {
	if s.Constraint != nil {
		return s.NoneBecause(by.SampleAllowed(logits, s.Constraint.Allowed(h.Output()), s.Params, offset, h))
	}
	return by.Sample(logits, s.Params, offset, h)
}

// limited is a sampler.Constraint that bounds its work.
type limited interface {
	// OutOfEffort says that it allows nothing any more, since it has done all the work that it may.
	OutOfEffort() bool
}

// deferring is a sampler.Constraint that may put work off.
type deferring interface {
	// Later says that the last Allowed allows nothing since it put its work off.
	Later() bool
}

// NoneBecause is a token that was drawn under Constraint, with sampler.Later or OutOfEffort in place of
// sampler.NoneAllowed where that is why.
func (s *Sample) NoneBecause(token int32) int32 {
	if token != sampler.NoneAllowed {
		return token
	}
	if c, is := s.Constraint.(deferring); is && c.Later() {
		return sampler.Later
	}
	if c, is := s.Constraint.(limited); is && c.OutOfEffort() {
		return sampler.OutOfEffort
	}
	return token
}

// LogitsWanted says which positions' logits a caller wants to see.
type LogitsWanted int

// The choices of LogitsWanted.
const (
	LogitsNone LogitsWanted = iota
	LogitsLast              // after the last of Tokens
	LogitsAll               // after each of Tokens
)

// Output is what a Step gave.
type Output struct {
	// Tokens holds the token drawn for each sequence of the batch, -1 where none
	// was asked for, and where the logits are not finite (sampler.None): of such a
	// sequence no KV may be relied on, and the others are as good as without it;
	// sampler.NoneAllowed, OutOfEffort or Later where the constraint leaves none, with KV as good as
	// any. They are in Batch.TokenBuffer, if the caller gave that.
	Tokens []int32
	// Accepted holds, for each sequence, how many of its drafts, the first ones, are what was
	// drawn. Its token is the one drawn after those. Nil if no sequence had drafts.
	Accepted []int32
	// Drafts holds, for each sequence that asked for some, the drafts that the engine made and
	// verified: it makes fewer than it may, or none, as it likes. Nil if it made none at all. The
	// caller may keep it.
	Drafts [][]int32
	// Logprobs holds, for each sequence that asked, how likely its token was. Nil
	// if no sequence asked. The caller may keep it.
	Logprobs []sampler.Logprobs
	// DraftLogprobs holds the same of each draft that was accepted, in order. Nil if no
	// sequence that asked had drafts. The caller may keep it.
	DraftLogprobs [][]sampler.Logprobs
	// PromptLogprobs holds, for each sequence that asked, how likely each of Prompt.Next was: as
	// Sampler.PromptLogprobs has it. Nil if no sequence asked. The caller may keep it.
	PromptLogprobs [][]sampler.Logprobs
	// Logits holds, for each sequence that asked, one row of vocabulary-size
	// float32 for each position asked for. Nil if no sequence asked.
	Logits [][][]float32
	// Cut is how many tokens of the batch were not computed: drafts that constraints do not
	// allow.
	Cut int
	// Compute is how long the engine worked, waiting for a shared device not
	// included.
	Compute time.Duration
	// Drafting is how long it took besides to make Drafts and to get ready for them, and Reading how
	// much of that was to get ready: to compute texts that the draft model had not followed.
	Drafting, Reading time.Duration
}

// Pages is the KV memory of an engine: Capacity.Blocks pages, each holding one
// slice for every layer. The caller sees to it that nobody reads a slice before
// it was computed or written, and that nobody writes one that is in use.
type Pages interface {
	// Layout describes a page.
	Layout() kvcache.Layout
	// View is the memory of one slice, Layout.SliceBytes long, if pages are host
	// memory; nil if they are not. It is valid until the engine is closed.
	View(layer int, block kvcache.BlockID) []byte
	// Read copies the slices of blocks, in order, into dst.
	Read(layer int, blocks []kvcache.BlockID, dst []byte) error
	// Write copies src into the slices of blocks, in order.
	Write(layer int, blocks []kvcache.BlockID, src []byte) error
}
