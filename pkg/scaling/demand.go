package scaling

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// Pools is one thing of each pool.
type Pools[T any] struct{ Prefill, Decode T }

// Demand is what requests ask for. Means are of the last requests; the zero Demand is none.
type Demand struct {
	// RequestsPerSecond is how many come, those that are refused included.
	RequestsPerSecond float64
	// GapSCV is the squared coefficient of variation of the times between them: 1 if they come
	// at random, more if they come in bursts.
	GapSCV float64
	// PromptTokens is how many tokens of a prompt are to be computed, because no worker holds
	// them, and PromptSCV the squared coefficient of variation of prompts.
	PromptTokens, PromptSCV float64
	// ContextTokens is how many tokens a prompt has, held ones included.
	ContextTokens float64
	// OutputTokens is how many tokens an answer has.
	OutputTokens float64
	// TTFT and TPOT are what requests want, on average of those that want anything; 0: none does.
	TTFT, TPOT time.Duration
	// TightTTFT and TightTPOT are the tightest that a share of all of them wants (Tightest); 0:
	// fewer want any, or it is not known.
	TightTTFT, TightTPOT time.Duration
	// Waiting is how many requests wait at routers, and WaitingTokens the tokens of their prompts.
	Waiting, WaitingTokens float64
	// Partial: some routers have not said what they get. Then no pool shrinks.
	Partial bool
}

// Pool is what the workers of one role can do.
type Pool struct {
	// Workers is how many serve. Those that drain are not among them.
	Workers int
	// Known: workers have measured their steps; otherwise the following means nothing. Each is
	// of one worker, on average.
	Known bool
	// Step is how long its steps take.
	Step latency.Model
	// StepTokens is how many tokens of prompts a step computes at most; 0: any number.
	StepTokens int
	// Sequences is how many may decode at a time, and KVTokens how many tokens their KV may
	// have; 0: any number.
	Sequences, KVTokens int
}

// Mesh is the pools of a mesh.
type Mesh struct {
	Pools[Pool]
	// PrefillOnly: prefill workers compute prompts only. Otherwise each worker can do all of a
	// request, and a pool has work for both.
	PrefillOnly bool
}

// Sum is the demand at several routers together. Means count by the requests that come, and by
// those that wait and are to be worked off beside them.
func Sum(demands ...Demand) Demand {
	var sum Demand
	var weight, ttft, tpot, ttftRate, tpotRate float64
	var tightTTFT, tightTPOT []Wanted
	for _, d := range demands {
		r := d.RequestsPerSecond + d.Waiting/workOffSeconds
		weight += r
		sum.RequestsPerSecond += d.RequestsPerSecond
		sum.GapSCV += r * d.GapSCV
		sum.PromptTokens += r * d.PromptTokens
		sum.PromptSCV += r * d.PromptSCV
		sum.ContextTokens += r * d.ContextTokens
		sum.OutputTokens += r * d.OutputTokens
		sum.Waiting += d.Waiting
		sum.WaitingTokens += d.WaitingTokens
		sum.Partial = sum.Partial || d.Partial
		tightTTFT, tightTPOT = append(tightTTFT, Wanted{d.TightTTFT, r}), append(tightTPOT, Wanted{d.TightTPOT, r})
		if d.TTFT > 0 {
			ttft, ttftRate = ttft+r*d.TTFT.Seconds(), ttftRate+r
		}
		if d.TPOT > 0 {
			tpot, tpotRate = tpot+r*d.TPOT.Seconds(), tpotRate+r
		}
	}
	if weight > 0 {
		sum.GapSCV /= weight
		sum.PromptTokens /= weight
		sum.PromptSCV /= weight
		sum.ContextTokens /= weight
		sum.OutputTokens /= weight
	}
	if ttftRate > 0 {
		sum.TTFT = seconds(ttft / ttftRate)
	}
	if tpotRate > 0 {
		sum.TPOT = seconds(tpot / tpotRate)
	}
	sum.TightTTFT, sum.TightTPOT = Tightest(tightTTFT), Tightest(tightTPOT)
	return sum
}

// Wanted is a time that requests of a weight want; 0: they want none.
type Wanted struct {
	Time   time.Duration
	Weight float64
}

// tightShare is the share of requests that sizes are for, however many want less: what fewer want
// is not worth workers.
const tightShare = 0.1

// Tightest is the shortest of the times such that at least a tenth wants it or a shorter one; 0:
// less than a tenth wants any. It sorts.
func Tightest(wanted []Wanted) time.Duration {
	slices.SortFunc(wanted, func(a, b Wanted) int { return cmp.Compare(a.Time, b.Time) })
	total, sum := 0.0, 0.0
	for _, w := range wanted {
		total += w.Weight
	}
	for _, w := range wanted {
		if w.Time <= 0 {
			continue
		}
		if sum += w.Weight; sum > 0 && sum >= tightShare*total {
			return w.Time
		}
	}
	return 0
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
