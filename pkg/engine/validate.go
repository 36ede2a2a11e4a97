package engine

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/model"
)

// Validate checks everything about a batch that could make an engine read or
// write outside its memory, or two sequences write one position. Every engine
// calls it before it computes anything.
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
	end := s.Start + len(s.Tokens)
	block := capacity.Layout.BlockTokens
	switch {
	case len(s.Tokens) == 0:
		return fmt.Errorf("no tokens")
	case s.Start < 0:
		return fmt.Errorf("start %d is negative", s.Start)
	case end > spec.ContextTokens:
		return fmt.Errorf("position %d is past the context of %d tokens", end-1, spec.ContextTokens)
	case end > len(s.Blocks)*block:
		return fmt.Errorf("position %d is past its %d blocks of %d tokens", end-1, len(s.Blocks), block)
	}
	for _, id := range s.Blocks[:(end+block-1)/block] {
		if id < 0 || int(id) >= capacity.Blocks {
			return fmt.Errorf("block %d is outside 0 to %d", id, capacity.Blocks-1)
		}
	}
	for _, token := range s.Tokens {
		if token < 0 || int(token) >= spec.VocabSize {
			return fmt.Errorf("token %d is outside the vocabulary of %d", token, spec.VocabSize)
		}
	}
	return nil
}

// validateWrites checks that no block is written for two sequences, or twice in
// one block table.
func (b Batch) validateWrites(capacity Capacity) error {
	block := capacity.Layout.BlockTokens
	written := make(map[int32]int, len(b.Sequences))
	for i, s := range b.Sequences {
		last := (s.Start + len(s.Tokens) - 1) / block
		for _, id := range s.Blocks[s.Start/block : last+1] {
			if other, taken := written[int32(id)]; taken {
				return fmt.Errorf("sequences %d and %d both write block %d", other, i, id)
			}
			written[int32(id)] = i
		}
	}
	return nil
}
