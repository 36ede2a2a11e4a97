package evidence

import (
	"cmp"
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// leastNoise is the least relative noise of a ratio: searches stop within a few percent.
const leastNoise = 0.05

// newRatio is the mean of a ratio over rounds, which differ by their seeds.
func newRatio(name string, rounds []float64, paper string) Ratio {
	m := stats.Mean(rounds)
	r := ratioOf(name, m, math.Sqrt(stats.Variance(rounds))/cmp.Or(m, 1), len(rounds))
	r.Paper = paper
	return r
}

// ratioOf is a mean of rounds whose standard deviation is that part of it. The noise is twice the standard
// error of the mean between two measurements, and not below leastNoise.
func ratioOf(name string, mean, deviation float64, rounds int) Ratio {
	return Ratio{Name: name, Value: round3(mean), Noise: round3(mean * max(2*deviation*math.Sqrt(2/float64(max(rounds, 1))), leastNoise))}
}

// addRatio divides round by round. Where rounds have a denominator of 0, the page says so and gives no
// ratio; if all have, there is none.
func (r *Result) addRatio(name string, of, by []float64, paper string) {
	var rounds []float64
	for i := range of {
		if by[i] > 0 {
			rounds = append(rounds, of[i]/by[i])
		}
	}
	if len(rounds) == 0 {
		return
	}
	ratio := newRatio(name, rounds, paper)
	if len(rounds) < len(of) {
		ratio.Rounds = fmt.Sprintf("none in %d of %d rounds", len(of)-len(rounds), len(of))
	}
	r.Ratios = append(r.Ratios, ratio)
}

// defined is whether the denominator was not 0. JSON has neither NaN nor infinity.
func (r Ratio) defined() bool {
	return !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0) && !math.IsNaN(r.Noise) && !math.IsInf(r.Noise, 0)
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }
