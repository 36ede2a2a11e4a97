package scheduler_test

import (
	"errors"
	"testing"

	"github.com/tandem-serving/tandem/pkg/sampler"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// anything is a constraint that allows nothing and is asked nothing here.
type anything struct{}

func (anything) Allowed([]int32) []uint64 { return nil }

// A sequence for which no token is allowed fails alone. What was computed of it is good.
func TestNoTokenAllowed(t *testing.T) {
	for token, want := range map[int32]error{sampler.NoneAllowed: scheduler.ErrNoTokenAllowed, sampler.OutOfEffort: scheduler.ErrConstraintEffort} {
		w := newWorld(t, 30, standard)
		l := w.submit(scheduler.Request{ID: 1, Tokens: prompt(8), MaxTokens: 3, Constraint: anything{}})
		if sample := w.inFlight.Batch.Sequences[0].Sample; sample == nil || sample.Constraint != (anything{}) {
			t.Fatalf("the draw is %+v", sample)
		}
		w.inFlight = nil
		w.handle(scheduler.StepDone{Tokens: []int32{token}})
		if l.finished == nil || l.finished.Reason != scheduler.Failed || !errors.Is(l.finished.Err, want) || l.finished.Spoilt != nil || !l.released {
			t.Errorf("%d: %+v", token, l.finished)
		}
		if len(w.cache) != 2 {
			t.Errorf("%d: %d blocks of a good prompt can be shared", token, len(w.cache))
		}
	}
}
