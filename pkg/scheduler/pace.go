package scheduler

import (
	"math"
	"time"

	"github.com/tandem-serving/tandem/pkg/latency"
)

// A sequence may have an objective for the mean time of its tokens. What steps without prompts leave of
// that time is for prompts, spread over the tokens to come. A step may use several times its share, so
// that a burst of prompts is soon over. The next steps have less then.

const (
	// paceTokens is over how many tokens to come it is spread, at most: the sequence may end before
	// it has all that it may generate.
	paceTokens = 32
	// paceArrival is how much of what it has to spare a sequence may wait for a step that was begun
	// just before its KV arrived.
	paceArrival = 0.25
)

// pace is from when on the mean time of a sequence's tokens counts: its first one here.
type pace struct {
	since time.Time
	from  int // tokens that it had then
}

// begin starts the count at a sequence's first token here.
func (p *pace) begin(now time.Time, tokens int) {
	if p.since.IsZero() {
		p.since, p.from = now, tokens
	}
}

// spareMs is what a step may take for prompts so that all who decode, and those whose KV may arrive
// meanwhile, can have their tokens in time. Without prompts steps take aloneMs. Sequences that are late
// in any case do not count. It is infinite if no sequence has an objective.
func (s *Scheduler) spareMs(aloneMs float64) float64 {
	spare := math.Inf(1)
	for _, q := range s.receiving {
		if q.request.EachIn > 0 {
			spare = min(spare, q.spareOnArrivalMs(aloneMs))
		}
	}
	for _, q := range s.running {
		if q.request.EachIn > 0 && q.phase == decoding {
			spare = min(spare, q.spareMs(s.now, aloneMs))
		}
	}
	return spare
}

func (q *sequence) spareMs(now time.Time, aloneMs float64) float64 {
	come := float64(max(min(q.totalTokens-q.length(), paceTokens), 1))
	all := inMs(q.request.EachIn) * (float64(len(q.output)-q.pace.from) + come)
	needs := inMs(now.Sub(q.pace.since)) + come*aloneMs
	if needs >= all {
		return math.Inf(1)
	}
	left := max(all*latency.PaceShare-needs, 0)
	return min(left, latency.PaceBurst*left/come)
}

// spareOnArrivalMs is what a step may take while the sequence's KV is on its way.
func (q *sequence) spareOnArrivalMs(aloneMs float64) float64 {
	come := float64(min(q.totalTokens-q.length()-1, paceTokens)) // the first is there with the KV
	left := come * (inMs(q.request.EachIn)*latency.PaceShare - aloneMs)
	if left <= 0 {
		return math.Inf(1)
	}
	return paceArrival * left
}

func inMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
