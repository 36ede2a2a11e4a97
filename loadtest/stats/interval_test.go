package stats_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// binomial is P(B ≤ k) for B ~ Binomial(n, p), summed term by term.
func binomial(k, n int64, p float64) float64 {
	const bits = 400
	sum, odds := new(big.Float).SetPrec(bits), new(big.Float).SetPrec(bits).Quo(big.NewFloat(p), big.NewFloat(1-p))
	term := big.NewFloat(1).SetPrec(bits)
	for range n {
		term.Mul(term, big.NewFloat(1-p))
	}
	for i := int64(0); i <= k; i++ {
		sum.Add(sum, term)
		term.Mul(term, big.NewFloat(float64(n-i)))
		term.Quo(term, big.NewFloat(float64(i+1)))
		term.Mul(term, odds)
	}
	v, _ := sum.Float64()
	return v
}

// Each rank is the innermost one with less than 2.5% beyond it, by sums of the binomial
// distribution's terms.
func TestQuantileRanks(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for _, n := range []int64{6, 20, 368, 400, 1000, 3689, 10_000} {
		for _, q := range []float64{0.5, 0.9, 0.95, 0.99, 0.999} {
			low, high, ok := stats.QuantileRanks(n, q)
			if needs := stats.QuantileNeeds(q); ok != (n >= needs) {
				t.Errorf("%d samples, %v: interval %v, but needs %d", n, q, ok, needs)
			}
			if !ok {
				continue
			}
			if below, at := binomial(low-1, n, q), binomial(low, n, q); below > 0.025 || at <= 0.025 {
				t.Errorf("%d samples, %v: low rank %d has %.4f below, the next %.4f", n, q, low, below, at)
			}
			if at, below := binomial(high-1, n, q), binomial(high-2, n, q); at < 0.975 || below >= 0.975 {
				t.Errorf("%d samples, %v: high rank %d has %.4f, the one before %.4f", n, q, high, at, below)
			}
		}
	}
	if _, _, ok := stats.QuantileRanks(100_000_000, 0.999); !ok {
		t.Error("no interval of 100 million samples")
	}
}

func TestQuantileNeeds(t *testing.T) {
	for q, want := range map[float64]int64{0.5: 6, 0.9: 36, 0.95: 72, 0.99: 368, 0.999: 3688, 0.01: 368, 0: 0, 1: 0} {
		if got := stats.QuantileNeeds(q); got != want {
			t.Errorf("%v needs %d, want %d", q, got, want)
		}
	}
}

// process makes a series with a known distribution and a known dependence between
// samples. truth is its q-quantile in seconds.
type process struct {
	name  string
	next  func(r *rand.Rand) func() float64
	truth func(q float64) float64
	n     int
	q     float64
	// At least this share of intervals must cover the truth, and at least this share of
	// runs must be given an interval.
	covers, given float64
}

// waiting is the M/M/1 queue's time in system at a load of rho, service time 1: the
// Lindley recursion. It is exponential with mean 1/(1-rho).
func waiting(rho float64) (next func(r *rand.Rand) func() float64, truth func(q float64) float64) {
	return func(r *rand.Rand) func() float64 {
			// From the stationary distribution, so that there is no warm-up.
			sojourn := r.ExpFloat64() / (1 - rho)
			return func() float64 {
				sojourn = max(0, sojourn-r.ExpFloat64()/rho) + r.ExpFloat64()
				return sojourn
			}
		}, func(q float64) float64 {
			return -math.Log(1-q) / (1 - rho)
		}
}

// gauss is the lognormal of an AR(1) process with the coefficient phi.
func gauss(phi float64) (next func(r *rand.Rand) func() float64, truth func(q float64) float64) {
	return func(r *rand.Rand) func() float64 {
			x := r.NormFloat64()
			return func() float64 {
				x = phi*x + math.Sqrt(1-phi*phi)*r.NormFloat64()
				return math.Exp(x)
			}
		}, func(q float64) float64 {
			return math.Exp(math.Sqrt2 * math.Erfinv(2*q-1))
		}
}

// Intervals cover the true quantile as often as they claim, also for correlated samples.
// A sample worth too few independent ones gets none.
func TestIntervalCoverage(t *testing.T) {
	iid, iidTruth := gauss(0)
	ar, arTruth := gauss(0.9)
	calm, calmTruth := waiting(0.5)
	busy, busyTruth := waiting(0.8)
	for _, p := range []process{
		{"independent p50", iid, iidTruth, 400, 0.5, 0.93, 1},
		{"independent p99", iid, iidTruth, 2000, 0.99, 0.92, 0.9},
		{"AR(1) 0.9 p50", ar, arTruth, 2000, 0.5, 0.92, 1},
		{"AR(1) 0.9 p90", ar, arTruth, 4000, 0.9, 0.92, 1},
		{"AR(1) 0.9 p99", ar, arTruth, 10_000, 0.99, 0.92, 0.95},
		{"M/M/1 0.5 p50", calm, calmTruth, 2000, 0.5, 0.92, 1},
		{"M/M/1 0.5 p99", calm, calmTruth, 10_000, 0.99, 0.92, 0.9},
		{"M/M/1 0.8 p50", busy, busyTruth, 10_000, 0.5, 0.92, 1},
		{"M/M/1 0.8 p99", busy, busyTruth, 60_000, 0.99, 0.92, 0.7},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			const runs = 200
			held, given, size := 0, 0, 0.0
			for seed := range uint64(runs) {
				next := p.next(rand.New(rand.NewPCG(seed, 7)))
				h := stats.NewHistogram()
				series := make([]time.Duration, p.n)
				for i := range series {
					series[i] = time.Duration(next() * float64(10*time.Millisecond))
					h.Record(series[i])
				}
				quantile := h.Quantile(p.q)
				hits, totals := make([]float64, p.n), make([]float64, p.n)
				for i, d := range series {
					totals[i] = 1
					if d <= quantile {
						hits[i] = 1
					}
				}
				effective := stats.EffectiveSize(hits, totals)
				size += effective / runs
				low, high, ok := h.Interval(p.q, effective)
				if !ok {
					continue
				}
				given++
				truth := time.Duration(p.truth(p.q) * float64(10*time.Millisecond))
				// The ends have the histogram's precision.
				if low-low/1000 <= truth && truth <= high+high/1000 {
					held++
				}
			}
			share := float64(held) / float64(given)
			t.Logf("%d samples worth %.0f: %d of %d intervals hold it (%.1f%%), %d of %d given", p.n, size, held, given, 100*share, given, runs)
			if share < p.covers {
				t.Errorf("%.1f%% of the intervals hold the quantile, want %.0f%%", 100*share, 100*p.covers)
			}
			if float64(given) < p.given*runs {
				t.Errorf("an interval in %d of %d runs", given, runs)
			}
		})
	}
}

// The AR(1) process itself has a known autocorrelation time: (1+phi)/(1-phi).
func TestAutocorrelationTime(t *testing.T) {
	for _, phi := range []float64{0, 0.5, 0.9, 0.98} {
		want := (1 + phi) / (1 - phi)
		mean := 0.0
		const runs = 40
		for seed := range uint64(runs) {
			r := rand.New(rand.NewPCG(seed, 3))
			series, x := make([]float64, 20_000), r.NormFloat64()
			for i := range series {
				x = phi*x + math.Sqrt(1-phi*phi)*r.NormFloat64()
				series[i] = x
			}
			mean += stats.AutocorrelationTime(series) / runs
		}
		if mean < 0.95*want || mean > 1.25*want {
			t.Errorf("AR(1) %v: %.2f, want %.2f", phi, mean, want)
		}
	}
	for name, series := range map[string][]float64{
		"none": nil, "one": {3}, "a constant": {2, 2, 2, 2, 2, 2, 2, 2}, "alternating": {1, -1, 1, -1, 1, -1, 1, -1},
	} {
		if got := stats.AutocorrelationTime(series); got != 1 {
			t.Errorf("%s: %v, want 1", name, got)
		}
	}
}

// A stall that delays many requests at once counts as one event.
func TestEffectiveSizeOfOneStall(t *testing.T) {
	hits, totals := make([]float64, 5000), make([]float64, 5000)
	for i := range hits {
		totals[i] = 1
		if i < 2000 || i >= 2050 {
			hits[i] = 1
		}
	}
	if got := stats.EffectiveSize(hits, totals); got > 250 {
		t.Errorf("worth %.0f independent requests", got)
	}
	for i := range hits { // the same number, evenly spread
		hits[i] = 1
		if i%100 == 7 {
			hits[i] = 0
		}
	}
	if got := stats.EffectiveSize(hits, totals); got < 4000 {
		t.Errorf("spread out it is worth only %.0f", got)
	}
	if stats.EffectiveSize(nil, nil) != 0 {
		t.Error("nothing is worth something")
	}
}

// The interval of a median holds it as often as it says: each value is above the median with
// probability a half.
func TestQuantile(t *testing.T) {
	for _, c := range []struct {
		values []int
		q      float64
		want   int
	}{{nil, 0.5, 0}, {[]int{7}, 0, 7}, {[]int{7}, 1, 7}, {[]int{1, 2, 3, 4}, 0.5, 2}, {[]int{1, 2, 3, 4}, 0.51, 3}, {[]int{1, 2, 3, 4}, 0.49, 2}, {[]int{1, 2, 3, 4}, 0.99, 4}, {[]int{1, 2, 3, 4}, 1, 4}} {
		if got := stats.Quantile(c.values, c.q); got != c.want {
			t.Errorf("quantile %v of %v is %d, want %d", c.q, c.values, got, c.want)
		}
	}
}

func TestMedianInterval(t *testing.T) {
	values := []float64{5, 1, 4, 2, 3}
	if low, high, confidence := stats.MedianInterval(values); low != 1 || high != 5 || confidence != 0.9375 {
		t.Errorf("of five: %v to %v, %v", low, high, confidence)
	}
	if low, high, confidence := stats.MedianInterval(values[:1]); low != 5 || high != 5 || confidence != 0 {
		t.Errorf("of one: %v to %v, %v", low, high, confidence)
	}
	for range 15 {
		values = append(values, float64(len(values)+1))
	}
	if low, high, confidence := stats.MedianInterval(values); low != 6 || high != 15 || confidence != stats.Confidence {
		t.Errorf("of twenty: %v to %v, %v", low, high, confidence)
	}
}
