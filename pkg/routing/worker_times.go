package routing

import (
	"math"
	"time"
)

// What workers took lately, which scores are made of.

// endWithin is how many sequences end there within a time.
func (w *worker) endWithin(ms, lifeMs float64) int {
	return int(ms * float64(min(w.running, w.maxSequences)) / max(lifeMs, 1))
}

// decodedLately reports whether enough sequences decoded there lately for its step times to say what
// decoding takes: a fit to prompts alone does not, nor one to the first steps.
func (w *worker) decodedLately(now time.Time) bool {
	return w.decodedCount >= decodedLeast && (now.Sub(w.decodedAt) < decodedLatelyFor || w.load.GetDecodingSequences() > 0)
}

const (
	decodedLatelyFor = 10 * time.Second
	decodedForget    = time.Minute // after which those that ended before do not count
	decodedLeast     = 16
)

// decodedOne takes in how long a sequence decoded that went well.
func (w *worker) decodedOne(now time.Time, took time.Duration) {
	if now.Sub(w.decodedAt) >= decodedForget {
		w.decodedCount = 0
	}
	w.decodedCount, w.decodedAt = min(w.decodedCount+1, decodedLeast), now
	if w.sequenceMs == 0 {
		w.sequenceMs = milliseconds(took)
	}
	w.sequenceMs = average(w.sequenceMs, took, averageWeight)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// durationOf is a time of so many milliseconds, up to 31 years.
func durationOf(ms float64) time.Duration {
	return time.Duration(min(ms, 1e12) * float64(time.Millisecond))
}

// average is a moving average of milliseconds that takes in a time, as one of so many.
func average(ms float64, took time.Duration, of float64) float64 {
	return ms + (milliseconds(took)-ms)/of
}

// firstReserveMs is what a reservation is taken to need before any was made: a round trip.
const firstReserveMs = 1

// averageWeight is of how many the last is one in what sequences and reservations take on average.
const averageWeight = 32

// promptTime is how much of a worker's time prompts took lately.
type promptTime struct {
	ms float64
	at time.Time
}

const (
	promptWindowMs = 2000 // how long is lately
	// mostPrompts is the share of its time that prompts are taken to get at most.
	mostPrompts = 0.9
)

// share is the share of the time at now.
func (p *promptTime) share(now time.Time) float64 {
	if p.ms == 0 {
		return 0
	}
	return p.ms / promptWindowMs * math.Exp2(-float64(now.Sub(p.at))/float64(promptWindowMs*time.Millisecond)*math.Log2E)
}

// add adds a prompt that takes so long.
func (p *promptTime) add(now time.Time, ms float64) {
	p.ms, p.at = p.share(now)*promptWindowMs+ms, now
}

// waitMs is how long a prompt waits of which the worker lacks so many tokens: for those that come
// before it, and for the step that is being computed. A report comes when a step begins.
func (w *worker) waitMs(s steps, now time.Time, fresh bool, lacks int) float64 {
	ms := s.queueMs(w.ahead(fresh, lacks))
	if fresh {
		ms -= milliseconds(now.Sub(w.loadAt))
	}
	return max(ms, 0)
}
