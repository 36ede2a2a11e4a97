package cuda

import (
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/sampler"
)

// row is a row of logits: whose it is, and whether it is that sequence's last.
type row struct {
	sequence int
	last     bool
}

// head computes the logits that somebody needs, hands them out and draws. What the
// program holds already comes first; with a graph in it (from has no rows) that has
// computed the only pass.
func (e *cudaEngine) head(batch engine.Batch, from residual) (engine.Output, error) {
	output := engine.Output{Tokens: batch.NewTokens()}
	e.taken = e.taken[:0]
	for i := range batch.Sequences {
		s := &batch.Sequences[i]
		for n := wanted(s); n > 0; n-- {
			e.taken = append(e.taken, row{i, n == 1})
		}
		if s.Logits != engine.LogitsNone && output.Logits == nil {
			output.Logits = make([][][]float32, len(batch.Sequences))
		}
		if s.Sample != nil && s.Sample.Logprobs && output.Logprobs == nil {
			output.Logprobs = make([]sampler.Logprobs, len(batch.Sequences))
		}
	}
	if len(e.taken) == 0 {
		return output, e.stream.Run(e.program)
	}
	most := e.config.headRows()
	for first, pass := 0, 0; first < len(e.taken); first, pass = first+most, pass+1 {
		n := min(most, len(e.taken)-first)
		if from.rows > 0 {
			e.launcher.head(from, pass, first, n)
		}
		rows := e.taken[first : first+n]
		e.fetch(batch, rows)
		if err := e.stream.Run(e.program); err != nil {
			return engine.Output{}, err
		}
		e.program.Reset()
		e.draw(batch, rows, &output)
	}
	return output, nil
}

// fetch appends the copies of what the host needs of rows: all tokens that the device
// drew, and the logits of those that it draws from itself or that somebody wants to see.
func (e *cudaEngine) fetch(batch engine.Batch, rows []row) {
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
	return s.Logits != engine.LogitsNone || r.last && s.Sample != nil && !drawnByDevice(s.Sample)
}

// drawnByDevice says whether the device draws. What it does not do, adjusting logits and
// logprobs, asks for the host, which then draws as well. A request has one or the other for
// all its tokens.
func drawnByDevice(s *engine.Sample) bool {
	p := &s.Params
	return len(p.LogitBias) == 0 && (p.RepetitionPenalty == 0 || p.RepetitionPenalty == 1) && p.PresencePenalty == 0 && p.FrequencyPenalty == 0 && !s.Logprobs
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
		if s.Logits != engine.LogitsNone {
			output.Logits[r.sequence] = append(output.Logits[r.sequence], append([]float32(nil), logits...))
		}
		if !r.last || s.Sample == nil {
			continue
		}
		token := tokens[i]
		if !drawnByDevice(s.Sample) {
			token = e.sampler.Sample(logits, s.Sample.Params, s.Sample.Offset, s.Sample.History)
		}
		output.Tokens[r.sequence] = token
		if s.Sample.Logprobs {
			output.Logprobs[r.sequence] = e.sampler.Logprobs(logits, token, s.Sample.TopLogprobs)
		}
	}
}
