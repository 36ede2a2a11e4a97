package grammar

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/sampler"
)

// Constraint holds one output to a grammar: it is a sampler.Constraint.
type Constraint struct {
	grammar *Grammar
	ends    []int32

	tokens []int32  // that were taken in
	places []*place // after the last of them, in order; nil: the grammar does not allow them
	mask   []uint64 // of a place that is complete
	masked *place   // whose mask that is
	effort int      // that this output took so far

	budget *Budget // nil: none
	first  int     // tokens after which the budget does not count
	later  bool    // the last Allowed was put off

	drafts *Constraint // ForDrafts; nil before it is asked for
}

// keptPlaces is how many places of an output are kept at least: more than there are drafts, so that one
// whose drafts were wrong is not read again from its start.
const keptPlaces = 64

// maxOutputEffort bounds the work for one output on a worker, about a second of it, so that a form that is made
// to be slow does not hold up the outputs beside it for long. Common forms need a fraction of it.
const maxOutputEffort = 1 << 26

// Constrain begins an output. ends are the tokens that end it: they may come where it is
// complete, and nowhere else if they have no text.
func (g *Grammar) Constrain(ends []int32) *Constraint {
	return &Constraint{grammar: g, ends: ends, places: []*place{g.masks.first}}
}

// ForDrafts holds drafts of the same output to the grammar. Their work has a bound of its own, the
// same again: what wrong drafts take ends no output, only further drafts.
func (c *Constraint) ForDrafts() sampler.Constraint {
	if c.drafts == nil {
		c.drafts = c.grammar.Constrain(c.ends)
		c.drafts.drafts = c.drafts
		c.drafts.Within(c.budget, -1)
	}
	return c.drafts
}

// Prepare makes the mask that Allowed gives after some tokens, so that it finds it. Unlike the other
// methods it may be called beside them, by another goroutine.
func (c *Constraint) Prepare(generated []int32) {
	defer c.begin()()
	if at := c.at(generated); at != nil && !c.waits(at, len(generated)) {
		c.grammar.masks.mask(at)
	}
}

// OutOfEffort says that the output has taken all the work that one may on a worker, or that its next mask alone
// takes too much: nothing is allowed any more that is not known.
func (c *Constraint) OutOfEffort() bool {
	c.grammar.mu.Lock()
	defer c.grammar.mu.Unlock()
	at := c.places[len(c.places)-1]
	return c.effort >= maxOutputEffort || at != nil && at.slow
}

// begin begins work on the grammar, which end ends.
func (c *Constraint) begin() (end func()) {
	g := c.grammar
	g.mu.Lock()
	m := &g.masks
	begun := m.effort
	m.limit = max(1, begun+maxOutputEffort-c.effort)
	return func() {
		c.effort += m.effort - begun
		c.budget.take(m.effort - begun)
		m.limit = 0
		if size := m.size(); size != g.size {
			g.size = size
			if g.resized != nil {
				g.resized(size)
			}
		}
		g.mu.Unlock()
	}
}

// Allowed is the tokens that may come after those that were generated so far, a bit for each;
// nil: none may, or finding them takes too long, or has to wait (Later). Nobody changes it, and it is
// valid until the next call.
func (c *Constraint) Allowed(generated []int32) []uint64 {
	defer c.begin()()
	at := c.at(generated)
	if c.later = at != nil && c.waits(at, len(generated)); c.later || at == nil {
		return nil
	}
	mask := c.grammar.masks.mask(at)
	if _, free := at.freeThread(); free || !at.complete || mask == nil {
		return mask
	}
	if c.masked != at {
		c.masked, c.mask = at, append(c.mask[:0], mask...)
		for _, id := range c.ends {
			set(c.mask, id)
		}
	}
	return c.mask
}

// at is the place after some tokens. What was taken in before stays, the last of it: tokens are looked at
// once, unless they are other ones.
func (c *Constraint) at(generated []int32) *place {
	same := min(len(c.tokens), len(generated))
	if !slices.Equal(c.tokens[:same], generated[:same]) {
		for same = 0; c.tokens[same] == generated[same]; same++ {
		}
	}
	m := &c.grammar.masks
	if kept := len(c.places) - (len(c.tokens) - same); kept > 0 {
		c.tokens, c.places = c.tokens[:same], c.places[:kept]
	} else {
		same, c.tokens, c.places = 0, c.tokens[:0], append(c.places[:0], m.first)
	}
	for _, token := range generated[same:] {
		at := c.places[len(c.places)-1]
		if at != nil {
			at = m.next(at, token, c.ends)
		}
		if len(c.places) >= 2*keptPlaces {
			c.places = slices.Delete(c.places, 0, keptPlaces)
		}
		c.tokens, c.places = append(c.tokens, token), append(c.places, at)
	}
	return c.places[len(c.places)-1]
}
