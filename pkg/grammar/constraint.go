package grammar

import "slices"

// Constraint holds one output to a grammar: it is a sampler.Constraint.
type Constraint struct {
	grammar *Grammar
	ends    []int32

	tokens []int32  // that were taken in
	places []*place // places[i] is after i of them; nil: the grammar does not allow them
	mask   []uint64 // of a place that is complete
	masked *place   // whose mask that is
}

// Constrain begins an output. ends are the tokens that end it: they may come where it is
// complete, and nowhere else if they have no text.
func (g *Grammar) Constrain(ends []int32) *Constraint {
	return &Constraint{grammar: g, ends: ends, places: []*place{g.masks.first}}
}

// Allowed is the tokens that may come after those that were generated so far, a bit for each;
// nil: none may. Nobody changes it, and it is valid until the next call.
func (c *Constraint) Allowed(generated []int32) []uint64 {
	g := c.grammar
	g.mu.Lock()
	defer g.mu.Unlock()
	at := c.at(generated)
	if at == nil {
		return nil
	}
	mask := g.masks.mask(at)
	if _, free := at.freeThread(); free || !at.complete {
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

// at is the place after some tokens. What was taken in before stays: tokens are looked at once,
// unless they are other ones.
func (c *Constraint) at(generated []int32) *place {
	same := min(len(c.tokens), len(generated))
	if !slices.Equal(c.tokens[:same], generated[:same]) {
		for same = 0; c.tokens[same] == generated[same]; same++ {
		}
	}
	c.tokens, c.places = c.tokens[:same], c.places[:same+1]
	m := &c.grammar.masks
	for _, token := range generated[same:] {
		at := c.places[len(c.places)-1]
		if at != nil {
			at = m.next(at, token, c.ends)
		}
		c.tokens, c.places = append(c.tokens, token), append(c.places, at)
	}
	return c.places[len(generated)]
}
