package scaling

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/queueing"
)

const (
	// waitQuantile is the share of requests whose first token is to be in time.
	waitQuantile = 0.95
	// workOffSeconds is how soon what waits at routers is to be worked off, beside what comes.
	workOffSeconds = 30
	// shortestStepMs stands in for steps that take no time.
	shortestStepMs = 1e-3
)

// need is how many workers a demand needs.
type need struct {
	// prompts and answers are how many workers each phase keeps busy at the utilisation that is
	// aimed at, apart from the other; total is both, by the better use of all workers.
	prompts, answers, total float64
	rate                    float64 // requests a second that count
	promptSeconds           float64 // that a worker takes for a prompt beside others
	slack                   float64 // seconds that a prompt may wait; infinite: any
	// ttft and tpot are the tightest that are wanted. late and slow: no number of workers meets them;
	// then sizes are for the means, if those can be met.
	ttft, tpot time.Duration
	late, slow bool
}

// needs is the need of a demand, which grows in proportion to the rate.
func needs(d Demand, m Mesh, utilisation, times float64) need {
	waiting := max(d.Waiting, d.WaitingTokens/max(d.ContextTokens, 1)) // long prompts count as several
	n := need{rate: d.RequestsPerSecond + waiting/workOffSeconds}
	n.rate *= times
	p, a := m.prefill(), m.decode()
	n.promptSeconds = p.promptMs(d.PromptTokens) / 1000
	own := (p.promptWorkMs(d.PromptTokens) + p.Step.BaseMs*p.steps(d.PromptTokens)) / 1000
	n.slack = math.Inf(1)
	for _, ttft := range [...]time.Duration{d.TTFT, d.TightTTFT} {
		if ttft <= 0 {
			continue
		}
		slack := ttft.Seconds() - own
		if n.ttft, n.late = ttft, slack <= 0; !n.late {
			n.slack = slack
		}
	}
	n.prompts = n.rate * n.promptSeconds / utilisation
	longest := 0.0 // milliseconds of a step
	for _, tpot := range [...]time.Duration{d.TPOT, d.TightTPOT} {
		if tpot <= 0 {
			continue
		}
		most := tpot.Seconds() * 1000 * latency.PaceShare
		if n.tpot, n.slow = tpot, a.Step.BaseMs+a.eachMs(d) > most; !n.slow {
			longest = most
		}
	}
	n.answers = n.rate * a.answerSeconds(d, longest, utilisation)
	n.total = n.prompts + n.answers
	if !m.PrefillOnly {
		n.total = min(n.total, n.rate*together(d, p, a, longest)/utilisation)
	}
	return n
}

// prefill is the prefill workers, or what stands in for them where none has measured its steps.
func (m Mesh) prefill() Pool {
	if m.Prefill.Known {
		return m.Prefill
	}
	return m.Decode
}

// decode is the decode workers, likewise.
func (m Mesh) decode() Pool {
	if m.Decode.Known {
		return m.Decode
	}
	return m.Prefill
}

// steps is how many steps a prompt takes alone.
func (p Pool) steps(tokens float64) float64 {
	if p.StepTokens <= 0 || tokens <= 0 {
		return 1
	}
	return math.Ceil(tokens / float64(p.StepTokens))
}

// promptWorkMs is what a prompt adds to the steps that compute it.
func (p Pool) promptWorkMs(tokens float64) float64 {
	return tokens * (p.Step.PerTokenMs + p.Step.PerSquareMs*tokens)
}

// promptMs is how long a worker that always has prompts takes for one: what it adds, and its
// share of the fixed time of steps.
func (p Pool) promptMs(tokens float64) float64 {
	share := 1.0
	if p.StepTokens > 0 {
		share = tokens / float64(p.StepTokens)
	}
	return p.promptWorkMs(tokens) + p.Step.BaseMs*share
}

// eachMs is what one sequence adds to a step that generates a token of it.
func (p Pool) eachMs(d Demand) float64 {
	return p.Step.PerTokenMs + p.Step.PerContextTokenMs*(d.ContextTokens+d.OutputTokens/2)
}

// places is how many sequences decode on a worker at most; infinite: any number.
func (p Pool) places(d Demand) float64 {
	places := math.Inf(1)
	if p.Sequences > 0 {
		places = float64(p.Sequences)
	}
	if held := d.ContextTokens + d.OutputTokens; p.KVTokens > 0 && held > 0 {
		places = min(places, float64(p.KVTokens)/held)
	}
	return max(places, 1)
}

// answerSeconds is how many workers that do nothing else one answer a second needs, with so much
// of their places in use and steps that take no longer than longest, milliseconds; 0: any. By
// Little's law, it keeps as many sequences as it has tokens times the time of a step, and a worker
// with n sequences has steps of base + n·each.
func (p Pool) answerSeconds(d Demand, longest, utilisation float64) float64 {
	each, n := p.eachMs(d), p.places(d)
	if longest > 0 && each > 0 {
		n = min(n, (longest-p.Step.BaseMs)/each)
	}
	n = max(n*utilisation, 1)
	if math.IsInf(n, 1) {
		return d.OutputTokens * each / 1000
	}
	return d.OutputTokens * (p.Step.BaseMs + n*each) / n / 1000
}

// together is how many workers one request a second needs that do all of it. Steps that take
// longer have more time beside their fixed time, but a sequence keeps its place for as many steps
// as it has tokens: the best length is where both need as many workers (pkg/routing compares the
// same two uses).
func together(d Demand, p, a Pool, longest float64) float64 {
	work := p.promptWorkMs(d.PromptTokens) + d.OutputTokens*a.eachMs(d)
	base := max(a.Step.BaseMs, p.Step.BaseMs, shortestStepMs)
	byTime := func(stepMs float64) float64 { return work / 1000 / (1 - base/stepMs) }
	byPlace := func(stepMs float64) float64 { return d.OutputTokens * stepMs / 1000 / a.places(d) }
	low, high := base, longest
	if high == 0 {
		high = 1e4 * base
	}
	if high <= low {
		return math.Inf(1)
	}
	if byTime(high) >= byPlace(high) {
		return byTime(high)
	}
	for range 60 {
		if middle := (low + high) / 2; byTime(middle) >= byPlace(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return byPlace(high) // byTime is 0/0 where steps have a fixed time only
}

// servers is the fewest workers, from least to most, that have prompts wait no longer than they
// may, if they are busy with so many workers' worth of work. Where workers do both phases, answers
// are taken to be in the way of prompts as other prompts are.
func (n need) servers(d Demand, busy float64, least, most int) int {
	if math.IsInf(n.slack, 1) || n.promptSeconds <= 0 {
		return least
	}
	service := queueing.Service{Seconds: n.promptSeconds, SCV: d.PromptSCV}
	for ; least < most; least++ {
		if w, err := queueing.GGc(busy/n.promptSeconds, service, d.GapSCV, least); err == nil && w.Quantile(waitQuantile) <= n.slack {
			break
		}
	}
	return least
}

// spare is one worker more where there are several, so that the others do the work if one fails.
func spare(workers int) int {
	if workers > 1 {
		return workers + 1
	}
	return workers
}
