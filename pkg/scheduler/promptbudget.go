package scheduler

import (
	"sort"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// cost is what steps take, by the tokens that they compute and by the positions that
// those look at, which is what tells the end of a long prompt from its beginning.
type cost struct {
	steps latency.StepTime
	// alone is of steps without prompts: what prompts added is measured against it.
	alone latency.StepTime
	// excess is by how many times more than the model of steps says prompts add, at
	// most, but in one of rareExcess steps; 0 stands for firstExcess.
	excess float64
}

// costKnown is the number of steps from which on a cost is believed.
const costKnown = 16

// The excess grows by excessGain when prompts added more than it allows for, and falls
// by a share of that when they did not, so that it settles where one of rareExcess steps
// is over (stochastic approximation of a quantile; Robbins and Monro, 1951): the budget
// is one for the 99th percentile of gaps. A single step, however long, counts no more
// than another. Until it has settled it is likelier too large than too small: the first
// long prompt may have few steps. It is bounded because on a machine that others
// interrupt more often than that no room keeps the budget, and all of it is lost.
const (
	firstExcess = 1.25
	excessGain  = 0.1
	rareExcess  = 100
	maxExcess   = 4
)

func (c *cost) observe(st *step, took time.Duration) {
	var tokens, positions, decodes, behind int
	for i := range st.run.Batch.Sequences {
		q := &st.run.Batch.Sequences[i]
		tokens += len(q.Tokens)
		positions += lookedAt(q.Start, len(q.Tokens))
		if !st.run.Parts[i].Prompt {
			decodes, behind = decodes+1, behind+lookedAt(q.Start, 1)
		}
	}
	c.steps.Observe(tokens, positions, took)
	if decodes == len(st.run.Parts) {
		c.alone.Observe(tokens, positions, took)
		return
	}
	model := c.alone.Model()
	if decodes == 0 || model.Samples < costKnown || st.promptMs == 0 {
		return
	}
	added := (took - model.Predict(decodes, behind)).Seconds() * 1e3
	if added > st.promptMs*c.allowance() {
		c.excess = min(c.allowance()*(1+excessGain), maxExcess)
	} else {
		c.excess = c.allowance() * (1 - excessGain/(rareExcess-1))
	}
}

// allowance is by how many times prompts are taken to add more than the model says.
func (c *cost) allowance() float64 {
	if c.excess == 0 {
		return firstExcess
	}
	return max(c.excess, 1)
}

// lookedAt is how many positions n tokens from start on look at, themselves included.
func lookedAt(start, n int) int { return n*start + n*(n+1)/2 }

// enoughTimes is how many times the tokens that take as long as an empty step make a
// step long enough: another prompt would delay those that are in it, and save at most
// a ninth of the time.
const enoughTimes = 8

// room is what a step has left for prompts.
type room struct {
	tokens int // that may be added
	taken  int
	enough int // tokens after which no other prompt is added
	block  int

	bounded bool // by time, too
	leftMs  float64
	takenMs float64
	model   latency.Model
}

// roomBeside is what a step of those who decode has room for: most tokens of prompts,
// and if anybody decodes no more time than the budget.
func (s *Scheduler) roomBeside(decodes *engine.Batch, most int) *room {
	r := &s.room
	*r = room{tokens: max(most, 0), enough: most, block: s.config.BlockTokens, model: s.cost.steps.Model()}
	r.bounded = s.config.StepBudget > 0 && len(decodes.Sequences) > 0
	r.leftMs = float64(s.config.StepBudget) / float64(time.Millisecond) / s.cost.allowance()
	switch {
	case r.model.Samples >= costKnown:
		if enough := enoughTimes * r.model.BaseMs; enough < r.model.PerTokenMs*float64(most) {
			r.enough = int(enough/r.model.PerTokenMs) + 1
		}
	case r.bounded: // until it is known what a block costs
		r.tokens = min(r.tokens, r.block)
	}
	return r
}

// fits says whether a prompt of so many tokens would surely get a chunk, wherever it
// begins.
func (r *room) fits(prompt int) bool {
	n := min(prompt, r.block)
	return n <= r.tokens && (!r.bounded || r.taken == 0 || r.ms(prompt-n, n) <= r.leftMs)
}

// take takes room for a prompt of which there are left tokens from start on: for all
// of them, or for as many whole blocks as there is room for. The first prompt gets a
// block in any case.
func (r *room) take(start, left int) int {
	n := min(left, r.tokens)
	if n < left {
		n -= n % r.block
	}
	if r.bounded && r.ms(start, n) > r.leftMs {
		fit := sort.Search(n/r.block, func(i int) bool { return r.ms(start, (i+1)*r.block) > r.leftMs })
		if fit == 0 && r.taken == 0 {
			fit = 1
		}
		n = min(n, fit*r.block)
		r.leftMs = 0
	}
	r.leftMs -= r.ms(start, n)
	r.takenMs += r.ms(start, n)
	r.taken += n
	if r.tokens -= n; r.taken >= r.enough || r.bounded && r.leftMs <= 0 {
		r.tokens = 0
	}
	return n
}

func (r *room) ms(start, n int) float64 {
	return r.model.PerTokenMs*float64(n) + r.model.PerContextTokenMs*float64(lookedAt(start, n))
}
