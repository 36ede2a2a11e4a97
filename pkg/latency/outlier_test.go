package latency_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// One step that lasted seconds, because the process was stopped in it, leaves the
// prediction near what steps take.
func TestOneStallIsForgotten(t *testing.T) {
	var s latency.StepTime
	for i := range 200 {
		s.Observe(latency.Decoding(1+i%8, 100+i), 5*time.Millisecond)
	}
	s.Observe(latency.Decoding(4, 300), 8*time.Second)
	if got := s.Model().Predict(latency.Decoding(4, 300)); got > 15*time.Millisecond {
		t.Errorf("after a stall a step of 5 ms is predicted to take %v", got)
	}
	for range 300 {
		s.Observe(latency.Decoding(4, 300), 5*time.Millisecond)
	}
	if got := s.Model().Predict(latency.Decoding(4, 300)); got > 6*time.Millisecond {
		t.Errorf("and 300 steps later %v", got)
	}
}

// Nor does one that is among the first of its kind: its weight is that of what it took.
func TestAFirstStallIsForgotten(t *testing.T) {
	var s latency.StepTime
	for i := range 300 {
		tokens := 1000 + 13*i
		var w latency.StepWork
		w.Add(0, tokens, true)
		s.Observe(w, 8*time.Millisecond+time.Duration(tokens)*50*time.Microsecond)
	}
	s.Observe(latency.Decoding(1, 300), 400*time.Millisecond)
	for range 100 {
		s.Observe(latency.Decoding(1, 300), 8*time.Millisecond)
	}
	if got := s.Model().Predict(latency.Decoding(1, 300)); got > 10*time.Millisecond {
		t.Errorf("after a stall a step of 8 ms is predicted to take %v", got)
	}
}

// Short steps that became slower are believed as soon where long ones came before.
func TestSlownessAfterLongStepsIsLearned(t *testing.T) {
	var s latency.StepTime
	for i := range 1500 {
		var w latency.StepWork
		w.Add(0, 3000+i, true)
		s.Observe(w, 300*time.Millisecond)
		s.Observe(latency.Decoding(1, 300), 2*time.Millisecond)
	}
	for range 2000 {
		s.Observe(latency.Decoding(1, 300), 4*time.Millisecond)
	}
	if got := s.Model().Predict(latency.Decoding(1, 300)); got < 3500*time.Microsecond {
		t.Errorf("a step of 4 ms is predicted to take %v", got)
	}
}

// An engine that has become much slower for good is believed.
func TestLastingSlownessIsLearned(t *testing.T) {
	var s latency.StepTime
	for range 200 {
		s.Observe(latency.Decoding(4, 300), time.Millisecond)
	}
	for range 1000 {
		s.Observe(latency.Decoding(4, 300), 100*time.Millisecond)
	}
	if got := s.Model().Predict(latency.Decoding(4, 300)); got < 60*time.Millisecond {
		t.Errorf("a step of 100 ms is predicted to take %v", got)
	}
}
