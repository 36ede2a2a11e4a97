package speculation

import (
	"cmp"
	"slices"
)

// Candidate is a sequence of a step that could have drafts.
type Candidate struct {
	// Chances are the probabilities that each draft is right, if those before it are. The last is also that of
	// further ones; none: there are no drafts.
	Chances []float64
	// Most is the most drafts that it can have.
	Most int
	// Drafts is how many it gets.
	Drafts int
}

// Planner says how many drafts the sequences of a step get. The zero Planner is ready.
type Planner struct{ gains []gain }

// gain is how many tokens the next draft of a candidate gives.
type gain struct {
	tokens    float64
	candidate int
}

// worthwhile is by how much more tokens a second drafts have to promise, at least: what steps take
// is not known better.
const worthwhile = 1.02

// Lengths gives the candidates of a step, in which so many sequences get a token each in any case,
// at most `left` drafts together: as many as promise the most tokens a second. A draft of a
// sequence gives as many tokens as the product of the chances up to it. ms is what a step of so many tokens takes; where that is not
// known, 0, there are no drafts.
func (p *Planner) Lengths(candidates []Candidate, sequences, left int, ms func(tokens int) float64) {
	p.gains = p.gains[:0]
	for i := range candidates {
		c := &candidates[i]
		c.Drafts = 0
		if len(c.Chances) == 0 {
			continue
		}
		tokens := 1.0
		for j := range c.Most {
			tokens *= c.Chances[min(j, len(c.Chances)-1)]
			p.gains = append(p.gains, gain{tokens, i})
		}
	}
	// The likeliest first: of equal ones, those of a sequence stay in their order.
	slices.SortStableFunc(p.gains, func(a, b gain) int { return cmp.Compare(b.tokens, a.tokens) })
	alone := ms(sequences)
	if alone <= 0 {
		return
	}
	tokens := float64(sequences)
	best, most := 0, worthwhile*tokens/alone
	for n, g := range p.gains[:max(min(left, len(p.gains)), 0)] {
		tokens += g.tokens
		if rate := tokens / max(ms(sequences+n+1), 1e-9); rate > most {
			best, most = n+1, rate
		}
	}
	for _, g := range p.gains[:best] {
		candidates[g.candidate].Drafts++
	}
}
