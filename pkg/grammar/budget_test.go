package grammar_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-serving/tandem/pkg/grammar"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

// Outputs whose masks take long share the work of a step, each gets one in time, and one whose masks are
// known waits for none of them.
func TestOutputsShareTheWorkOfAStep(t *testing.T) {
	longtest.OneGoroutine(t)
	form, last := laborious(t)
	r := rand.New(rand.NewPCG(3, 5))
	const outputs = 8
	budget := new(grammar.Budget)
	var all []*grammar.Constraint
	tokens := make([][]int32, outputs)
	for i := range tokens {
		c := form.Constrain([]int32{eos})
		c.Within(budget, 0)
		all, tokens[i] = append(all, c), []int32{last - int32(r.IntN(1<<12))}
	}
	plain := form.Constrain([]int32{eos})
	plain.Within(budget, 0)
	budget.Refill()
	plain.Prepare([]int32{1})
	waited, done := 0, make([]bool, outputs)
	for step := 0; slices.Contains(done, false); step++ {
		if step == outputs {
			t.Fatalf("after %d steps the outputs that have a mask are %v", step, done)
		}
		budget.Refill()
		before := 0
		for i, c := range all {
			before -= c.Effort()
			mask := c.Allowed(tokens[i])
			if mask == nil != c.Later() {
				t.Fatalf("output %d has no mask: %v, and is to ask later: %v", i, mask == nil, c.Later())
			}
			if done[i] = done[i] || mask != nil; mask == nil {
				waited++
			}
			before += c.Effort()
		}
		if before > grammar.MostEffort {
			t.Errorf("step %d took %d, more than %d", step, before, grammar.MostEffort)
		}
		if plain.Allowed([]int32{1}) == nil {
			t.Error("a mask that is known has to wait")
		}
	}
	if waited == 0 {
		t.Error("no output had to wait")
	}
}

// The first draw of an output does not wait, and drafts whose masks are not known are not allowed
// while the budget is empty.
func TestWhatTheBudgetBounds(t *testing.T) {
	longtest.OneGoroutine(t)
	form, last := laborious(t)
	empty, two := new(grammar.Budget), []int32{last, last - 5}
	c := form.Constrain([]int32{eos})
	c.Within(empty, 1)
	if c.Allowed([]int32{last}) == nil || c.Later() {
		t.Error("the first draw waits")
	}
	drafts := c.ForDrafts()
	if drafts.Allowed([]int32{last}) == nil {
		t.Error("a draft whose mask is known is not allowed")
	}
	if drafts.Allowed(two) != nil {
		t.Error("a mask was made for a draft")
	}
	if forced, _ := c.Forced(two, 3); forced != nil {
		t.Errorf("%v are forced", forced)
	}
	if c.Prepare(two); c.Allowed(two) != nil || !c.Later() {
		t.Error("a second draw does not wait")
	}
	empty.Refill()
	if c.Allowed(two) == nil || c.Later() {
		t.Error("it waits in the next step too")
	}
}

// An output that has taken all its work ends at once: it does not wait for a budget that others empty.
func TestWhoHasNoWorkLeftDoesNotWait(t *testing.T) {
	longtest.OneGoroutine(t)
	form, last := laborious(t)
	r := rand.New(rand.NewPCG(3, 6))
	budget := new(grammar.Budget)
	c := form.Constrain([]int32{eos})
	c.Within(budget, 0)
	var so []int32
	for !c.OutOfEffort() && len(so) < 1000 {
		so = append(so, last-int32(r.IntN(1<<12)))
		budget.Refill()
		c.Prepare(so)
	}
	for !budget.Empty() { // others
		budget.Take(1 << 22)
	}
	if c.Allowed(so) != nil || c.Later() || !c.OutOfEffort() {
		t.Error("it is to ask later")
	}
}
