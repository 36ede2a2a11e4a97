package scheduler

import (
	"math"
	"time"
)

// A sequence may want its tokens in a mean time each. What is left of that when steps without
// prompts are taken from it is spread over the tokens that come: a step may have several times its
// share, so that a burst of prompts is soon over, and the next ones less.

const (
	// paceShare is how much of the time that a sequence wants its tokens in is planned with. The rest
	// is for what lies between steps, and for what no prediction says.
	paceShare = 0.95
	// paceBurst is how many times its share a step may have.
	paceBurst = 2
	// paceTokens is over how many tokens to come it is spread, at most: the sequence may end before
	// it has all that it may generate.
	paceTokens = 32
	// mostPassed is how many steps in a row have no prompt, where a block takes longer than what a step
	// has to spare. After as many steps there is often enough for one; if not, prompts have to go on.
	mostPassed = 3
	// paceArrival is how much of what it has to spare a sequence may wait for a step that was begun
	// just before its KV arrived.
	paceArrival = 0.25
)

// pace is since when a sequence has its tokens in time, or not: from its first one here.
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

// spareMs is what a step may take for prompts so that all who decode can have their tokens in time,
// and those whose KV may arrive meanwhile, where without prompts steps take aloneMs. Those who
// cannot in any case do not count. It is infinite if nobody wants anything.
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
	left := max(all*paceShare-needs, 0)
	return min(left, paceBurst*left/come)
}

// spareOnArrivalMs is what a step may take while the sequence's KV is on its way.
func (q *sequence) spareOnArrivalMs(aloneMs float64) float64 {
	come := float64(min(q.totalTokens-q.length()-1, paceTokens)) // the first is there with the KV
	left := come * (inMs(q.request.EachIn)*paceShare - aloneMs)
	if left <= 0 {
		return math.Inf(1)
	}
	return paceArrival * left
}

func inMs(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
