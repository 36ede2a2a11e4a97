package cpu

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/model"
)

// checker refuses batches that would read or write outside an engine's memory,
// or write one page position twice.
type checker struct {
	spec     model.Spec
	capacity engine.Capacity
	writer   []int32 // by block: 1 + the sequence of the batch that writes it
}

func newChecker(spec model.Spec, capacity engine.Capacity) checker {
	return checker{spec, capacity, make([]int32, capacity.Blocks)}
}

// check returns the first thing wrong with a batch.
func (c *checker) check(batch engine.Batch) error {
	if n := len(batch.Sequences); n == 0 || n > c.capacity.MaxSequences {
		return fmt.Errorf("a batch of %d sequences: send 1 to %d", n, c.capacity.MaxSequences)
	}
	tokens := 0
	for i, s := range batch.Sequences {
		if err := c.sequence(s); err != nil {
			return fmt.Errorf("sequence %d: %w", i, err)
		}
		tokens += len(s.Tokens)
		if tokens > c.capacity.MaxBatchTokens {
			return fmt.Errorf("more than %d tokens in a batch", c.capacity.MaxBatchTokens)
		}
	}
	return c.conflicts(batch)
}

func (c *checker) sequence(s engine.Sequence) error {
	n, size := len(s.Tokens), c.capacity.Layout.BlockTokens
	switch {
	case n == 0:
		return fmt.Errorf("no tokens")
	case n > c.capacity.MaxBatchTokens:
		return fmt.Errorf("%d tokens: a batch takes %d", n, c.capacity.MaxBatchTokens)
	case s.Start < 0 || s.Start > c.spec.ContextTokens-n:
		return fmt.Errorf("positions %d to %d lie outside the context of %d tokens", s.Start, s.Start+n-1, c.spec.ContextTokens)
	case len(s.Blocks) < (s.Start+n+size-1)/size:
		return fmt.Errorf("%d blocks of %d tokens do not cover %d positions", len(s.Blocks), size, s.Start+n)
	case s.Logits < engine.LogitsNone || s.Logits > engine.LogitsAll:
		return fmt.Errorf("logits wanted: unknown choice %d", s.Logits)
	}
	for i, t := range s.Tokens {
		if t < 0 || int(t) >= c.spec.VocabSize {
			return fmt.Errorf("token %d is %d, not in the vocabulary of %d", i, t, c.spec.VocabSize)
		}
	}
	for i, b := range s.Blocks[:(s.Start+n+size-1)/size] {
		if b < 0 || int(b) >= c.capacity.Blocks {
			return fmt.Errorf("block %d of the table is %d, not one of %d", i, b, c.capacity.Blocks)
		}
	}
	if s.Sample != nil {
		if err := s.Sample.Params.Validate(); err != nil {
			return fmt.Errorf("sampling: %w", err)
		}
	}
	return nil
}

// conflicts refuses a block that is written for one sequence, or at one place of
// a table, and used for another.
func (c *checker) conflicts(batch engine.Batch) error {
	size := c.capacity.Layout.BlockTokens
	var err error
	for i, s := range batch.Sequences {
		for _, b := range s.Blocks[s.Start/size : (s.Start+len(s.Tokens)+size-1)/size] {
			if c.writer[b] != 0 && err == nil {
				err = fmt.Errorf("block %d would be written twice, for sequences %d and %d", b, c.writer[b]-1, i)
			}
			c.writer[b] = int32(i + 1)
		}
	}
	for i, s := range batch.Sequences {
		for _, b := range s.Blocks[:s.Start/size] {
			if c.writer[b] != 0 && err == nil {
				err = fmt.Errorf("block %d is read for sequence %d and written for sequence %d", b, i, c.writer[b]-1)
			}
		}
	}
	for _, s := range batch.Sequences {
		for _, b := range s.Blocks[s.Start/size : (s.Start+len(s.Tokens)+size-1)/size] {
			c.writer[b] = 0
		}
	}
	return err
}
