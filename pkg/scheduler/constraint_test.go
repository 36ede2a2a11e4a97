package scheduler_test

import (
	"errors"
	"slices"
	"testing"
	"time"

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
		if l.finished == nil || l.finished.Reason != scheduler.Failed || !errors.Is(l.finished.Err, want) || l.finished.NotFinite != nil || !l.released {
			t.Errorf("%d: %+v", token, l.finished)
		}
		if len(w.cache) != 2 {
			t.Errorf("%d: %d blocks of a good prompt can be shared", token, len(w.cache))
		}
	}
}

// A draw that is put off is made in a later step, with drafts and without, and also where a sequence
// begins again: the tokens are those that it draws alone.
func TestDrawsThatArePutOff(t *testing.T) {
	for name, config := range map[string]scheduler.Config{"no drafts": draftsConfig(0), "looked up": draftsConfig(3), "of the engine": engineDraftsConfig(3)} {
		config.OutputShare = 0.01
		steps := map[bool]int{}
		for _, putsOff := range []bool{false, true} {
			w := newWorld(t, 24, config)
			w.putsOff, w.eager = putsOff, true
			for i := range 4 {
				w.submit(scheduler.Request{ID: scheduler.SequenceID(i + 1), Tokens: []int32{int32(i), 1, 2, 3, 1, 2}, MaxTokens: 60, Sampling: sampler.Params{Seed: uint64(i)}})
			}
			for w.inFlight != nil {
				w.finishStep(time.Millisecond)
			}
			w.finishAll()
			for _, l := range w.order {
				if l.finished.Reason != scheduler.Length || !slices.Equal(l.output, w.expected(l)) {
					t.Errorf("%s, put off %v: %d ends with %+v", name, putsOff, l.request.ID, l.finished)
				}
			}
			if steps[putsOff] = w.steps; w.preemptions == 0 {
				t.Errorf("%s: nobody was preempted", name)
			}
		}
		if steps[true] <= steps[false] {
			t.Errorf("%s: %d steps, and %d where draws were put off", name, steps[false], steps[true])
		}
	}
}
