package cpu_test

import (
	"context"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// TestLimits: they are measured on every instruction set, and engines tell them.
func TestLimits(t *testing.T) {
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	m := synthesize(t, shape)
	for _, isa := range []string{"", "portable"} {
		t.Run(isa, func(t *testing.T) { checkLimits(t, m, isa) })
	}
}

// TestLimitsSeeOthers: a measurement is not valid while other processes want the
// processors too.
func TestLimitsSeeOthers(t *testing.T) {
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	w, err := cpu.Load(t.Context(), synthesize(t, shape), cpu.Config{Threads: runtime.NumCPU()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	for range 2 * runtime.NumCPU() {
		other := exec.Command("sh", "-c", "while :; do :; done")
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = other.Process.Kill()
			_ = other.Wait() // killed
		})
	}
	limits, err := w.MeasureLimits(t.Context(), 200*time.Millisecond)
	if err != nil || limits.Valid {
		t.Errorf("two others for each processor: %+v, %v", limits, err)
	}
}

func checkLimits(t *testing.T, m *model.Model, isa string) {
	w, err := cpu.Load(t.Context(), m, cpu.Config{Threads: 2, ISA: isa})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}()
	e, err := w.NewEngine(cpu.Config{Blocks: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := e.(engine.Limited).Limits(); got != (latency.Limits{}) {
		t.Errorf("before they are measured: %+v", got)
	}
	limits, err := w.MeasureLimits(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	// Any processor does these; the upper bounds would be a broken clock or loop.
	if limits.FLOPsPerSecond < 1e7 || limits.FLOPsPerSecond > 1e15 || limits.ReadBytesPerSecond < 1e8 || limits.ReadBytesPerSecond > 1e13 {
		t.Errorf("%q: %+v", isa, limits)
	}
	if got := e.(engine.Limited).Limits(); got != limits {
		t.Errorf("the engine says %+v, want %+v", got, limits)
	}
	t.Logf("%q: %+v", isa, limits)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.MeasureLimits(cancelled, 0); err == nil {
		t.Error("a cancelled measurement gave limits")
	}
}

// TestBarrier: a barrier takes some time, and not for ever.
func TestBarrier(t *testing.T) {
	shape, err := model.Preset("tiny")
	if err != nil {
		t.Fatal(err)
	}
	m := synthesize(t, shape)
	for _, threads := range []int{1, 2} {
		w, err := cpu.Load(t.Context(), m, cpu.Config{Threads: threads})
		if err != nil {
			t.Fatal(err)
		}
		ns, err := w.MeasureBarrier(t.Context(), 0)
		if err != nil || ns <= 0 || ns > 1e9 {
			t.Errorf("%d threads: %v ns, %v", threads, ns, err)
		}
		t.Logf("%d threads: %.1f ns", threads, ns)
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.MeasureBarrier(cancelled, 0); err == nil {
			t.Error("a cancelled measurement gave a time")
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if _, err := w.MeasureBarrier(t.Context(), 0); err == nil {
			t.Error("closed weights gave a time")
		}
	}
}
