package routing

import (
	"fmt"
	"math"
	"time"
)

// A worker may be slower than its load reports say: they lag, or what slows it down is nothing
// that it measures. That shows in what comes of predictions. Where a worker takes much longer
// than others do beside what was predicted, it is slow: predictions of it are multiplied by as
// much, so that it gets what still ends soonest there, which is little or nothing. Now and then a
// request is predicted as if it were not slow, which is its trial. Trials that go well end it.

const (
	// slowAt and slowUntil: a worker is slow from the one factor on, until it is below the other.
	slowAt    = 2.
	slowUntil = 1.5
	// slowMost bounds what one prediction says.
	slowMost = 16.
	// slowAfter is how many predictions it takes at least, and slowWeight of how many the last is
	// one in the mean.
	slowAfter  = 3
	slowWeight = 4.
	// usualStep is by how much one prediction moves what is usual, a running median of logarithms.
	// It is known after usualAfter, and moves by usualRun steps at once at most.
	usualStep  = 0.05
	usualRun   = 8
	usualAfter = 16
	// trialLeast is how long a slow worker waits for its trial; it doubles with each that goes
	// badly, up to trialMost.
	trialLeast = 5 * time.Second
	trialMost  = time.Minute
)

// usual is the logarithm of how much longer a time takes than predicted, usually: half of those
// observed took longer.
type usual struct {
	log      float64
	observed int
	// run is how many of the last were longer, or less if it is negative: after many of a kind it
	// is far off, and follows in longer steps.
	run int
}

func (u *usual) observe(log float64) {
	u.observed++
	if longer := log > u.log; longer == (u.run > 0) && u.run != 0 {
		u.run += sign(longer)
	} else {
		u.run = sign(longer)
	}
	u.log += usualStep * float64(min(max(u.run, -usualRun), usualRun))
}

func sign(positive bool) int {
	if positive {
		return 1
	}
	return -1
}

// slowness is how much slower than predicted a worker is, beside others.
type slowness struct {
	log      float64 // mean of the logarithms of the factors
	observed int
	since    time.Time // of the last one that counted
	slow     bool
	trialAt  time.Time // slow: when it is tried
	trials   int       // slow: in a row that went badly
}

// factor is what predictions of the worker are multiplied by.
func (s *slowness) factor() float64 {
	if !s.slow {
		return 1
	}
	return math.Exp(s.log)
}

// tried is factor for a request that comes now: 1 if it would be a trial.
func (s *slowness) tried(now time.Time) float64 {
	if s.slow && !now.Before(s.trialAt) {
		return 1
	}
	return s.factor()
}

// sent takes in that a request is given to the worker: no trial until it is known what comes of
// it, or for a while.
func (s *slowness) sent(now time.Time) {
	if s.slow {
		s.trialAt = now.Add(doubling(trialLeast, s.trials, trialMost))
	}
}

// observe takes in what came of a prediction that was made at a time. Of those that were made
// before the last one that counted, nothing counts: what a worker has together is late together.
// It reports whether that changes whether the worker is slow.
func (s *slowness) observe(now, made time.Time, u *usual, predicted, took time.Duration) (changes bool) {
	if made.Before(s.since) {
		return false
	}
	log := math.Log(float64(max(took, 1)) / float64(max(predicted, predictedLeast)))
	log = min(max(log, -math.Log(slowMost)), math.Log(slowMost))
	u.observe(log)
	return u.observed >= usualAfter && s.take(now, log-u.log)
}

// late takes in that what was predicted has taken longer, and has not come: that says something
// only if it is more than was known.
func (s *slowness) late(now, made time.Time, u *usual, predicted, took time.Duration) (changes bool) {
	if made.Before(s.since) {
		return false
	}
	log := min(math.Log(float64(max(took, 1))/float64(max(predicted, predictedLeast))), math.Log(slowMost)) - u.log
	return log > s.log && u.observed >= usualAfter && s.take(now, log)
}

func (s *slowness) take(now time.Time, log float64) (changes bool) {
	s.since = now
	s.observed++
	s.log += (log - s.log) / min(float64(s.observed), slowWeight)
	before := s.slow
	switch {
	case s.slow && s.log < math.Log(slowUntil):
		s.slow, s.trials = false, 0
	case s.slow && log < math.Log(slowUntil): // it went well: the next may follow
		s.trialAt, s.trials = now, 0
	case s.slow:
		s.trials++
		s.sent(now)
	case s.observed >= slowAfter && s.log > math.Log(slowAt):
		s.slow = true
		s.sent(now)
	}
	return s.slow != before
}

// What of a worker is predicted.
const (
	ofFirst = "first token"
	ofToken = "token"
)

// slows takes in that a worker was found to be slow, or is not any more.
func (rt *Router) slows(w *worker, s *slowness, of string) {
	if s.slow {
		rt.out = append(rt.out, Suspected{Worker: w.ref, Why: slowText(s, of), Slow: true, Wait: trialLeast})
	}
}

func slowText(s *slowness, of string) string {
	return fmt.Sprintf("slower than it reports: a %s takes %.1f times as long as predicted, beside other workers", of, math.Exp(s.log))
}

// slowWhy says for people that a worker is slow; empty: it is not.
func (w *worker) slowWhy() string {
	switch {
	case w.slowFirst.slow:
		return slowText(&w.slowFirst, ofFirst)
	case w.slowToken.slow:
		return slowText(&w.slowToken, ofToken)
	}
	return ""
}

// firstTook takes in how long the first token of a dispatched request took, or, with late, that it
// has taken so long and has not come.
func (rt *Router) firstTook(now time.Time, d *dispatched, late bool) {
	if d.plainFirst <= 0 {
		return
	}
	w, took := d.computes(), now.Sub(d.at)
	observe := w.slowFirst.observe
	if late {
		observe = w.slowFirst.late
	}
	if observe(now, d.at, rt.usualOf(w), d.plainFirst, took) {
		rt.slows(w, &w.slowFirst, ofFirst)
	}
}

// tokensTook takes in gaps between tokens.
func (rt *Router) tokensTook(now time.Time, d *dispatched, gaps *Gaps) {
	n := gaps.Count()
	if d.plainToken <= 0 || n < tokensTell {
		return
	}
	mean := gaps.mean()
	began := now.Add(-mean * time.Duration(n))
	if w := d.decode; w.slowToken.observe(now, began, &rt.usualToken[byRole(w.role)], d.plainToken, mean) {
		rt.slows(w, &w.slowToken, ofToken)
	}
}

// usualOf is what is usual of first tokens on workers like w.
func (rt *Router) usualOf(w *worker) *usual { return &rt.usualFirst[byRole(w.role)] }
