package workload_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/workload"
)

// dues are when requests are due, in seconds.
func dues(t fataler, params workload.Params, args ...string) []float64 {
	t.Helper()
	params.VocabularySize, params.ContextTokens = 100, 100
	source := sourceOf(t, params, append(args, "--prompt-tokens=1", "--output-tokens=1")...)
	var all []float64
	for { // not with take, which keeps the requests
		q, err := source.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, q.Due.Seconds())
	}
}

// For any process, times increase, none is after the end, and the number matches the rate
// within six standard deviations.
func TestArrivalsProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		process := rapid.SampledFrom([]string{"poisson", "gamma", "constant", "ramp"}).Draw(t, "process")
		rate := rapid.Float64Range(1, 5000).Draw(t, "rate")
		expected := rapid.Float64Range(1000, 3000).Draw(t, "expected")
		duration := time.Duration(expected / rate * float64(time.Second))
		args := []string{"--arrival=" + process, fmt.Sprintf("--seed=%d", rapid.Uint64Min(1).Draw(t, "seed"))}
		// The variance of a renewal process's count is the mean times the squared
		// coefficient of variation of its gaps.
		variation := 1.0
		switch process {
		case "gamma":
			shape := rapid.Float64Range(0.2, 20).Draw(t, "burstiness")
			args = append(args, fmt.Sprintf("--burstiness=%g", shape))
			variation = 1 / math.Sqrt(shape)
		case "constant":
			variation = 0
		case "ramp":
			from := rate * rapid.Float64Range(0, 3).Draw(t, "from")
			args = append(args, fmt.Sprintf("--ramp-from=%g", from))
			expected = duration.Seconds() * (from + rate) / 2
		}
		all := dues(t, workload.Params{Rate: rate, Duration: duration}, args...)
		if off := math.Abs(float64(len(all)) - expected); off > 6*variation*math.Sqrt(expected)+2 {
			t.Fatalf("%d requests, want %.0f", len(all), expected)
		}
		for i, due := range all {
			if due < 0 || due > duration.Seconds() || i > 0 && due < all[i-1] {
				t.Fatalf("request %d is due at %v of %v", i, due, duration)
			}
		}
	})
}

// Gaps have the mean and the coefficient of variation of their distribution, and
// exponential ones its quantiles.
func TestGaps(t *testing.T) {
	const count, rate = 60_000, 1000
	for _, c := range []struct {
		arrival    string
		burstiness float64
	}{{"poisson", 1}, {"gamma", 1}, {"gamma", 0.25}, {"gamma", 0.7}, {"gamma", 4}, {"gamma", 100}} {
		all := dues(t, workload.Params{Rate: rate, Duration: count / rate * time.Second}, "--seed=1", "--arrival="+c.arrival, fmt.Sprintf("--burstiness=%g", c.burstiness))
		var sum, squares, last float64
		long, repeated := 0, 0.0
		previous := 0.0
		for _, due := range all {
			gap := (due - last) * rate
			last = due
			sum += gap
			squares += gap * gap
			repeated += (gap - 1) * (previous - 1)
			previous = gap
			if gap > 1 {
				long++
			}
		}
		n := float64(len(all))
		mean := sum / n
		variance := squares/n - mean*mean
		want := 1 / math.Sqrt(c.burstiness)
		if got := math.Sqrt(variance) / mean; math.Abs(got/want-1) > 0.03 || math.Abs(mean-1) > 0.02*want {
			t.Errorf("%s %g: mean %f gaps, coefficient of variation %f, want 1 and %f", c.arrival, c.burstiness, mean, got, want)
		}
		if correlation := repeated / n / variance; math.Abs(correlation) > 0.02 {
			t.Errorf("%s %g: neighbouring gaps correlate with %f", c.arrival, c.burstiness, correlation)
		}
		if share := float64(long) / n; c.burstiness == 1 && math.Abs(share-math.Exp(-1)) > 0.01 {
			t.Errorf("%s: %f of gaps are longer than the mean, want 1/e", c.arrival, share)
		}
	}
}

// A ramp's rate is linear, checked per tenth of the run.
func TestRamp(t *testing.T) {
	for _, c := range [][2]float64{{0, 2000}, {2000, 1}, {500, 1500}, {700, 700}} {
		const seconds = 20.0
		all := dues(t, workload.Params{Rate: c[1], Duration: seconds * time.Second}, "--seed=3", "--arrival=ramp", fmt.Sprintf("--ramp-from=%g", c[0]))
		var tenths [10]float64
		for _, due := range all {
			tenths[min(int(due/seconds*10), 9)]++
		}
		for i, got := range tenths {
			want := (c[0] + (c[1]-c[0])*(float64(i)+0.5)/10) * seconds / 10
			if math.Abs(got-want) > 6*math.Sqrt(want)+1 {
				t.Errorf("ramp from %g to %g: tenth %d has %.0f requests, want %.0f", c[0], c[1], i, got, want)
			}
		}
	}
}

// While a surge lasts, requests come as many times as often.
func TestSurges(t *testing.T) {
	all := dues(t, workload.Params{Rate: 100, Duration: 40 * time.Second}, "--seed=3", "--surge=20s+5s=0", "--surge=10s+5s=3", "--surge=15s+5s=0.5")
	counts := make([]float64, 8) // of five seconds each
	for i, due := range all {
		if i > 0 && due < all[i-1] {
			t.Fatalf("request %d is due at %v, after one at %v", i, due, all[i-1])
		}
		counts[int(due/5)]++
	}
	for i, want := range []float64{500, 500, 1500, 250, 0, 500, 500, 500} {
		if math.Abs(counts[i]-want) > 5*math.Sqrt(want) {
			t.Errorf("from %d s: %.0f requests, want %.0f", 5*i, counts[i], want)
		}
	}
	constant := dues(t, workload.Params{Rate: 2, Duration: 3 * time.Second}, "--arrival=constant", "--surge=1s+1s=2")
	if want := []float64{0, .5, 1, 1.25, 1.5, 1.75, 2, 2.5, 3}; fmt.Sprint(constant) != fmt.Sprint(want) {
		t.Errorf("constant: %v, want %v", constant, want)
	}
}

func TestConstant(t *testing.T) {
	all := dues(t, workload.Params{Rate: 4, Duration: time.Second}, "--arrival=constant")
	if fmt.Sprint(all) != "[0 0.25 0.5 0.75 1]" {
		t.Errorf("due at %v", all)
	}
}

func TestClosedLoop(t *testing.T) {
	params := server
	params.Rate, params.Concurrency, params.Duration = 0, 4, time.Second
	all := take(t, sourceOf(t, params), 5000)
	if len(all) != 5000 {
		t.Fatalf("a closed loop ended after %d requests", len(all))
	}
	for i, q := range all {
		if q.Due != 0 || q.Session != i {
			t.Fatalf("request %d is of session %d, due at %v", i, q.Session, q.Due)
		}
	}
}

func TestMeanRate(t *testing.T) {
	for args, want := range map[string]float64{"--arrival=poisson": 100, "--arrival=ramp": 50} {
		if got := specOf(t, args).MeanRate(server); got != want {
			t.Errorf("%s: mean rate %g, want %g", args, got, want)
		}
	}
	if got := specOf(t).MeanRate(workload.Params{Rate: 5, Concurrency: 1}); got != 0 {
		t.Errorf("closed loop: mean rate %g, want none", got)
	}
}
