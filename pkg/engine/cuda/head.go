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
		for n := wanted(&batch.Sequences[i]); n > 0; n-- {
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

// outputFor is a batch's output before anything is in it.
func outputFor(batch engine.Batch) engine.Output {
	output := engine.Output{Tokens: batch.NewTokens()}
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		if s.Logits != engine.LogitsNone && output.Logits == nil {
			output.Logits = make([][][]float32, len(batch.Sequences))
		}
		if s.Sample != nil && s.Sample.Logprobs && output.Logprobs == nil {
			output.Logprobs = make([]sampler.Logprobs, len(batch.Sequences))
		}
	}
	return output
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
		if s.Logits == engine.LogitsAll || s.Logits == engine.LogitsLast && r.last {
			output.Logits[r.sequence] = append(output.Logits[r.sequence], append([]float32(nil), logits...))
		}
		output.PromptRow(batch, r.sequence, r.token, func(token int32, top int) sampler.Logprobs {
			return e.sampler.PromptLogprobs(logits, token, top)
		})
		if !r.last || s.Sample == nil {
			continue
		}
		token := tokens[i]
		if !drawnByDevice(s.Sample) {
			token = s.Sample.Draw(e.sampler, logits, s.Sample.Offset, s.Sample.History)
		}
		output.Tokens[r.sequence] = token
		if s.Sample.Logprobs && token >= 0 {
			output.Logprobs[r.sequence] = e.sampler.Logprobs(logits, token, s.Sample.TopLogprobs)
		}
	}
}
