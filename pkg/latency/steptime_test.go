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
func truth(m latency.Model, tokens, context int, noise float64) time.Duration {
	return time.Duration(float64(m.Predict(tokens, context)) * (1 + noise))
}

// work is a step as a scheduler would make it: some decodes, sometimes a chunk.
func work(r *rand.Rand) (tokens, context int) {
	decodes := r.IntN(64)
	tokens, context = decodes, decodes*(100+r.IntN(2000))
	if r.IntN(3) == 0 || tokens == 0 {
		chunk := 1 + r.IntN(2048)
		tokens, context = tokens+chunk, context+chunk+r.IntN(4096)
	}
	return tokens, context
}

func anyModel(t *rapid.T) latency.Model {
	return latency.Model{
		BaseMs:            rapid.Float64Range(0, 20).Draw(t, "base"),
		PerTokenMs:        rapid.Float64Range(0.001, 1).Draw(t, "per token"),
		PerContextTokenMs: rapid.Float64Range(0, 1e-2).Draw(t, "per context token"),
	}
}

func TestRecoversCoefficients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := anyModel(t)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var s latency.StepTime
		for range 500 {
			tokens, context := work(r)
			s.Observe(tokens, context, truth(want, tokens, context, 0))
		}
		got := s.Model()
		if got.Samples != 500 ||
			math.Abs(got.BaseMs-want.BaseMs) > 0.01+0.01*want.BaseMs ||
			math.Abs(got.PerTokenMs-want.PerTokenMs) > 1e-4+0.01*want.PerTokenMs ||
			math.Abs(got.PerContextTokenMs-want.PerContextTokenMs) > 1e-5+0.01*want.PerContextTokenMs {
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
			tokens, context := work(r)
			s.Observe(tokens, context, truth(want, tokens, context, 0.1*(2*r.Float64()-1)))
		}
		checkModel(t, s.Model())
		var off, all float64
		for range 200 {
			tokens, context := work(r)
			is := want.Predict(tokens, context).Seconds()
			off += math.Abs(s.Model().Predict(tokens, context).Seconds() - is)
			all += is
		}
		if off > 0.05*all {
			t.Fatalf("off by %.1f%% on average: %+v, want %+v", 100*off/all, s.Model(), want)
		}
	})
}

func checkModel(t *rapid.T, m latency.Model) {
	for _, c := range []float64{m.BaseMs, m.PerTokenMs, m.PerContextTokenMs} {
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
			s.Observe(
				rapid.IntRange(-1, 1<<20).Draw(t, "tokens"),
				rapid.IntRange(-1, 1<<40).Draw(t, "context"),
				time.Duration(rapid.Int64Range(-1, int64(time.Hour)).Draw(t, "duration")),
			)
			checkModel(t, s.Model())
			if p := s.Model().Predict(100, 1000); p < 0 {
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
				s.Observe(o.tokens, o.context, o.d)
			}
			if got := s.Model().Predict(test.ask.tokens, test.ask.context); (got - test.ask.d).Abs() > test.within {
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
		tokens, context := work(r)
		s.Observe(tokens, context, truth(m, tokens, context, 0))
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
		tokens, context := work(r)
		s.Observe(tokens, context, truth(want, tokens, context, noise))
	}
	got, is := s.Model().Predict(32, 20_000), want.Predict(32, 20_000)
	if off := float64((got - is).Abs()) / float64(is); off > 0.2 {
		t.Errorf("%v, want %v: %+v", got, is, s.Model())
	}
}

func TestObserveDoesNotAllocate(t *testing.T) {
	var s latency.StepTime
	if n := testing.AllocsPerRun(100, func() { s.Observe(3, 100, time.Millisecond); s.Model() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// What the fit is does not depend on when somebody asked for it: logs of workers that were asked for
// reports meanwhile are replayed without them.
func TestModelDoesNotDependOnWhoAsks(t *testing.T) {
	var asked, silent latency.StepTime
	for i := range 500 {
		d := time.Duration(1000+37*(i%11)) * time.Microsecond
		asked.Observe(1+i%7, i, d)
		silent.Observe(1+i%7, i, d)
		if i%5 == 0 {
			asked.Model()
		}
	}
	if a, s := asked.Model(), silent.Model(); a != s {
		t.Errorf("%+v if asked meanwhile, else %+v", a, s)
	}
}

// Steps of whole prompts, each as much context as tokens, do not say what a token of context takes:
// the tokens take their time, and a step that decodes beside long contexts is not predicted by them.
func TestContextThatStepsDoNotTell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, each := rapid.Float64Range(0, 50).Draw(t, "base"), rapid.Float64Range(0.01, 1).Draw(t, "each")
		var s latency.StepTime
		tokens := 0
		for range rapid.IntRange(8, 200).Draw(t, "steps") {
			tokens = 16 * rapid.IntRange(8, 128).Draw(t, "tokens")
			s.Observe(tokens, tokens, time.Duration((base+each*float64(tokens))*float64(time.Millisecond)))
		}
		m := s.Model()
		took := base + each*float64(tokens)
		if got := m.Predict(tokens, tokens).Seconds() * 1e3; math.Abs(got/took-1) > 0.01 {
			t.Errorf("a prompt of %d tokens takes %v ms, predicted %v", tokens, took, got)
		}
		if m.PerContextTokenMs > each/100 {
			t.Errorf("%v ms a token of context, %v a token", m.PerContextTokenMs, each)
		}
	})
}
