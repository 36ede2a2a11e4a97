package search_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// A capacity is found within the tolerance, whatever share is refused below it and what the verdicts say.
func TestCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start, factor := rapid.Float64Range(0.01, 100).Draw(t, "start"), rapid.Float64Range(1.05, 4).Draw(t, "factor")
		capacity := start * math.Pow(factor, rapid.Float64Range(-4.9, 4.9).Draw(t, "times"))
		tolerance := rapid.SampledFrom([]float64{search.Fine, 0.03}).Draw(t, "tolerance")
		s := search.NewCapacity(start, factor, tolerance)
		drive(t, s, func(rate float64) *measure.Summary {
			f := &measure.Summary{Requests: 100, SLOAttainment: 0.9, Verdict: measure.Overloaded}
			if rate > capacity {
				f.SLOAttainment, f.Verdict = 0.899, measure.Stable
			}
			return f
		})
		if got := s.Result().MaxRate; got == nil || *got > capacity || *got*(1+tolerance)*1.0001 < capacity {
			t.Fatalf("found %v of %v", got, capacity)
		}
		for i, step := range s.Steps() {
			if step.Passed != (step.Rate <= capacity) || step.Unknown || (step.Why == "") != step.Passed {
				t.Fatalf("step %d of capacity %v: %+v", i, capacity, step)
			}
		}
	})
}

// Where nothing can be told, the search ends.
func TestCapacityWithoutRequests(t *testing.T) {
	s := search.NewCapacity(10, 2, search.Fine)
	if asked := drive(t, s, func(float64) *measure.Summary { return &measure.Summary{} }); len(asked) != 1 || s.Result().MaxRate != nil {
		t.Errorf("asked for %v", asked)
	}
}

// A server that meets no SLO at any rate has no capacity.
func TestNoCapacity(t *testing.T) {
	s := search.NewCapacity(10, 2, search.Fine)
	if asked := drive(t, s, func(float64) *measure.Summary { return &measure.Summary{Requests: 9} }); len(asked) > 40 || s.Result().MaxRate != nil {
		t.Errorf("asked for %v", asked)
	}
}
