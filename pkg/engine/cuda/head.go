package cuda

import (
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// row is a row of logits: whose it is, after which of that sequence's tokens, and whether that is the
// last.
type row struct {
	sequence, token int
	last            bool
}

// takenOf are the rows of a batch that become logits, in taken's memory.
func takenOf(taken []row, batch engine.Batch) []row {
	taken = taken[:0]
	for i := range batch.Sequences {
		for n := batch.Sequences[i].LogitRows(); n > 0; n-- {
			taken = append(taken, row{i, len(batch.Sequences[i].Tokens) - n, n == 1})
		}
	}
	return taken
}

// pass is the rows of logits that are computed together: none after the last.
func (e *cudaEngine) pass(number int) []row {
	most := e.config.headRows()
	first := min(number*most, len(e.taken))
	return e.taken[first:min(first+most, len(e.taken))]
}

// fetch appends the copies of what the host needs of rows: all tokens that the device
// drew, and the logits of those that it draws from itself or that somebody wants to see.
func (e *cudaEngine) fetch(batch engine.Batch, rows []row) {
	if len(rows) == 0 {
		return
	}
	e.program.CopyOut(e.out, e.tokens, e.drawn, 4*len(rows))
	bytes := 4 * e.weights.shape.ldLogits
	for i := 0; i < len(rows); i++ {
		first := i
		for i < len(rows) && seen(batch, rows[i]) {
			i++
		}
		if n := i - first; n > 0 {
			e.program.CopyOut(e.out, first*bytes, e.logits+driver.Address(first*bytes), n*bytes)
		}
	}
}

// seen says whether the host looks at the logits of a row.
func seen(batch engine.Batch, r row) bool {
	s := &batch.Sequences[r.sequence]
	return s.Logits != engine.LogitsNone || s.Prompt != nil || r.last && s.Sample != nil && !drawnByDevice(s.Sample)
}

// drawnByDevice says whether the device draws. What it does not do, adjusting logits,
// constraints, typical_p, min_tokens and logprobs, asks for the host, which then draws as well. A request has one or the other for
// all its tokens.
func drawnByDevice(s *engine.Sample) bool {
	p := &s.Params
	return len(p.LogitBias) == 0 && (p.RepetitionPenalty == 0 || p.RepetitionPenalty == 1) && p.PresencePenalty == 0 && p.FrequencyPenalty == 0 && s.Constraint == nil && !s.Logprobs &&
		(p.TypicalP == 0 || p.TypicalP == 1) && (p.MinTokens == 0 || len(p.Ends) == 0)
}

// draw hands out what fetch brought, and draws the rest.
func (e *cudaEngine) draw(batch engine.Batch, rows []row, output *engine.Output) {
	memory := e.out.Bytes()
	all := unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(memory))), e.tokens/4)
	tokens := unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(memory[e.tokens:]))), len(rows))
	for i, r := range rows {
		s := &batch.Sequences[r.sequence]
		at := i * e.weights.shape.ldLogits
		logits := all[at : at+e.weights.shape.vocab]
		output.LogitsRow(batch, r.sequence, r.token, logits)
		output.PromptRow(batch, r.sequence, r.token, func(token int32, top int) sampler.Logprobs {
			return e.sampler.PromptLogprobs(logits, token, top)
		})
		if !r.last || s.Sample == nil {
			continue
		}
		output.Draw(batch, r.sequence, 0, func(offset uint64, h sampler.History) int32 {
			if drawnByDevice(s.Sample) {
				return tokens[i]
			}
			return s.Sample.Draw(e.sampler, logits, offset, h)
		}, func(token int32) sampler.Logprobs {
			return e.sampler.Logprobs(logits, token, s.Sample.TopLogprobs)
		})
	}
}
