package cpu_test

import (
	"context"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

// TestReading: memory is read before the limits are measured and after, a window at
// least as long as it should be, and the weights stay for as long.
func TestReading(t *testing.T) {
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	m := synthesize(t, shape)
	for _, threads := range []int{1, 3} {
		w, err := cpu.Load(t.Context(), m, cpu.Config{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		checkReading(t, w)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := w.NewReading(true); err == nil {
			t.Error("closed weights gave memory to read")
		}
	}
}

func checkReading(t *testing.T, w *cpu.Weights) {
	t.Helper()
	r, err := w.NewReading(true)
	if err != nil {
		t.Fatal(err)
	}
	read := func(budget time.Duration) {
		t.Helper()
		began := time.Now()
		rate, err := r.Measure(t.Context(), budget)
		if took := time.Since(began); err != nil || took < budget {
			t.Errorf("a window of %v took %v: %v", budget, took, err)
		}
		if rate < 1e7 || rate > 1e13 { // no processor, or a broken clock or loop
			t.Errorf("%v bytes/s", rate)
		}
	}
	for range 3 { // one half, the other, and again
		read(0)
	}
	if _, err := w.MeasureLimits(t.Context(), 0); err != nil {
		t.Error(err)
	}
	read(5 * time.Millisecond)
	if err := w.Close(); err == nil {
		t.Error("the weights were closed while there was memory to read")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Measure(cancelled, 0); err == nil {
		t.Error("a cancelled measurement gave a rate")
	}
	r.Close()
	r.Close()
	if _, err := r.Measure(t.Context(), 0); err == nil {
		t.Error("closed memory was read")
	}
}
