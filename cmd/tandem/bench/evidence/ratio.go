package evidence

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// leastNoise is the least relative noise of a ratio: searches stop within a few percent.
const leastNoise = 0.05

// newRatio is the mean of a ratio over rounds, which differ by their seeds. Its noise is twice
// the standard error of that mean between two measurements, and not below leastNoise.
func newRatio(name string, rounds []float64, paper string) Ratio {
	m := stats.Mean(rounds)
	return Ratio{Name: name, Value: round3(m), Noise: round3(max(noiseOf(math.Sqrt(stats.Variance(rounds)), len(rounds)), leastNoise*m)), Paper: paper}
}

// noiseOf is that of a mean of rounds which deviate from it by so much.
func noiseOf(deviation float64, rounds int) float64 {
	return 2 * deviation * math.Sqrt(2/float64(rounds))
}

// addRatio divides round by round. Rounds whose denominator is 0 are left out, and the ratio says so;
// if all are, there is no ratio.
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
		ratio.Rounds = fmt.Sprintf("%d of %d rounds; the rest met no SLO", len(rounds), len(of))
	}
	r.Ratios = append(r.Ratios, ratio)
}

// defined is whether the denominator was not 0. JSON has neither NaN nor infinity.
func (r Ratio) defined() bool {
	return !math.IsNaN(r.Value) && !math.IsInf(r.Value, 0) && !math.IsNaN(r.Noise) && !math.IsInf(r.Noise, 0)
}

func round3(v float64) float64 { return math.Round(v*1000) / 1000 }
