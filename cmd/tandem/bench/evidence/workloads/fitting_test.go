package workloads

import (
	"math"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// These fits made the workloads in docs/profiles from published traces. The binary has no use
// for them: a test repeats them where it finds the traces.
const (
	// binsOf is the number of bins by prompt length; the others are numbers of quantiles.
	binsOf, binQuantiles, quantilesOf = 10, 10, 50
	// turnsOf is the number of turns with their own probability to go on.
	turnsOf = 5
)

// FitIndependent fits to the requests whose prompt and answer together have at most the given
// tokens; 0: to all requests.
func FitIndependent(all []trace.Entry, most int) *Independent {
	if most > 0 {
		all = slices.DeleteFunc(slices.Clone(all), func(e trace.Entry) bool { return e.PromptTokens+e.OutputTokens > most })
	}
	n := len(all)
	s := &Independent{RatePerSecond: round(float64(n-1) / (all[n-1].At - all[0].At).Seconds())}
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b trace.Entry) int { return a.PromptTokens - b.PromptTokens })
	for i := range binsOf {
		var prompts, outputs []float64
		for _, e := range sorted[i*n/binsOf : (i+1)*n/binsOf] {
			prompts, outputs = append(prompts, float64(e.PromptTokens)), append(outputs, float64(e.OutputTokens))
		}
		s.Bins = append(s.Bins, Bin{quantiles(prompts, binQuantiles), quantiles(outputs, binQuantiles)})
	}
	return s
}

// FitConversations fits to requests with blocks. A request continues the latest earlier one that
// shares the most of its first blocks, if it shares more than one.
func FitConversations(all []trace.Entry) *Conversations {
	var (
		last                                  = map[uint64]int{} // request that had a block last
		turn                                  = make([]int, len(all))
		goesOn                                = make([]bool, len(all))
		seconds, first, added, outputs, keeps []float64
	)
	for i, e := range all {
		shared := 0
		for shared < len(e.Blocks) {
			if _, known := last[e.Blocks[shared]]; !known {
				break
			}
			shared++
		}
		outputs = append(outputs, float64(e.OutputTokens))
		if shared > 1 {
			before := last[e.Blocks[shared-1]]
			turn[i], goesOn[before] = turn[before]+1, true
			seconds = append(seconds, (e.At - all[before].At).Seconds())
			added = append(added, max(float64(e.PromptTokens-shared*trace.BlockTokens), 1))
			keeps = append(keeps, min(float64(shared)/float64(len(all[before].Blocks)), 1))
		} else {
			first = append(first, float64(e.PromptTokens))
		}
		for _, b := range e.Blocks {
			last[b] = i
		}
	}
	c := &Conversations{
		StartsPerSecond: round(float64(len(first)) / (all[len(all)-1].At - all[0].At).Seconds()),
		Seconds:         quantiles(seconds, quantilesOf), First: quantiles(first, quantilesOf), Added: quantiles(added, quantilesOf),
		Output: quantiles(outputs, quantilesOf), Kept: quantiles(keeps, quantilesOf),
	}
	for t := range turnsOf {
		of, on := 0, 0
		for i := range all {
			if min(turn[i], turnsOf-1) == t {
				of++
				if goesOn[i] {
					on++
				}
			}
		}
		c.Next = append(c.Next, round(float64(on)/max(float64(of), 1)))
	}
	return c
}

// quantiles of values: the means of n equal shares of them, so that the mean stays.
func quantiles(values []float64, n int) (q Quantiles) {
	slices.Sort(values)
	for i := range n {
		q = append(q, round(mean(values[i*len(values)/n:max((i+1)*len(values)/n, i*len(values)/n+1)])))
	}
	return q
}

// round keeps four digits.
func round(v float64) float64 {
	if v == 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-3)
	return math.Round(math.Round(v/unit)*unit*1e9) / 1e9
}

func mean(values []float64) (m float64) {
	for _, v := range values {
		m += v / float64(len(values))
	}
	return m
}
