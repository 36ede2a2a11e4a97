package engine

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Validate checks everything about a batch that could make an engine read or
// write outside its memory, two sequences write one position, or one read what
// another writes. Every engine calls it before it computes anything.
func (b Batch) Validate(capacity Capacity, spec model.Spec) error {
	if len(b.Sequences) == 0 {
		return fmt.Errorf("batch is empty")
	}
	if len(b.Sequences) > capacity.MaxSequences {
		return fmt.Errorf("batch has %d sequences, the engine takes %d", len(b.Sequences), capacity.MaxSequences)
	}
	tokens := 0
	for i, s := range b.Sequences {
		if err := s.validate(capacity, spec); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		tokens += len(s.Tokens)
	}
	if tokens > capacity.MaxBatchTokens {
		return fmt.Errorf("batch has %d tokens, the engine takes %d", tokens, capacity.MaxBatchTokens)
	}
	return b.validateWrites(capacity)
}

func (s Sequence) validate(capacity Capacity, spec model.Spec) error {
	n, block := len(s.Tokens), capacity.Layout.BlockTokens
	switch {
	case n == 0:
		return fmt.Errorf("no tokens")
	case s.Start < 0:
		return fmt.Errorf("start %d is negative", s.Start)
	case s.Start > spec.ContextTokens-n: // not a sum, which could overflow
		return fmt.Errorf("%d tokens from position %d are past the context of %d tokens", n, s.Start, spec.ContextTokens)
	case s.used(block) > len(s.Blocks):
		return fmt.Errorf("position %d is past its %d blocks of %d tokens", s.Start+n-1, len(s.Blocks), block)
	case s.Logits < LogitsNone || s.Logits > LogitsAll:
		return fmt.Errorf("logits: %d is no choice", s.Logits)
	}
	for _, id := range s.Blocks[:s.used(block)] {
		if id < 0 || int(id) >= capacity.Blocks {
			return fmt.Errorf("block %d is outside 0 to %d", id, capacity.Blocks-1)
		}
	}
	for _, token := range s.Tokens {
		if token < 0 || int(token) >= spec.VocabSize {
			return fmt.Errorf("token %d is outside the vocabulary of %d", token, spec.VocabSize)
		}
	}
	if s.Sample != nil {
		if err := s.Sample.Params.Validate(); err != nil {
			return fmt.Errorf("sampling: %w", err)
		}
		if n := s.Sample.TopLogprobs; n < 0 || n > sampler.MaxTopLogprobs {
			return fmt.Errorf("sampling: %d of the likeliest tokens are outside 0 to %d", n, sampler.MaxTopLogprobs)
		}
	}
	return nil
}

// used is how many blocks of the table hold the context after the step.
func (s Sequence) used(blockTokens int) int {
	return (s.Start + len(s.Tokens) + blockTokens - 1) / blockTokens
}

// validateWrites checks that no block is written for two sequences or at two
// places of a table, and that none is read for one and written for another.
func (b Batch) validateWrites(capacity Capacity) error {
	block := capacity.Layout.BlockTokens
	written := make(map[kvcache.BlockID]int, len(b.Sequences))
	for i, s := range b.Sequences {
		for _, id := range s.Blocks[s.Start/block : s.used(block)] {
			if other, taken := written[id]; taken {
				return fmt.Errorf("sequences %d and %d both write block %d", other, i, id)
			}
			written[id] = i
		}
	}
	for i, s := range b.Sequences {
		for _, id := range s.Blocks[:s.Start/block] {
			if writer, taken := written[id]; taken {
				return fmt.Errorf("sequence %d reads block %d, which sequence %d writes", i, id, writer)
			}
		}
	}
	return nil
}
