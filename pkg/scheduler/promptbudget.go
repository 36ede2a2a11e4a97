package scheduler

import (
	"math"
	"sort"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// stepCost is what steps take, as measured. The end of a prompt takes longer than its beginning.
type stepCost struct {
	steps latency.StepTime
	// decodeOnly is of steps without prompts: what prompts added is measured against it.
	decodeOnly latency.StepTime
	// excess is the factor by which prompts add more to a step than the model says in one of
	// rareExcess steps; 0 stands for firstExcess.
	excess float64
	// decodeOnlyMost is the most sequences that a step without prompts had: how long more of them
	// would take alone is not known.
	decodeOnlyMost int
}

// costKnown is the number of steps from which on a cost is believed.
const costKnown = 16

// The excess grows by excessGain when prompts added more than it allows for, and falls
// by a share of that when they did not, so that it settles where one of rareExcess steps
// is over (stochastic approximation of a quantile; Robbins and Monro, 1951): the budget
// is one for the 99th percentile of gaps. A single step, however long, counts no more
// than another. Until it has settled it is likelier too large than too small: the first
// long prompt may have few steps. It is bounded because on a machine that others
// interrupt more often than that no share of a step keeps the budget, and all of it is lost.
const (
	firstExcess = 1.5
	excessGain  = 0.1
	rareExcess  = 100
	maxExcess   = 4
)

// observe takes in how long a step computed, for prompts and for drafting. The time of making drafts
// is not in that: prompts add nothing to it.
func (s *Scheduler) observe(st *step, e *StepDone) {
	c, took := &s.stepCost, e.Compute
	work := st.run.Batch.Computed(e.Drafts, e.Cut)
	decodes := 0
	for i := range st.run.Parts {
		if !st.run.Parts[i].Prompt {
			decodes++
		}
	}
	s.drafting.made(st, e, decodes)
	c.steps.Observe(work, took)
	if decodes == len(st.run.Parts) {
		c.decodeOnly.Observe(work, took)
		c.decodeOnlyMost = max(c.decodeOnlyMost, decodes)
		if s.config.MaxDrafts > 0 {
			s.drafting.steps.Observe(work.Decode.Tokens, int(work.Decode.Context), took)
		}
		return
	}
	if decodes == 0 || decodes > c.decodeOnlyMost || c.decodeOnly.Samples() < costKnown || st.promptMs == 0 {
		return
	}
	model := c.decodeOnly.Model()
	added := (took - model.Predict(latency.StepWork{Decode: work.Decode})).Seconds() * 1e3
	if added > st.promptMs*c.allowance() {
		c.excess = min(c.allowance()*(1+excessGain), maxExcess)
	} else {
		c.excess = c.allowance() * (1 - excessGain/(rareExcess-1))
	}
}

// allowance is by how many times prompts are taken to add more than the model says.
func (c *stepCost) allowance() float64 {
	if c.excess == 0 {
		return firstExcess
	}
	return max(c.excess, 1)
}

// promptBudget is what a step has left for prompts.
type promptBudget struct {
	tokens    int // that may be added
	perPrompt int // of one prompt
	taken     int
	// enough is after how many tokens no other prompt is added; where nobody decodes, after twice
	// as many, if the other prompt ends in the step.
	enough int
	block  int

	// forced: the first prompt gets a block in any case.
	forced bool

	bounded bool // by time, too
	leftMs  float64
	takenMs float64
	model   latency.Model
}

// budget is what a step has left beside so many sequences that decode with so many tokens of
// context. If anybody decodes, prompts take no more time than Config.StepBudget, and than lets
// each have its tokens in time, also those whose KV is on its way; without such a bound, no more
// tokens than one prompt may have.
func (s *Scheduler) budget(decodes, context int) promptBudget {
	b := promptBudget{perPrompt: s.config.ChunkTokens, block: s.config.BlockTokens, forced: true, model: s.stepCost.steps.Model(), leftMs: math.Inf(1)}
	b.tokens = max(s.config.MaxBatchTokens-decodes, 0)
	b.enough = min(b.tokens, b.perPrompt)
	known := b.model.Samples >= costKnown
	if decodes > 0 && s.config.StepBudget > 0 {
		b.leftMs = inMs(s.config.StepBudget)
	}
	if known {
		if spare := s.spareMs(inMs(b.model.Predict(latency.Decoding(decodes, context)))); spare < b.leftMs {
			b.leftMs = spare
			b.forced = decodes == 0 || s.withoutPrompts >= latency.PaceWithoutPrompts // a step has to have something
		}
	}
	b.bounded = !math.IsInf(b.leftMs, 1)
	b.leftMs /= s.stepCost.allowance()
	switch {
	case known && (b.bounded || decodes == 0):
		b.enough = b.tokens
		if enough := latency.PromptsPerBase * b.model.BaseMs; enough < b.model.PerTokenMs*float64(b.tokens) {
			b.enough = int(enough/b.model.PerTokenMs) + 1
		}
	case b.bounded: // until it is known what a block costs
		b.tokens = min(b.tokens, b.block)
	default:
		b.tokens = b.enough
	}
	return b
}

// longPrompt is how many tokens of one long prompt fit.
func (b promptBudget) longPrompt() int {
	b.forced = true
	return b.take(0, b.tokens)
}

// fits says whether a prompt of so many tokens would surely get a chunk, wherever it
// begins.
func (b *promptBudget) fits(prompt int) bool {
	n := min(prompt, b.block)
	if b.taken >= b.enough {
		n = prompt
	}
	return n <= min(b.tokens, b.perPrompt) && (!b.bounded || b.forced && b.taken == 0 || b.ms(prompt-n, n) <= b.leftMs)
}

// take takes what a prompt gets of which there are left tokens from start on: all of them,
// or as many whole blocks as fit.
func (b *promptBudget) take(start, left int) int {
	n := min(left, b.tokens, b.perPrompt)
	if n < left {
		if n -= n % b.block; b.taken >= b.enough {
			return 0
		}
	}
	if b.bounded && b.ms(start, n) > b.leftMs {
		fit := sort.Search(n/b.block, func(i int) bool { return b.ms(start, (i+1)*b.block) > b.leftMs })
		if fit == 0 && b.taken == 0 && b.forced {
			fit = 1
		}
		n = min(n, fit*b.block)
		b.leftMs = 0
	}
	b.leftMs -= b.ms(start, n)
	b.takenMs += b.ms(start, n)
	b.taken += n
	switch b.tokens -= n; {
	case b.bounded && b.leftMs <= 0, b.bounded && b.taken >= b.enough:
		b.tokens = 0
	case b.taken >= b.enough:
		b.tokens = min(b.tokens, max(2*b.enough-b.taken, 0))
	}
	return n
}

func (b *promptBudget) ms(start, n int) float64 { return b.model.PromptMs(n, start) }
