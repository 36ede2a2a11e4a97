package engine

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Validate checks one batch as a Validator does. Who checks many keeps one of those.
func (b Batch) Validate(capacity Capacity, spec model.Spec) error {
	return NewValidator(capacity, spec).Validate(b)
}

// Validator checks batches for one engine, one after the other, and allocates only for
// what it refuses. It is for one goroutine at a time.
type Validator struct {
	capacity Capacity
	spec     model.Spec
	batch    uint32  // number of the batch that is checked, never 0
	writes   []write // by block
}

// write is the last write to a block: in which batch, and by which of its sequences.
type write struct {
	batch    uint32
	sequence int32
}

// NewValidator makes a Validator for engines of that capacity and model. It takes eight
// bytes a block.
func NewValidator(capacity Capacity, spec model.Spec) *Validator {
	return &Validator{capacity: capacity, spec: spec, writes: make([]write, max(capacity.Blocks, 0))}
}

// Validate checks everything about a batch that could make an engine read or
// write outside its memory, two sequences write one position, or one read what
// another writes. Every engine calls it before it computes anything.
func (v *Validator) Validate(b Batch) error {
	if len(b.Sequences) == 0 {
		return fmt.Errorf("batch is empty")
	}
	if len(b.Sequences) > v.capacity.MaxSequences {
		return fmt.Errorf("batch has %d sequences, the engine takes %d", len(b.Sequences), v.capacity.MaxSequences)
	}
	tokens := 0
	for i := range b.Sequences {
		s := &b.Sequences[i]
		if err := s.validate(&v.capacity, &v.spec); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		tokens += len(s.Tokens)
	}
	if tokens > v.capacity.MaxBatchTokens {
		return fmt.Errorf("batch has %d tokens, the engine takes %d", tokens, v.capacity.MaxBatchTokens)
	}
	return v.validateWrites(b.Sequences)
}

func (s *Sequence) validate(capacity *Capacity, spec *model.Spec) error {
	n, block := len(s.Tokens), capacity.Layout.BlockTokens
	switch {
	case n == 0:
		return fmt.Errorf("no tokens")
	case s.Start < 0:
		return fmt.Errorf("start %d is negative", s.Start)
	case s.Start > spec.ContextTokens-n: // not a sum, which could overflow
		return fmt.Errorf("%d tokens from position %d are past the context of %d tokens", n, s.Start, spec.ContextTokens)
	case s.UsedBlocks(block) > len(s.Blocks):
		return fmt.Errorf("position %d is past its %d blocks of %d tokens", s.Start+n-1, len(s.Blocks), block)
	case s.Logits < LogitsNone || s.Logits > LogitsAll:
		return fmt.Errorf("logits: choice %d is unknown", s.Logits)
	case s.Pooling != nil && !capacity.PoolsHiddenStates:
		return fmt.Errorf("hidden states: this engine gives none")
	case s.Pooling != nil && s.Pooling.Size() != spec.HiddenSize:
		return fmt.Errorf("hidden states: pooling of %d for a hidden size of %d", s.Pooling.Size(), spec.HiddenSize)
	}
	for _, id := range s.Blocks[:s.UsedBlocks(block)] {
		if uint(id) >= uint(capacity.Blocks) { // negative ones are huge
			return fmt.Errorf("block %d is outside 0 to %d", id, capacity.Blocks-1)
		}
	}
	for _, token := range s.Tokens {
		if token < 0 || int(token) >= spec.VocabSize {
			return fmt.Errorf("token %d is outside the vocabulary of %d", token, spec.VocabSize)
		}
	}
	if s.Prompt != nil {
		if err := s.validatePrompt(spec.VocabSize); err != nil {
			return err
		}
	}
	if s.Sample != nil {
		if err := s.Sample.Params.Validate(); err != nil {
			return fmt.Errorf("sampling: %w", err)
		}
		if err := s.validateDrafts(capacity); err != nil {
			return err
		}
		if n := s.Sample.TopLogprobs; n < 0 || n > sampler.MaxTopLogprobs {
			return fmt.Errorf("sampling: %d likeliest tokens are outside 0 to %d", n, sampler.MaxTopLogprobs)
		}
	}
	return nil
}

// validateWrites checks that no block is written for two sequences or at two
// places of a table, and that none is read for one and written for another.
func (v *Validator) validateWrites(sequences []Sequence) error {
	if v.batch++; v.batch == 0 { // after four billion: what is marked would look new
		clear(v.writes)
		v.batch = 1
	}
	block := v.capacity.Layout.BlockTokens
	for i := range sequences {
		s := &sequences[i]
		for _, id := range s.Blocks[s.Start/block : s.UsedBlocks(block)] {
			if other := v.writes[id]; other.batch == v.batch {
				return fmt.Errorf("sequences %d and %d both write block %d", other.sequence, i, id)
			}
			v.writes[id] = write{v.batch, int32(i)}
		}
	}
	for i := range sequences {
		s := &sequences[i]
		for _, id := range s.Blocks[:s.Start/block] {
			if writer := v.writes[id]; writer.batch == v.batch {
				return fmt.Errorf("sequence %d reads block %d, which sequence %d writes", i, id, writer.sequence)
			}
		}
	}
	return nil
}
