package routing

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// TestDemandOfMixedRequests: requests that take any time for a token do not make it shorter for the
// others, in whatever order they come.
func TestDemandOfMixedRequests(t *testing.T) {
	for _, first := range []time.Duration{0, 25 * time.Millisecond} {
		var of traffic
		for _, tpot := range []time.Duration{first, 25 * time.Millisecond, 0} {
			of.recordDispatch(time.Unix(1, 0), &Request{Model: "m", MaxNew: 64, TPOT: tpot}, 256, false, false)
		}
		if d := of.demand; d.tpotMs != 25 || d.prompt != 256 || d.answer() != 64 {
			t.Errorf("first %v: %+v", first, *d)
		}
	}
}

// TestWorkersWithoutFixedTime: the rates of steps that take no time of their own are numbers.
func TestWorkersWithoutFixedTime(t *testing.T) {
	for _, each := range []float64{0, 25} {
		d := demand{prompt: 256, most: 64, share: 1, tpotMs: each}
		p := pool{workers: 2, promptShare: 1, places: 8, promptMs: 20, answerMs: 5}
		if aggregated, disaggregated, _ := d.poolRates(p, p); !(aggregated > 0) || !(disaggregated > 0) || math.IsInf(aggregated, 0) || math.IsInf(disaggregated, 0) {
			t.Errorf("each %v: %v and %v", each, aggregated, disaggregated)
		}
	}
}

// TestUsesOfWorkers: the rates of both uses are the most that a search over all lengths of steps
// finds.
func TestUsesOfWorkers(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	draw := func(least, most float64) float64 { return least * math.Pow(most/least, random.Float64()) }
	for i := range 200 {
		workers := func() pool {
			n := 1 + random.IntN(8)
			return pool{n, draw(1, 10), draw(0.5, 1), float64(n) * draw(4, 256), draw(1, 500), draw(1, 100), draw(0.1, 500), 0}
		}
		p, q := workers(), workers()
		d := demand{prompt: 1, most: draw(2, 1000), share: draw(0.1, 1), tpotMs: draw(12, 200)}
		aggregated, disaggregated, computed := d.poolRates(p, q)

		var bestAggregated, bestDisaggregated float64
		answer := max(d.most*d.share-1, 1) // the first token comes of the prompt
		for step := max(p.baseMs, q.baseMs); step <= d.tpotMs*latency.PaceShare; step *= 1.0005 {
			rate := (1-p.baseMs/step)*float64(p.workers)/(p.promptMs+p.answerMs) + (1-q.baseMs/step)*float64(q.workers)/(q.promptMs+q.answerMs)
			bestAggregated = max(bestAggregated, min(rate, (p.places+q.places)/(answer*step)))
		}
		for step := q.baseMs; step <= d.tpotMs*latency.PaceShare; step *= 1.0005 {
			// Requests whose prompts come from prefill workers, and then those that come whole.
			spare := (1 - q.baseMs/step) * float64(q.workers)
			capacity := min(float64(p.workers)/p.sendMs, float64(q.workers)/q.sendMs)
			for tenth := 1; tenth < 10; tenth++ {
				sent := min(min(promptsMost, 1-promptsLess/math.Sqrt(float64(p.workers)))*float64(p.workers)*p.promptShare/p.promptMs, float64(tenth)/10*capacity)
				busy := sent / capacity
				late := max(max(p.sendMs, q.sendMs)*(1+busy/2/(1-busy))-p.promptMs, 0)
				if step > d.tpotMs*latency.PaceShare-late/answer {
					continue
				}
				sent = min(sent, spare/q.answerMs)
				whole := (spare - sent*q.answerMs) / (q.promptMs + q.answerMs)
				bestDisaggregated = max(bestDisaggregated, min(sent+whole, q.places/(answer*step)))
			}
		}
		near := func(got, want float64) bool { return got == want || math.Abs(got/want-1) < 0.02 }
		if !near(aggregated, bestAggregated) || !near(disaggregated, bestDisaggregated) || disaggregated > 0 && computed <= 0 {
			t.Errorf("case %d: %v and %v, want %v and %v: %+v, %+v, %+v", i, aggregated, disaggregated, bestAggregated, bestDisaggregated, d, p, q)
		}
	}
}

// TestPacedSteps: beside sequences that want their tokens soon, prompts have what that leaves of a
// step, and one block in some of them in any case.
func TestPacedSteps(t *testing.T) {
	s := steps{model: latency.Model{BaseMs: 20, PerTokenMs: 0.1}, chunk: 512, stepTokens: 2048, otherMs: 21}
	for each, want := range map[float64]int{100: 512, 25: 55, 20: 4} {
		if got := s.paced(each, 16); got.chunk != want || got.otherMs != s.otherMs {
			t.Errorf("a token each %v ms: %+v, want %d tokens of a prompt", each, got, want)
		}
	}
	free := steps{chunk: 512, stepTokens: 512}
	if got := free.paced(25, 16); got != free {
		t.Errorf("tokens that take no time: %+v", got)
	}
}

// TestNoMoreDecodeThanHavePlaces: sequences that wait for a place lengthen no step.
func TestNoMoreDecodeThanHavePlaces(t *testing.T) {
	m := latency.Model{BaseMs: 20, PerTokenMs: 0.1, PerContextTokenMs: 0.001}
	w := &worker{facts: facts{maxSequences: 100}}
	if got, want := w.steps(m, 300, 150, 150*300), w.steps(m, 300, 100, 100*300); got != want {
		t.Errorf("%+v with 150 of 100 places, %+v with 100", got, want)
	}
	if got := w.steps(m, 300, 50, 50*300).otherMs; got != 20+5+15 {
		t.Errorf("50 sequences: %v ms", got)
	}
}

// A worker that keeps the time of a token makes up for a second token that comes late, as long as
// prompts have any of its steps.
func TestLateSecondTokens(t *testing.T) {
	for _, c := range []struct {
		name       string
		least      float64
		waits      float64
		tpot, most float64
	}{
		{"no pace is kept", math.Inf(1), 3, 1.1, 1.15},
		{"it is made up for", 0.3, 3, 0.95, 0.95},
		{"too late", 0.3, 15, 1.3, 1.3},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := tokenTimes{tpotMs: 0.9, mostMs: 0.95, leastMs: c.least}.delayed(c.waits, 16)
			if math.Abs(got.tpotMs-c.tpot) > 1e-9 || math.Abs(got.mostMs-c.most) > 1e-9 {
				t.Errorf("a token takes %v ms, at most %v; want %v and %v", got.tpotMs, got.mostMs, c.tpot, c.most)
			}
		})
	}
}

// Step times tell what sequences take where enough have decoded, and lately.
func TestDecodedLately(t *testing.T) {
	w, now := &worker{}, time.Unix(1, 0)
	some := func(n int) {
		for range n {
			now = now.Add(time.Second)
			w.decodedOne(now, time.Second)
		}
	}
	expect := func(when string, want bool) {
		t.Helper()
		if w.decodedLately(now) != want {
			t.Errorf("%s: %v", when, !want)
		}
	}
	expect("at first", false)
	some(decodedLeast - 1)
	expect("after too few", false)
	some(1)
	expect("after enough", true)
	now = now.Add(decodedLatelyFor)
	expect("some time after", false)
	w.load = &controlv1.LoadReport{DecodingSequences: 1}
	expect("while others decode", true)
	w.load = nil
	some(1)
	expect("after one more", true)
	now = now.Add(decodedForget)
	some(1)
	expect("after one more, long after", false)
}
