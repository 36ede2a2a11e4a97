package latency_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// truth is how long steps really take.
func truth(m latency.Model, w latency.StepWork, noise float64) time.Duration {
	return time.Duration(float64(m.Predict(w)) * (1 + noise))
}

// prompt is a step with tokens of one prompt, from start on.
func prompt(start, tokens int) (w latency.StepWork) {
	w.Add(start, tokens, true)
	return w
}

// work is a step as a scheduler would make it: some decodes, sometimes a chunk.
func work(r *rand.Rand) latency.StepWork {
	decodes := r.IntN(64)
	w := latency.Decoding(decodes, decodes*(100+r.IntN(2000)))
	if r.IntN(3) == 0 || decodes == 0 {
		w.Add(r.IntN(4096), 2+r.IntN(2048), true)
	}
	return w
}

func anyModel(t *rapid.T) latency.Model {
	return latency.Model{
		BaseMs:            rapid.Float64Range(0, 20).Draw(t, "base"),
		PerTokenMs:        rapid.Float64Range(0.001, 1).Draw(t, "per token"),
		PerContextTokenMs: rapid.Float64Range(0, 1e-2).Draw(t, "per context token"),
		PerSquareMs:       rapid.Float64Range(0, 1e-5).Draw(t, "per square"),
	}
}

func TestRecoversCoefficients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyModel(t)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var s latency.StepTime
		for range 500 {
			w := work(r)
			s.Observe(w, truth(want, w, 0))
		}
		got := s.Model()
		if got.Samples != 500 ||
			math.Abs(got.BaseMs-want.BaseMs) > 0.01+0.01*want.BaseMs ||
			math.Abs(got.PerTokenMs-want.PerTokenMs) > 1e-4+0.01*want.PerTokenMs ||
			math.Abs(got.PerContextTokenMs-want.PerContextTokenMs) > 1e-5+0.01*want.PerContextTokenMs ||
			math.Abs(got.PerSquareMs-want.PerSquareMs) > 1e-8+0.01*want.PerSquareMs {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

func TestPredictsThroughNoise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyModel(t)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		var s latency.StepTime
		for range 1000 {
			w := work(r)
			s.Observe(w, truth(want, w, 0.1*(2*r.Float64()-1)))
		}
		checkModel(t, s.Model())
		var off, all float64
		for range 200 {
			w := work(r)
			is := want.Predict(w).Seconds()
			off += math.Abs(s.Model().Predict(w).Seconds() - is)
			all += is
		}
		if off > 0.05*all {
			t.Fatalf("off by %.1f%% on average: %+v, want %+v", 100*off/all, s.Model(), want)
		}
	})
}

func checkModel(t *rapid.T, m latency.Model) {
	for _, c := range []float64{m.BaseMs, m.PerTokenMs, m.PerContextTokenMs, m.PerSquareMs} {
		if !(c >= 0) || math.IsInf(c, 0) {
			t.Fatalf("%+v", m)
		}
	}
}

// Whatever it was shown, coefficients are numbers and not negative.
func TestCoefficientsAreNeverNegative(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s latency.StepTime
		for range rapid.IntRange(0, 20).Draw(t, "steps") {
			w := latency.Decoding(rapid.IntRange(-1, 1<<20).Draw(t, "tokens"), rapid.IntRange(-1, 1<<40).Draw(t, "context"))
			if rapid.Bool().Draw(t, "with a prompt") {
				w.Add(rapid.IntRange(0, 1<<20).Draw(t, "start"), rapid.IntRange(1, 1<<20).Draw(t, "chunk"), true)
			}
			s.Observe(w, time.Duration(rapid.Int64Range(-1, int64(time.Hour)).Draw(t, "duration")))
			checkModel(t, s.Model())
			if p := s.Model().Predict(latency.Decoding(100, 1000)); p < 0 {
				t.Fatalf("predicts %v with %+v", p, s.Model())
			}
		}
	})
}

func TestFirstSteps(t *testing.T) {
	type step struct {
		tokens, context int
		d               time.Duration
	}
	ms := time.Millisecond
	for _, test := range []struct {
		name   string
		steps  []step
		ask    step // and what is predicted for it
		within time.Duration
	}{
		{"nothing", nil, step{100, 1000, 0}, 0},
		{"one step is predicted again", []step{{10, 50, 8 * ms}}, step{10, 50, 8 * ms}, ms / 10},
		{"the same step again and again", []step{{1, 7, 3 * ms}, {1, 7, 5 * ms}, {1, 7, 4 * ms}}, step{1, 7, 4 * ms}, ms / 10},
		{"two points make a line", []step{{10, 10, 20 * ms}, {110, 110, 120 * ms}}, step{60, 60, 70 * ms}, ms / 10},
		{"collinear: one sequence that decodes", []step{{1, 10, 5 * ms}, {1, 11, 5 * ms}, {1, 12, 5 * ms}}, step{1, 13, 5 * ms}, ms / 10},
		{"steps of a single token: two take hardly longer", []step{{1, 10, 5 * ms}, {1, 11, 5 * ms}, {1, 12, 5 * ms}}, step{2, 22, 5 * ms}, ms / 10},
		{"steps of many tokens: twice as many take nearly twice as long", []step{{1024, 1024, 90 * ms}, {1024, 1024, 90 * ms}}, step{2048, 2048, 170 * ms}, 10 * ms},
		{"a slope down is no slope", []step{{1, 10, 6 * ms}, {100, 1000, 4 * ms}}, step{50, 500, 5 * ms}, ms / 2},
		{"steps that take no time", []step{{1, 1, 0}, {5, 5, 0}}, step{9, 9, 0}, 0},
		{"what can not be is ignored", []step{{0, 1, ms}, {1, -1, ms}, {1, 1, -ms}}, step{1, 1, 0}, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			var s latency.StepTime
			for _, o := range test.steps {
				s.Observe(latency.Decoding(o.tokens, o.context), o.d)
			}
			if got := s.Model().Predict(latency.Decoding(test.ask.tokens, test.ask.context)); (got - test.ask.d).Abs() > test.within {
				t.Errorf("%v, want %v: %+v", got, test.ask.d, s.Model())
			}
		})
	}
}

func TestForgets(t *testing.T) {
	slow, fast := latency.Model{BaseMs: 50, PerTokenMs: 1}, latency.Model{BaseMs: 5, PerTokenMs: 0.1}
	r := rand.New(rand.NewPCG(1, 1))
	var s latency.StepTime
	for i := range 12_000 {
		m := slow
		if i >= 2_000 {
			m = fast
		}
		w := work(r)
		s.Observe(w, truth(m, w, 0))
	}
	if got := s.Model(); math.Abs(got.BaseMs-fast.BaseMs) > 0.1 || math.Abs(got.PerTokenMs-fast.PerTokenMs) > 0.01 {
		t.Errorf("%+v, want %+v", got, fast)
	}
}

// The first steps of a cold engine take many times as long as later ones.
func TestForgetsAColdStart(t *testing.T) {
	want := latency.Model{BaseMs: 4, PerTokenMs: 0.2, PerContextTokenMs: 0.001}
	r := rand.New(rand.NewPCG(1, 1))
	var s latency.StepTime
	for i := range 100 {
		noise := 0.0
		if i < 3 {
			noise = 20
		}
		w := work(r)
		s.Observe(w, truth(want, w, noise))
	}
	got, is := s.Model().Predict(latency.Decoding(32, 20_000)), want.Predict(latency.Decoding(32, 20_000))
	if off := float64((got - is).Abs()) / float64(is); off > 0.2 {
		t.Errorf("%v, want %v: %+v", got, is, s.Model())
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	var s latency.StepTime
	if n := testing.AllocsPerRun(100, func() { s.Observe(latency.Decoding(3, 100), time.Millisecond); s.Model() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What the fit is does not depend on when somebody asked for it: logs of workers that were asked for
// reports meanwhile are replayed without them.
func TestModelDoesNotDependOnWhoAsks(t *testing.T) {
	var asked, silent latency.StepTime
	for i := range 500 {
		d := time.Duration(1000+37*(i%11)) * time.Microsecond
		asked.Observe(latency.Decoding(1+i%7, i), d)
		silent.Observe(latency.Decoding(1+i%7, i), d)
		if i%5 == 0 {
			asked.Model()
		}
	}
	if a, s := asked.Model(), silent.Model(); a != s {
		t.Errorf("%+v if asked meanwhile, else %+v", a, s)
	}
}

// Equal prompts do not say what the positions of their tokens take: the tokens take their time, and a
// longer prompt is not predicted by positions.
func TestPositionsThatStepsDoNotTell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, each := rapid.Float64Range(0, 50).Draw(t, "base"), rapid.Float64Range(0.01, 1).Draw(t, "each")
		tokens := 16 * rapid.IntRange(8, 128).Draw(t, "tokens")
		took := base + each*float64(tokens)
		var s latency.StepTime
		for range rapid.IntRange(8, 200).Draw(t, "steps") {
			s.Observe(prompt(0, tokens), time.Duration(took*float64(time.Millisecond)))
		}
		m := s.Model()
		if got := m.Predict(prompt(0, tokens)).Seconds() * 1e3; math.Abs(got/took-1) > 0.01 {
			t.Errorf("a prompt of %d tokens takes %v ms, predicted %v", tokens, took, got)
		}
		if m.PerSquareMs*float64(tokens) > took/float64(tokens)/100 {
			t.Errorf("%v ms a square, %v a token", m.PerSquareMs, took/float64(tokens))
		}
	})
}

// Prompts in two chunks, the second of which has twice the positions, say nothing of sequences that
// decode; and the few short steps of such are predicted although those of prompts differ by more from
// one to the next than they take.
func TestShortStepsBesideLongOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		want := latency.Model{BaseMs: 0.4, PerTokenMs: 0.07, PerContextTokenMs: 1e-4, PerSquareMs: 2e-5}
		var s latency.StepTime
		observe := func(w latency.StepWork) { s.Observe(w, truth(want, w, 0.2*(2*r.Float64()-1))) }
		for range 100 {
			observe(prompt(0, 512))
			observe(prompt(512, 512))
		}
		if got := s.Model().Predict(latency.Decoding(1, 1040)); got > 10*time.Millisecond {
			t.Errorf("prompts alone predict %v for a step that decodes one sequence: %+v", got, s.Model())
		}
		for range 15 {
			observe(latency.Decoding(1, 1040))
		}
		got, is := s.Model().Predict(latency.Decoding(1, 1040)), want.Predict(latency.Decoding(1, 1040))
		if off := math.Abs(float64(got)/float64(is) - 1); off > 0.2 {
			t.Errorf("%v, want %v: %+v", got, is, s.Model())
		}
	})
}
