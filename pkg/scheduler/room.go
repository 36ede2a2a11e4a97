package scheduler

import (
	"sort"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// cost is what steps take, by the tokens that they compute and by the positions that
// those look at, which is what tells the end of a long prompt from its beginning.
type cost struct{ steps latency.StepTime }

// costKnown is the number of steps from which on a cost is believed.
const costKnown = 16

func (c *cost) observe(b *engine.Batch, took time.Duration) {
	tokens, positions := 0, 0
	for i := range b.Sequences {
		q := &b.Sequences[i]
		tokens += len(q.Tokens)
		positions += lookedAt(q.Start, len(q.Tokens))
	}
	c.steps.Observe(tokens, positions, took)
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
	model   latency.Model
}

// roomBeside is what a step of those who decode has room for: most tokens of prompts,
// and if anybody decodes no more time than the budget.
func (s *Scheduler) roomBeside(decodes *engine.Batch, most int) *room {
	r := &s.room
	*r = room{tokens: max(most, 0), enough: most, block: s.config.BlockTokens, model: s.cost.steps.Model()}
	r.bounded = s.config.StepBudget > 0 && len(decodes.Sequences) > 0
	r.leftMs = float64(s.config.StepBudget) / float64(time.Millisecond)
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
	r.taken += n
	if r.tokens -= n; r.taken >= r.enough || r.bounded && r.leftMs <= 0 {
		r.tokens = 0
	}
	return n
}

func (r *room) ms(start, n int) float64 {
	return r.model.PerTokenMs*float64(n) + r.model.PerContextTokenMs*float64(lookedAt(start, n))
}
