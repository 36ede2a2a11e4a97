package routing

import (
	"math"
	"time"
)

// A prediction is compared with what happened, and the next ones are corrected by that.

// trackRecord is how well a time of a worker is predicted.
type trackRecord struct {
	// late is the factor by which a time is longer than predicted in one of lateOne cases; 0 stands
	// for 1. It grows by lateGain when a time was longer than that, and else falls by a share of
	// lateGain, so that it converges (stochastic approximation of a quantile; Robbins and Monro, 1951).
	late float64
	// bias and deviation are the means of the relative error and of its size.
	bias, deviation float64
	// at is from when on factorAt forgets.
	at time.Time
}

const (
	lateOne             = 10
	lateGain            = 0.1
	leastLate, mostLate = 0.5, 4
	// errorWeight: the last prediction is one of so many in bias and deviation.
	errorWeight = 64
	// lateHalf is the half-life of what factorAt is above 1.
	lateHalf = 5 * time.Second
	// predictedLeast is the least time that an error is relative to.
	predictedLeast = 100 * time.Microsecond
	// tokensTell is from how many tokens on an answer tells what a token takes: in a shorter one,
	// the wait for the second says more.
	tokensTell = 16
	// mostError bounds what one prediction says, relatively.
	mostError = 4
)

// factor is what predictions are multiplied by before they are held against an objective.
func (t *trackRecord) factor() float64 {
	if t.late == 0 {
		return 1
	}
	return t.late
}

// factorAt is factor as it is forgotten while nothing comes of predictions. A router that refuses
// requests for their factor has no predictions to learn from, and other routers may keep the worker
// as busy as it was: it would refuse them for good.
func (t *trackRecord) factorAt(now time.Time) float64 {
	f := t.factor()
	if f <= 1 || !now.After(t.at) {
		return f
	}
	return 1 + (f-1)*math.Exp2(-float64(now.Sub(t.at))/float64(lateHalf))
}

// forget brings a record of which factorAt is used up to now, before it takes something in that is kept
// for a time before it is forgotten.
func (t *trackRecord) forget(now time.Time, kept time.Duration) {
	t.late, t.at = t.factorAt(now), now.Add(kept)
}

// observeAt takes in what came of a prediction, for a record of which factorAt is used.
func (t *trackRecord) observeAt(now time.Time, predicted, took time.Duration) {
	t.forget(now, 0)
	t.observeBy(lateGain, lateOne, predicted, took)
}

// observeBy takes in what came of a prediction, where one of so many may be late. The gain is smaller than
// lateGain where many predictions are made before anything comes of the first.
func (t *trackRecord) observeBy(gain, one float64, predicted, took time.Duration) {
	predicted = max(predicted, predictedLeast)
	if float64(took) > float64(predicted)*t.factor() {
		t.late = min(t.factor()*(1+gain), mostLate)
	} else {
		t.late = max(t.factor()*(1-gain/(one-1)), leastLate)
	}
	err := min(float64(took-predicted)/float64(predicted), mostError)
	t.bias += (err - t.bias) / errorWeight
	t.deviation += (max(err, -err) - t.deviation) / errorWeight
}

// firstCame takes in how long the first token of a request took, or, with lost, that another attempt's
// came before it, which counts as if its own had come then. Leaving out those that were ended before the
// predicted time made predictions too late: `auto` served 2% less on the mean of five rounds of 256/16
// tokens (docs/evidence.md, the map of the loose SLO), and 6% less in two of them.
func (rt *Router) firstCame(now time.Time, d *dispatched, lost bool) {
	if took := now.Sub(d.at); d.first > 0 {
		w := d.computes()
		w.first.observeAt(now, d.first, took)
		if d.alone {
			w.firstAlone.observeAt(now, d.first, took)
		}
		rt.hedges.late[byRole(w.role)].observeBy(lateGain, hedgeOne, d.first, took)
	}
	rt.firstTook(now, d, lost)
}

// Errors are the relative errors of predictions: the mean of their sizes, and with Bias the mean
// of the errors themselves, which is above 0 where what was predicted took longer.
type Errors struct{ Mean, Bias float64 }

// Predictions is how well a worker's times are predicted.
type Predictions struct {
	Worker string
	// FirstToken is from the dispatch to the first token of prompts that it computes, Token the
	// time of a token that it decodes.
	FirstToken, Token Errors
	// SlowFirst and SlowToken are how many times longer the two take, beside other workers; 1: the
	// worker is not slow.
	SlowFirst, SlowToken float64
}

// Predictions are those of all workers, by id.
func (rt *Router) Predictions() []Predictions {
	var out []Predictions
	for _, w := range rt.order {
		if !w.isStore() {
			out = append(out, Predictions{w.ref.ID, w.first.errors(), w.tokens.errors(), w.slowFirst.factor(), w.slowToken.factor()})
		}
	}
	return out
}

func (t *trackRecord) errors() Errors { return Errors{Mean: t.deviation, Bias: t.bias} }
