package queueing_test

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/queueing"
)

func TestLaws(t *testing.T) {
	for _, c := range []struct {
		name string
		got  func() (float64, error)
		want float64
	}{
		{"Little: 50 a second that stay 2 s", func() (float64, error) { return queueing.Little(50, 2) }, 100},
		{"Amdahl: 95% on 20 servers (Wikipedia: 10.26)", func() (float64, error) { return queueing.Amdahl(0.95, 20) }, 10.2564102564},
		{"Amdahl: all on 8", func() (float64, error) { return queueing.Amdahl(1, 8) }, 8},
		{"Amdahl: nothing on 8", func() (float64, error) { return queueing.Amdahl(0, 8) }, 1},
		{"fan-out: one call", func() (float64, error) { return queueing.FanOut(0.99, 1) }, 0.99},
		{"fan-out: p99 of 10 calls", func() (float64, error) { return queueing.FanOut(0.99, 10) }, 0.9989954713},
		// Dean and Barroso: of 100 servers with a p99 of 1 s, 63% of requests meet a slow one.
		{"fan-out: 0.366 of 100 calls", func() (float64, error) { return queueing.FanOut(0.3660323413, 100) }, 0.99},
	} {
		got, err := c.got()
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		near(t, c.name, got, c.want, 1e-9)
	}
	for name, err := range map[string]error{
		"negative rate":  second(queueing.Little(-1, 2)),
		"share over 1":   second(queueing.Amdahl(1.1, 2)),
		"share no value": second(queueing.Amdahl(math.NaN(), 2)),
		"half a server":  second(queueing.Amdahl(0.5, 0.5)),
		"no call":        second(queueing.FanOut(0.99, 0)),
		"quantile":       second(queueing.FanOut(99, 1)),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestServiceOf(t *testing.T) {
	for _, c := range []struct {
		times []float64
		want  queueing.Service
	}{
		{nil, queueing.Service{}},
		{[]float64{0, 0}, queueing.Service{}},
		{[]float64{3, 3, 3}, queueing.Service{Seconds: 3}},
		{[]float64{1, 3}, queueing.Service{Seconds: 2, SCV: 0.25}},
		{[]float64{0, 0, 0, 4}, queueing.Service{Seconds: 1, SCV: 3}},
	} {
		if got := queueing.ServiceOf(c.times); math.Abs(got.Seconds-c.want.Seconds) > 1e-12 || math.Abs(got.SCV-c.want.SCV) > 1e-12 {
			t.Errorf("%v: %+v, want %+v", c.times, got, c.want)
		}
	}
}

// A batch at its highest rate takes as long as it may, and runs as many as Little's law says.
func TestBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := queueing.Batch{
			StepSeconds: rapid.Float64Range(1e-3, 0.05).Draw(t, "step"),
			EachSeconds: rapid.Float64Range(1e-6, 1e-3).Draw(t, "each"),
		}
		steps := rapid.Float64Range(1, 2000).Draw(t, "steps")
		bound := b.StepSeconds + b.EachSeconds*rapid.Float64Range(1.5, 1000).Draw(t, "running")
		rate, err := b.Rate(steps, bound, 0)
		if err != nil {
			t.Fatal(err)
		}
		running, seconds, err := b.Running(rate, steps)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "the step at the highest rate", seconds, bound, 1e-6)
		little, err := queueing.Little(rate, steps*seconds)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "what runs", running, little, 1e-6)
		limit := max(running/2, 1)
		half, err := b.Rate(steps, bound, limit)
		if err != nil || half > rate {
			t.Fatalf("with at most %v running: %v, without %v (%v)", limit, half, rate, err)
		}
		running, _, err = b.Running(half, steps)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "what runs at the limit", running, min(limit, running), 1e-6)
	})
	one := queueing.Batch{StepSeconds: 0.02, EachSeconds: 0.001}
	if rate, err := one.Rate(100, 0.0205, 0); rate != 0 || err != nil {
		t.Errorf("a bound below the step of one request: %v, %v", rate, err)
	}
	if _, _, err := one.Running(10, 100); !errors.Is(err, queueing.ErrUnstable) {
		t.Errorf("steps that only grow: %v", err)
	}
	for name, err := range map[string]error{
		"no steps":  second(one.Rate(0, 1, 0)),
		"no bound":  second(queueing.Batch{StepSeconds: 0.02}.Rate(10, 1, 0)),
		"negative":  second(queueing.Batch{StepSeconds: -1}.Rate(10, 1, 0)),
		"no number": second(one.Rate(math.NaN(), 1, 0)),
	} {
		if err == nil || errors.Is(err, queueing.ErrUnstable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
