package routing

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// A router knows at what rate requests come, how they are spread, and what they ask for.
func TestDemandOfArrivals(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct {
		name string
		gap  func() float64 // of a mean of 1
		scv  float64
	}{
		{"even", func() float64 { return 1 }, 0},
		{"random", random.ExpFloat64, 1},
		{"in bursts", func() float64 { // of a mean of 1 and a variance of 3
			if random.IntN(2) == 0 {
				return 0
			}
			return 2 * random.ExpFloat64()
		}, 3},
	} {
		const rate = 50.0
		rt := New(Config{Models: []Model{{Name: "m"}}}, random)
		now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		for i := range 20000 {
			now = now.Add(time.Duration(test.gap() / rate * float64(time.Second)))
			r := Request{Model: "m", Tokens: 100 + 200*(i%2), MaxNew: 64}
			if i%3 == 0 {
				r.TTFT, r.TPOT = time.Second, 50*time.Millisecond
			}
			rt.traffic["another"].recordArrival(now, &Request{Model: "another", Tokens: 1 << 20})
			rt.traffic["m"].recordArrival(now, &r)
		}
		d := rt.Demand(now, "m")
		if math.Abs(d.RequestsPerSecond-rate) > 0.2*rate || math.Abs(d.GapSCV-test.scv) > 0.3*test.scv+0.1 {
			t.Errorf("%s: %v requests a second with a variation of %v", test.name, d.RequestsPerSecond, d.GapSCV)
		}
		if math.Abs(d.ContextTokens-200) > 10 || math.Abs(d.PromptSCV-0.25) > 0.05 || d.TTFT != time.Second || math.Abs(float64(d.TPOT-50*time.Millisecond)) > 1e3 {
			t.Errorf("%s: %+v", test.name, d)
		}
		if d := rt.Demand(now.Add(rateGone*rateSeconds*time.Second+time.Second), "m"); d.RequestsPerSecond != 0 {
			t.Errorf("%s: %v requests a second long after the last", test.name, d.RequestsPerSecond)
		}
		if d := rt.Demand(now, "nobody asked for it"); d.RequestsPerSecond != 0 || d.PromptTokens != 0 {
			t.Errorf("%s: %+v of a model that nobody asked for", test.name, d)
		}
	}
}

// Of what requests want, a router knows the mean, and the tightest of the last ones that a tenth wants.
func TestDemandOfClasses(t *testing.T) {
	rt := New(Config{Models: []Model{{Name: "m"}}}, rand.New(rand.NewPCG(1, 2)))
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	come := func(n, tight int) { // of ten, so many are tight
		for i := range n {
			now = now.Add(10 * time.Millisecond)
			r := Request{Model: "m", Tokens: 100, TTFT: 10 * time.Second}
			if i%10 < tight {
				r.TTFT, r.TPOT = 500*time.Millisecond, 30*time.Millisecond
			}
			rt.traffic["m"].recordArrival(now, &r)
		}
	}
	for _, step := range []struct {
		requests, tight int
		ttft, tpot      time.Duration
	}{
		{10, 0, 10 * time.Second, 0},
		{1000, 2, 500 * time.Millisecond, 30 * time.Millisecond},
		{1000, 0, 10 * time.Second, 0}, // the others are long ago
	} {
		come(step.requests, step.tight)
		d := rt.Demand(now, "m")
		if d.TightTTFT != step.ttft || d.TightTPOT != step.tpot {
			t.Errorf("after %d requests, %d of 10 tight: %v and %v, want %v and %v", step.requests, step.tight, d.TightTTFT, d.TightTPOT, step.ttft, step.tpot)
		}
		if step.tight > 0 && (d.TTFT <= time.Second || d.TTFT >= 10*time.Second) {
			t.Errorf("the mean is %v", d.TTFT)
		}
	}
}

// Workers that get no requests are no capacity.
func TestCapacityIsOfWorkersThatGetRequests(t *testing.T) {
	m := newMesh(4, 1)
	m.serveVersions(&controlv1.Policy{Versions: []*controlv1.ModelVersion{{ArithmeticClass: "served"}}})
	for i, w := range m.prefill {
		w.version.Class, w.takesAggregated, w.step.Samples = "served", true, 1
		switch i {
		case 0:
			w.version.Class = "another"
		case 1:
			w.connected = false
		case 2:
			m.leaves(m.now, w)
		}
	}
	if got := m.Mesh("").Prefill.Workers; got != 1 {
		t.Errorf("%d workers are capacity, want 1", got)
	}
	if got := m.pool(controlv1.Role_ROLE_PREFILL, "", &demand{prompt: 100, most: 10, share: 1}).workers; got != 1 {
		t.Errorf("%d workers are compared for the use of pools, want 1", got)
	}
}

// The first requests give the rate at once, and not a fraction of it.
func TestDemandOfTheFirstArrivals(t *testing.T) {
	rt := New(Config{Models: []Model{{Name: "m"}}}, rand.New(rand.NewPCG(1, 2)))
	began := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 50 {
		rt.traffic["m"].recordArrival(began.Add(time.Duration(i)*100*time.Millisecond), &Request{Model: "m", Tokens: 10})
	}
	if d := rt.Demand(began.Add(5*time.Second), "m"); math.Abs(d.RequestsPerSecond-10) > 2 {
		t.Errorf("%v requests a second after 5 s of 10", d.RequestsPerSecond)
	}
}
