package grammar

import "sync/atomic"

// stepEffort is the work on masks that one step of a worker may begin, some 60 ms of a processor: about that
// for one mask.
const stepEffort = maxMaskWork

// Budget bounds the work for the masks of all outputs of a worker in one step. A mask that was begun is
// finished, so that each step has at least one. The zero Budget is empty. It is safe for concurrent use.
type Budget struct{ left atomic.Int64 }

// Refill begins a step.
func (b *Budget) Refill() { b.left.Store(stepEffort) }

// Empty says that no mask is begun any more in this step.
func (b *Budget) Empty() bool { return b != nil && b.left.Load() <= 0 }

func (b *Budget) take(effort int) {
	if b != nil {
		b.left.Add(-int64(effort))
	}
}

// Within has the masks after more than first tokens, with -1 all, wait while a budget is empty, unless they
// are known.
// It is called before the other methods.
func (c *Constraint) Within(budget *Budget, first int) { c.budget, c.first = budget, first }

// Later says that the last Allowed has to be asked again, in a later step: the budget is empty.
func (c *Constraint) Later() bool {
	c.grammar.mu.Lock()
	defer c.grammar.mu.Unlock()
	return c.later
}

// waits says whether a mask is not begun now: that of a place after so many tokens. An output that has
// no work left does not wait for any.
func (c *Constraint) waits(at *place, tokens int) bool {
	return at.mask == nil && !at.slow && tokens > c.first && !c.grammar.masks.exhausted() && c.budget.Empty()
}
