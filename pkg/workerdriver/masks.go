package workerdriver

import (
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/grammar"
)

// preparer is a sampler.Constraint that can find what it allows before it is asked.
type preparer interface {
	// Prepare may be called beside Allowed, by another goroutine.
	Prepare(generated []int32)
}

// prepareMasks finds, beside the engine, which tokens the draws of a step may take: they depend on
// the tokens so far alone. A draw that comes first finds out itself. The batch must stay as it is
// until d.masking is done.
func (d *Driver) prepareMasks(batch engine.Batch) {
	d.maskBudget.Refill()
	for i := range batch.Sequences {
		if s := batch.Sequences[i].Sample; s != nil && s.Constraint != nil {
			d.masking.Go(func() { d.nextMask = prepareMasks(batch.Sequences, d.nextMask, &d.maskBudget) })
			return
		}
	}
}

// prepareMasks begins with the sequence from, and returns the one at which the budget was empty.
func prepareMasks(sequences []engine.Sequence, from int, budget *grammar.Budget) (next int) {
	for i := range sequences {
		at := (from + i) % len(sequences)
		if budget.Empty() {
			return at
		}
		s := sequences[at].Sample
		if s == nil {
			continue
		}
		if p, is := s.Constraint.(preparer); is {
			p.Prepare(s.History.Generated)
		}
	}
	return from
}
