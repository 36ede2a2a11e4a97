package plan

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/queueing"
	"github.com/tandem-serving/tandem/pkg/speculation"
	"github.com/tandem-serving/tandem/simulate"
)

// formulas are what can be computed of a load and its workers before any simulation.
type formulas struct {
	traffic
	headroom Headroom
	// askedSLO is that of the question, and slo that of each call, term by term, so that a fan-out of
	// them keeps it.
	askedSLO, slo measure.SLO
	// prompts are the times that a prefill worker takes for the sampled prompts, seconds,
	// sorted, and service their mean and variation.
	prompts []float64
	service queueing.Service
	decode  decoding
	// both is the seconds of a worker that does both phases for one request.
	both float64
}

// decoding is a decode worker with answers of mean length.
type decoding struct {
	profile *latency.Profile
	// maxDrafts is how many tokens of an answer are drafted for a step at most, acceptance how
	// often a draft token is right.
	maxDrafts  int
	acceptance float64
	// context is the mean number of tokens that a running answer looks at, steps the mean
	// number of steps of an answer.
	context, steps float64
	// memory is how many answers fit into its KV memory or a step, whichever are fewer,
	// and most how many keep TPOT's bound too. 0: not even one does.
	memory, most int
	// byKV is whether KV memory and not --max-sequences is what bounds memory.
	byKV bool
	// batch is its step, as a line from one answer to most.
	batch queueing.Batch
	// rate is what it serves with most answers at once, requests a second.
	rate float64
}

// promptSeconds is how long a worker takes for a prompt of its own, chunk by chunk.
func promptSeconds(w *simulate.Worker, tokens int) float64 {
	chunk := max(min(w.ChunkTokens, w.MaxBatchTokens), 1)
	var took time.Duration
	for start := 0; start < tokens; start += chunk {
		n := min(chunk, tokens-start)
		var work latency.StepWork
		work.Add(start, n, start+n == tokens)
		took += w.Profile.Predict(work)
	}
	return took.Seconds() * slowness(w)
}

func slowness(w *simulate.Worker) float64 {
	if w.Slow > 0 {
		return w.Slow
	}
	return 1
}

// stepSeconds is how long a step takes in which a number of answers get a token. With drafts it
// is the mean time until each has one more, if steps have as many draft tokens as promise the most
// tokens a second, and no answer lacks any.
func (d *decoding) stepSeconds(running float64) float64 {
	n := max(int(math.Round(running)), 1)
	ms := func(tokens int) float64 {
		work := latency.Work{Tokens: tokens, Sequences: n, Context: d.context*float64(n) + float64(tokens-n), Samples: tokens}
		if tokens > n {
			work.Squares = 2 * d.context * float64(tokens)
		}
		return d.profile.Predict(latency.StepWork{Decode: work}).Seconds() * 1e3
	}
	if d.maxDrafts == 0 {
		return ms(n) / 1e3
	}
	candidates := slices.Repeat([]speculation.Candidate{{Chances: []float64{d.acceptance}, Most: d.maxDrafts}}, n)
	new(speculation.Planner).Lengths(candidates, n, n*d.maxDrafts, ms)
	tokens, drafts := float64(n), 0
	for _, c := range candidates {
		drafts += c.Drafts
		for j, right := 0, d.acceptance; j < c.Drafts; j, right = j+1, right*d.acceptance {
			tokens += right
		}
	}
	return ms(n+drafts) / 1e3 * float64(n) / tokens
}

// newFormulas computes what does not depend on the number of workers. Its error is
// *Infeasible, beside the formulas, if no number of them keeps the SLO.
func newFormulas(t traffic, p pools, blockTokens int, asked, each measure.SLO, headroom Headroom) (*formulas, error) {
	f := &formulas{traffic: t, headroom: headroom, askedSLO: asked, slo: each}
	for _, r := range t.requests {
		f.prompts = append(f.prompts, promptSeconds(&p.prefill, r.prompt))
	}
	f.service = queueing.ServiceOf(f.prompts)
	slices.Sort(f.prompts)
	if err := f.newDecoding(&p.decode, blockTokens, p.acceptance); err != nil {
		return nil, err
	}
	for _, r := range t.requests {
		f.both += promptSeconds(&p.decode, r.prompt) / float64(len(t.requests))
	}
	f.both += 1 / f.decode.rate
	err := f.possible()
	return f, err
}

func (f *formulas) newDecoding(w *simulate.Worker, blockTokens int, acceptance float64) error {
	d := &f.decode
	d.profile, d.maxDrafts, d.acceptance = slower(w), w.MaxDrafts, acceptance
	var tokens, contexts, reserved float64
	longest := 0
	for _, r := range f.requests {
		steps := float64(max(r.output-1, 0)) // the first token is the prompt's
		tokens += steps
		contexts += steps * (float64(r.prompt) + float64(r.output)/2)
		reserved += steps * (float64(r.prompt) + float64(r.output)*w.OutputShare)
		longest = max(longest, r.prompt+r.output)
	}
	if tokens == 0 {
		d.memory, d.most, d.rate = w.MaxSequences, w.MaxSequences, math.Inf(1)
		return nil
	}
	d.context, d.steps = contexts/tokens, tokens/float64(len(f.requests))
	blocks := math.Ceil(reserved/tokens/float64(blockTokens) + 0.5)
	if need := kvcache.BlocksFor(longest, blockTokens); need > w.Blocks {
		return fmt.Errorf("--kv-memory: a worker holds %d tokens, and the longest request has %d: give workers more memory, or pass shorter lengths", w.Blocks*blockTokens, longest)
	}
	d.memory = max(min(w.MaxSequences, int(float64(w.Blocks)/blocks)), 1)
	d.byKV = d.memory < w.MaxSequences
	d.most = d.memory
	if bounds := terms(f.slo, "tpot"); len(bounds) > 0 {
		d.most = sort.Search(d.memory, func(i int) bool { return d.stepSeconds(float64(i+1)) > bounds[0].Bound.Seconds() })
	}
	one, all := d.stepSeconds(1), d.stepSeconds(float64(max(d.most, 1)))
	if d.most > 1 {
		d.batch.EachSeconds = max((all-one)/float64(d.most-1), 0)
	}
	d.batch.StepSeconds = max(one-d.batch.EachSeconds, 0)
	var err error
	d.rate, err = d.batch.Rate(d.steps, all*(1+1e-9), float64(max(d.most, 1)))
	return err
}

// slower is a worker's profile at its own speed.
func slower(w *simulate.Worker) *latency.Profile {
	factor := slowness(w)
	if factor == 1 {
		return w.Profile
	}
	p := *w.Profile
	times := func(regimes []latency.Regime) []latency.Regime {
		out := slices.Clone(regimes)
		for i := range out {
			t := &out[i].Terms
			for _, ms := range []*float64{&t.BaseMs, &t.PerTokenMs, &t.PerSquareMs, &t.PerContextTokenMs, &t.PerSampleMs} {
				*ms *= factor
			}
		}
		return out
	}
	p.Prefill, p.Decode, p.Mixed, p.Verify = times(p.Prefill), times(p.Decode), times(p.Mixed), times(p.Verify)
	return &p
}

// promptQuantile is how long the prompt at a quantile takes alone.
func (f *formulas) promptQuantile(q float64) float64 {
	return stats.Quantile(f.prompts, q)
}

// longest is the seconds of the longest prompt and the longest answer, with steps as full as they
// may be.
func (f *formulas) longest() float64 {
	output := 0
	for _, r := range f.requests {
		output = max(output, r.output)
	}
	return f.promptQuantile(1) + float64(output)*f.decode.stepSeconds(float64(f.decode.most))
}

// queue is that of a number of prefill workers.
func (f *formulas) queue(workers int) (queueing.Queue, error) {
	return queueing.GGc(f.rate, f.service, f.arrivalSCV, workers)
}

// late is the share of requests whose first token comes later than a bound: each prompt's
// own time and its wait add up.
func (f *formulas) late(w queueing.Queue, bound float64) float64 {
	sum := 0.0
	for _, own := range f.prompts {
		sum += w.Exceeds(bound - own)
	}
	return sum / float64(len(f.prompts))
}

// prefillSLO is the fewest prefill workers that keep the bounds on TTFT.
func (f *formulas) prefillSLO() (int, error) {
	bounds := terms(f.slo, "ttft")
	if len(bounds) == 0 {
		return 1, nil
	}
	keeps := func(workers int) bool {
		w, err := f.queue(workers)
		if err != nil {
			return false
		}
		for _, t := range bounds {
			if f.late(w, t.Bound.Seconds()) > 1-quantile(t) {
				return false
			}
		}
		return true
	}
	high := max(int(f.rate*f.service.Seconds), 1)
	for !keeps(high) {
		if high *= 2; high > 2*mostWorkers {
			return 0, &Infeasible{
				Reason:  fmt.Sprintf("the prompts alone take more than %d workers, the most that are planned", mostWorkers),
				Nearest: "not known: plan for a lower rate",
			}
		}
	}
	return 1 + sort.Search(high-1, func(i int) bool { return keeps(i + 1) }), nil
}

// upTo is the fewest workers of which each serves at most rate requests a second.
func (f *formulas) upTo(rate float64) int {
	return max(int(math.Ceil(f.rate/rate*(1-1e-9))), 1)
}

// varianceRate is how many requests a second a decode worker serves with a margin of standard
// deviations below the most that may run.
func (f *formulas) varianceRate() float64 {
	if f.decode.steps == 0 {
		return math.Inf(1)
	}
	mean := f.headroom.runningMean(float64(f.decode.most))
	seconds := f.decode.batch.StepSeconds + mean*f.decode.batch.EachSeconds
	return mean / (f.decode.steps * seconds)
}
