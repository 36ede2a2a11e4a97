package routing

import (
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
)

// A worker is suspected when it was silent in a request for too long, or when others
// served what it failed or called wrong, several times in a row. A suspected worker gets
// requests only if there is no other, and now and then one to try it.

const (
	// silentKept is how long a worker that was silent is left alone, if nothing shows
	// that it goes on.
	silentKept = 30 * time.Second
	// slowAtMost: a worker that goes on within this time of its suspicion was only slow.
	slowAtMost = 10 * time.Second
	// maxHangs: after so many silences in a row only progress in a request ends a
	// suspicion, and not reports of steps any more.
	maxHangs = 3
	// maxContradictions is how often in a row a worker may fail what others serve before it
	// is left alone for contradictedLeast, then for twice as long, and so on to contradictedMost.
	maxContradictions = 3
	contradictedLeast = time.Second
	contradictedMost  = time.Minute
)

// suspicion is what speaks against a worker that is connected.
type suspicion struct {
	since, until time.Time // zero: it is not suspected; from until on one request may try it
	wait         time.Duration
	why          string

	forSilence     bool   // it is suspected for its silence
	samples        uint64 // steps that it had computed by then
	hangs          int    // silences in a row
	contradictions int    // in a row
	contradictedAt time.Time
	patience       int       // factor of its limits; 0 is 1
	wentWell       int       // requests since that was changed
	stepped        uint64    // steps that it has reported
	steppedAt      time.Time // when it last reported more, or something came of a request
	gaps           Gaps
}

func (s *suspicion) suspected() bool { return !s.since.IsZero() }

// avoided reports whether a worker is suspected and its trial is not due.
func (s *suspicion) avoided(now time.Time) bool { return s.suspected() && now.Before(s.until) }

// suspect begins or renews a suspicion.
func (rt *Router) suspect(now time.Time, w *worker, silent bool, wait time.Duration, why string) {
	if !w.suspected() {
		w.since = now
	}
	w.forSilence, w.wait, w.until, w.why, w.samples = silent, wait, now.Add(wait), why, w.stepped
	rt.waking.leave(w)
	rt.out = append(rt.out, Suspected{Worker: w.ref, Why: why, Silent: silent, Wait: wait})
}

// hung takes in that a worker was silent in a request for too long.
func (rt *Router) hung(now time.Time, w *worker) {
	if w.avoided(now) && w.forSilence {
		return // those that it had together fall silent together
	}
	w.hangs++
	rt.suspect(now, w, true, silentKept, "it was silent for too long in a request, and has shown no progress since")
}

// contradicted takes in that others served a request that a worker failed.
func (rt *Router) contradicted(now time.Time, e Contradicted) {
	w := rt.worker(e.Worker)
	if w == nil || e.Began.Before(w.contradictedAt) {
		return // those that it had together failed together
	}
	if !w.connected || w.connectedAt.After(e.Began) {
		return // its connection broke, which says nothing of it
	}
	w.contradictedAt = now
	if w.contradictions++; w.contradictions >= maxContradictions {
		rt.suspect(now, w, false, doubling(contradictedLeast, w.contradictions-maxContradictions, contradictedMost), "other workers serve requests that it fails: "+sentence(e.Why))
	}
}

// tries notes that a suspected worker is given a request: no other until it is known
// what comes of it.
func (s *suspicion) tries(now time.Time) {
	if s.suspected() {
		s.until = now.Add(s.wait)
	}
}

// reported takes in how many steps a worker says that it has computed. It says whether
// that ends a suspicion. So does a report after a time without any, resumed: the worker
// as a whole had stopped, and goes on.
func (s *suspicion) reported(now time.Time, report *controlv1.LoadReport, resumed bool) bool {
	steps := report.GetStepTime().GetSamples()
	if steps > s.stepped {
		s.steppedAt = now
	}
	s.stepped = steps
	if !s.suspected() || !s.forSilence || s.hangs >= maxHangs || steps <= s.samples && !resumed {
		return false
	}
	s.endSilence(now)
	return true
}

// progressed takes in that something came of a request on a worker.
func (s *suspicion) progressed(now time.Time) {
	s.steppedAt, s.hangs = now, 0
	if s.suspected() && s.forSilence {
		s.endSilence(now)
	}
}

// endSilence ends a suspicion for silence. If it was soon over, the worker was slow and
// did not hang: it is given longer from now on.
func (s *suspicion) endSilence(now time.Time) {
	if now.Sub(s.since) < slowAtMost {
		s.patience, s.wentWell = min(2*max(s.patience, 1), maxPatience), 0
	}
	s.since, s.until, s.why = time.Time{}, time.Time{}, ""
}

// served takes in that a request went well on a worker.
func (s *suspicion) served(now time.Time) {
	s.progressed(now)
	s.contradictions = 0
	s.since, s.until, s.why = time.Time{}, time.Time{}, ""
	if s.wentWell++; s.wentWell >= patienceRegains && s.patience > 1 {
		s.patience, s.wentWell = s.patience/2, 0
	}
}

// Progressed is when a worker last showed that it computes: its report counted more
// steps, or something came of a request. Zero: never, or it is not known.
func (rt *Router) Progressed(ref Ref) time.Time {
	if w := rt.worker(ref); w != nil {
		return w.steppedAt
	}
	return time.Time{}
}
