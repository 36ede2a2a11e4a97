package workloads

import (
	"container/list"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

const (
	// binsOf requests by the length of their prompts, and quantilesOf what is drawn.
	binsOf, binQuantiles, quantilesOf = 10, 10, 50
	// turnsOf have a probability of their own to go on.
	turnsOf = 5
)

// ReadTrace reads all requests of a trace.
func ReadTrace(path string) ([]trace.Entry, error) {
	file, err := trace.Open(path, trace.Auto)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var all []trace.Entry
	for {
		e, err := file.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if len(all) < 100 {
		return nil, fmt.Errorf("%s has %d requests, too few to fit anything to", path, len(all))
	}
	return all, nil
}

// FitIndependent fits to requests whose prompt and answer have at most so many tokens
// together; 0: to all. The rate is that of those.
func FitIndependent(all []trace.Entry, most int) *Independent {
	if most > 0 {
		all = slices.DeleteFunc(slices.Clone(all), func(e trace.Entry) bool { return e.PromptTokens+e.OutputTokens > most })
	}
	n := len(all)
	s := &Independent{Requests: n, RatePerSecond: round(float64(n-1) / (all[n-1].At - all[0].At).Seconds())}
	var gaps []float64
	for i := range n - 1 {
		gaps = append(gaps, (all[i+1].At - all[i].At).Seconds())
	}
	m, sd := moments(gaps)
	s.Burstiness = round(m * m / (sd * sd)) // a gamma distribution of this shape varies as much
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

// FitConversations fits to requests with blocks. A request goes on with the last one before it
// that has the most of its first blocks, if that is more than one.
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
		Requests: len(all), StartsPerSecond: round(float64(len(first)) / (all[len(all)-1].At - all[0].At).Seconds()),
		Seconds: quantiles(seconds, quantilesOf), First: quantiles(first, quantilesOf), Added: quantiles(added, quantilesOf),
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
		m, _ := moments(values[i*len(values)/n : max((i+1)*len(values)/n, i*len(values)/n+1)])
		q = append(q, round(m))
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

func moments(values []float64) (mean, sd float64) {
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		sd += (v - mean) * (v - mean) / float64(len(values))
	}
	return mean, math.Sqrt(sd)
}

// Ideal is the share of the prompts' tokens that a prefix cache without limits would have.
func Ideal(all []trace.Entry) float64 {
	seen, hit, of := map[uint64]bool{}, 0, 0
	for _, e := range all {
		for i, b := range e.Blocks {
			if !seen[b] {
				break
			}
			hit += min(trace.BlockTokens, e.PromptTokens-i*trace.BlockTokens)
		}
		for _, b := range e.Blocks {
			seen[b] = true
		}
		of += e.PromptTokens
	}
	return float64(hit) / float64(of)
}

// Pooled is the share of the prompts' tokens that one cache of so many blocks would have,
// which evicts the least recently used and fetches in no time.
func Pooled(all []trace.Entry, blocks int) float64 {
	order, places := list.New(), map[uint64]*list.Element{} // the most recently used first
	hit, of := 0, 0
	for _, e := range all {
		found := true
		for i, b := range e.Blocks {
			if found = found && places[b] != nil; found {
				hit += min(trace.BlockTokens, e.PromptTokens-i*trace.BlockTokens)
			}
		}
		for _, b := range e.Blocks {
			if places[b] != nil {
				order.MoveToFront(places[b])
				continue
			}
			places[b] = order.PushFront(b)
			if order.Len() <= blocks {
				continue
			}
			if last, is := order.Remove(order.Back()).(uint64); is {
				delete(places, last)
			}
		}
		of += e.PromptTokens
	}
	return float64(hit) / float64(of)
}
