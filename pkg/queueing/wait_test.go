package queueing_test

import (
	"container/heap"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/queueing"
)

func near(t interface {
	Helper()
	Errorf(string, ...any)
}, what string, got, want, relative float64) {
	t.Helper()
	if !(math.Abs(got-want) <= relative*math.Abs(want)+1e-300) {
		t.Errorf("%s is %.10g, want %.10g within %g", what, got, want, relative)
	}
}

// Published figures, to the digits that are printed.
func TestPublished(t *testing.T) {
	for _, c := range []struct {
		source     string
		load       float64
		servers    int
		lost       float64
		printedTo  float64
		ofErlangsC bool
	}{
		{"Erlang B table, 10 lines at 1%", 4.461, 10, 0.01, 0.001, false},
		{"Erlang B table, 100 lines at 1%", 84.06, 100, 0.01, 0.001, false},
		{"Erlang B table, 10 lines at 10%", 7.511, 10, 0.1, 0.001, false},
		{"Gross and Harris, example of M/M/3, eye clinic: 4/9", 2, 3, 4. / 9, 1e-12, true},
	} {
		got := queueing.ErlangB(c.load, c.servers)
		if c.ofErlangsC {
			got = erlangC(t, c.load, c.servers)
		}
		near(t, c.source, got, c.lost, c.printedTo)
	}
	// The clinic: 6 patients an hour, 20 minutes each, 3 doctors: the wait is 4/27 hours.
	clinic, err := queueing.MMc(6, 1./3, 3)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "wait", clinic.WaitSeconds, 4./27, 1e-12)
	near(t, "utilisation", clinic.Utilisation, 2./3, 1e-12)
	// M/M/1: P(wait > t) is ρ·exp(-(μ-λ)t).
	one, err := queueing.MM1(8, 0.1)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "wait of M/M/1", one.WaitSeconds, 0.4, 1e-12)
	near(t, "p90 of M/M/1", one.Quantile(0.9), math.Log(8)/2, 1e-12)
	if got := one.Quantile(0.2); got != 0 {
		t.Errorf("a fifth does not wait: its quantile is %v", got)
	}
	// M/D/1 waits half as long as M/M/1.
	constant, err := queueing.MG1(8, queueing.Service{Seconds: 0.1})
	if err != nil {
		t.Fatal(err)
	}
	near(t, "wait of M/D/1", constant.WaitSeconds, 0.2, 1e-12)
}

// The definitions, with their powers and factorials, in exact fractions.
func TestErlangExactly(t *testing.T) {
	for _, c := range []struct {
		load    int64
		servers int
	}{{1, 1}, {3, 4}, {50, 60}, {299, 300}, {100, 300}} {
		sum, term := new(big.Rat), big.NewRat(1, 1)
		for n := range c.servers {
			sum.Add(sum, term)
			term = new(big.Rat).Mul(term, big.NewRat(c.load, int64(n+1)))
		}
		lost := new(big.Rat).Quo(term, new(big.Rat).Add(sum, term))
		wanted, _ := lost.Float64()
		near(t, "Erlang B", queueing.ErlangB(float64(c.load), c.servers), wanted, 1e-11)
		if c.load == int64(c.servers) {
			continue
		}
		last := new(big.Rat).Mul(term, big.NewRat(int64(c.servers), int64(c.servers)-c.load))
		wanted, _ = new(big.Rat).Quo(last, new(big.Rat).Add(sum, last)).Float64()
		near(t, "Erlang C", erlangC(t, float64(c.load), c.servers), wanted, 1e-11)
	}
}

// erlangC is the share of requests that wait in M/M/c.
func erlangC(t *testing.T, load float64, servers int) float64 {
	t.Helper()
	w, err := queueing.MMc(load, 1, servers)
	if err != nil {
		t.Fatal(err)
	}
	return w.Waits
}

// A hundred thousand servers need no factorial of that.
func TestManyServers(t *testing.T) {
	const servers = 100_000
	// Halfin and Whitt, "Heavy-Traffic Limits for Queues with Many Exponential Servers"
	// (1981): with a load of n - β√n, the probability of a wait tends to
	// 1/(1+√(2π)·β·Φ(β)·exp(β²/2)); for β = 1 that is 0.2234.
	got := erlangC(t, servers-math.Sqrt(servers), servers)
	phi := 0.5 * (1 + math.Erf(1/math.Sqrt2))
	near(t, "the probability of a wait", got, 1/(1+math.Sqrt(2*math.Pi)*phi*math.Exp(0.5)), 0.01)
	if none := erlangC(t, 1, servers); none != 0 {
		t.Errorf("with a load of 1, %v wait", none)
	}
}

// Waits beside those of queues that are played out, customer by customer.
func TestSimulatedQueues(t *testing.T) {
	exponential := func(r *rand.Rand) float64 { return r.ExpFloat64() }
	constant := func(*rand.Rand) float64 { return 1 }
	mixed := func(r *rand.Rand) float64 { // SCV 3
		if r.Float64() < 0.25 {
			return 2.5 * r.ExpFloat64()
		}
		return 0.5 * r.ExpFloat64()
	}
	for _, c := range []struct {
		name        string
		draw        func(*rand.Rand) float64
		scv         float64
		servers     int
		utilisation float64
		within      float64 // of the mean; of the p99 twice that
	}{
		{"M/M/1", exponential, 1, 1, 0.8, 0.05},
		{"M/D/1", constant, 0, 1, 0.8, 0.05},
		{"M/G/1", mixed, 2.5, 1, 0.7, 0.05},
		{"M/M/4", exponential, 1, 4, 0.85, 0.05},
		{"M/D/4", constant, 0, 4, 0.85, 0.1},
		{"M/G/4", mixed, 2.5, 4, 0.85, 0.12},
	} {
		t.Run(c.name, func(t *testing.T) {
			rate := c.utilisation * float64(c.servers)
			mean, p99 := played(rate, c.servers, c.draw)
			w, err := queueing.GGc(rate, queueing.Service{Seconds: 1, SCV: c.scv}, 1, c.servers)
			if err != nil {
				t.Fatal(err)
			}
			near(t, "the mean wait", w.WaitSeconds, mean, c.within)
			near(t, "the wait's p99", w.Quantile(0.99), p99, 2*c.within)
		})
	}
}

// played is the mean and p99 of the waits in a queue that runs.
func played(rate float64, servers int, draw func(*rand.Rand) float64) (mean, p99 float64) {
	const customers = 2_000_000
	r := rand.New(rand.NewPCG(1, 2))
	free := make(times, servers)
	waits := make([]float64, customers)
	now := 0.0
	for i := range waits {
		now += r.ExpFloat64() / rate
		begins := max(now, free[0])
		waits[i] = begins - now
		mean += waits[i] / customers
		free[0] = begins + draw(r)
		heap.Fix(&free, 0)
	}
	slices.Sort(waits)
	return mean, waits[customers*99/100]
}

// times is when servers are free, the earliest first.
type times []float64

func (h times) Len() int           { return len(h) }
func (h times) Less(i, j int) bool { return h[i] < h[j] }
func (h times) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h times) Push(any)           {}
func (h times) Pop() any           { return nil }

func TestWaitsGrow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		servers := rapid.IntRange(1, 500).Draw(t, "servers")
		utilisation := rapid.Float64Range(0, 0.98).Draw(t, "utilisation")
		service := queueing.Service{Seconds: rapid.Float64Range(1e-6, 1e3).Draw(t, "service"), SCV: rapid.Float64Range(0, 20).Draw(t, "scv")}
		rate := utilisation * float64(servers) / service.Seconds
		get := func(rate float64, service queueing.Service, servers int) queueing.Queue {
			w, err := queueing.GGc(rate, service, 1, servers)
			if err != nil {
				t.Fatal(err)
			}
			if !(w.Waits >= 0 && w.Waits <= 1 && w.WaitSeconds >= 0 && w.Utilisation < 1) {
				t.Fatalf("no queue: %+v", w)
			}
			return w
		}
		w := get(rate, service, servers)
		if more := get(rate*1.01, service, servers); more.WaitSeconds < w.WaitSeconds {
			t.Errorf("a higher rate shortens the wait: %+v, %+v", w, more)
		}
		if more := get(rate, service, servers+1); more.WaitSeconds > w.WaitSeconds*(1+1e-9) {
			t.Errorf("one more server lengthens the wait: %+v, %+v", w, more)
		}
		// One fast server waits less often than many slow ones, but longer in all.
		one := get(rate, queueing.Service{Seconds: service.Seconds / float64(servers), SCV: service.SCV}, 1)
		if one.Waits < w.Waits*(1-1e-9) {
			t.Errorf("one fast server: %v wait, of many slow ones %v", one.Waits, w.Waits)
		}
		q := rapid.Float64Range(0, 0.999).Draw(t, "quantile")
		if w.Quantile(q) > w.Quantile(q+0.0005) {
			t.Errorf("quantiles fall: %v, %v", w.Quantile(q), w.Quantile(q+0.0005))
		}
		if wait := w.Quantile(q); wait > 0 {
			near(t, "the share that waits longer than a quantile", w.Exceeds(wait), 1-q, 1e-6)
		}
		if w.Exceeds(0) > w.Waits || w.Exceeds(-1) != 1 {
			t.Errorf("of %+v, %v wait, and %v longer than -1 s", w, w.Exceeds(0), w.Exceeds(-1))
		}
	})
}

func TestRefused(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, err := range map[string]error{
		"full":     second(queueing.MMc(10, 0.1, 1)),
		"too much": second(queueing.GGc(100, queueing.Service{Seconds: 1, SCV: 1}, 1, 99)),
		"Erlang C": second(queueing.MMc(3, 1, 3)),
	} {
		if !errors.Is(err, queueing.ErrUnstable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, err := range map[string]error{
		"negative rate":    second(queueing.MM1(-1, 1)),
		"no number":        second(queueing.MM1(nan, 1)),
		"endless service":  second(queueing.MM1(0, inf)),
		"no server":        second(queueing.MMc(1, 0.1, 0)),
		"too many servers": second(queueing.MMc(1, 0.1, queueing.MaxServers+1)),
		"negative SCV":     second(queueing.MG1(1, queueing.Service{Seconds: 0.1, SCV: -1})),
		"SCV no number":    second(queueing.GGc(1, queueing.Service{Seconds: 0.1}, nan, 2)),
		"load no number":   second(queueing.MMc(nan, 1, 2)),
	} {
		if err == nil || errors.Is(err, queueing.ErrUnstable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if w, err := queueing.MMc(0, 1, 3); err != nil || w != (queueing.Queue{}) {
		t.Errorf("without requests: %+v, %v", w, err)
	}
}

func second[T any](_ T, err error) error { return err }
