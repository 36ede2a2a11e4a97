package routing

import (
	"time"
)

// Silence is how long a worker may say nothing on a request's stream, by what it is
// at. What it says next is what ends the wait, whatever else happens.
type Silence struct {
	// Queue: while the sequence waits for its turn or for blocks on the worker, also if
	// it ran before and had to give way.
	Queue time.Duration
	// Prompt: while the prompt is computed or its KV is sent, or a sequence that gave
	// way is computed again.
	Prompt time.Duration
	// Tokens: between tokens, and from the last one to the end.
	Tokens time.Duration
}

// A worker that hangs and still answers pings is found by its silence alone. How long
// that may last follows from what is known of the worker, far above what it takes when it
// is well:
//
//	tokens           50 times the p99 of its gaps between tokens, as this router received
//	                 them, or 20 times its longest step, whichever is more; at least 2 s.
//	                 With fewer than gapsEnough gaps, 50 times its longest step; at least 5 s
//	queue and prompt 50 times what is predicted of the queue, the longest step, the
//	                 whole prompt and its transfer; at least 5 s
//
// times its patience, and never above Config.Silence, which holds alone where
//   - the worker has no measured step time,
//   - the sequence may wait for others of unknown length: the worker is full, or no fresh
//     report says otherwise,
//   - no other worker could take the request: to give this one up helps nobody.
//
// The longest step has as many prompt tokens as the worker's record allows, beside the
// context that it holds. The floors are for busy machines: on two cores with twenty
// runnable processes, one of them may not run for a second.
const (
	gapPatience     = 50
	stepPatience    = 20
	promptPatience  = 50
	tokensLeast     = 2 * time.Second
	promptLeast     = 5 * time.Second
	maxPatience     = 16
	patienceRegains = 256 // requests that went well after which it is halved
)

// silence is how long a worker may be silent in a request that it is given now.
// others says that there are workers beside it.
func (rt *Router) silence(now time.Time, r *Request, w *worker, others bool) Silence {
	out := rt.config.Silence()
	step, measured := w.measured()
	chunk := w.chunk
	if !others || !measured || chunk <= 0 {
		return out
	}
	patience := time.Duration(max(w.patience, 1))
	e := w.estimate(now, rt.config.LoadStale)
	longest := step.BaseMs + step.PerContextTokenMs*float64(e.context) + step.PromptMs(chunk, r.Tokens)
	tokens := max(durationOf(promptPatience*longest), promptLeast)
	if p99, known := w.gaps.p99(); known {
		tokens = max(gapPatience*p99, durationOf(stepPatience*longest), tokensLeast)
	}
	out.Tokens = min(out.Tokens, patience*min(tokens, out.Tokens))
	role := w.role
	if !w.fresh(now, rt.config.LoadStale) {
		return out
	}
	// A sequence that gave way computes again what it has generated, too.
	steps := w.steps(step, rt.promptTokens(r.Model), e.count, e.context)
	predicted := steps.queueMs(e.tokens) + longest + steps.ms(positions(r, role), 0) + rt.transferMs(now, w, r.Tokens)
	prompt := patience * min(max(durationOf(promptPatience*predicted), promptLeast), max(out.Prompt, out.Queue))
	out.Prompt = min(out.Prompt, prompt)
	if e.count < w.maxSequences && !w.full(e, need(w, r, role)) {
		out.Queue = min(out.Queue, prompt)
	}
	return out
}
