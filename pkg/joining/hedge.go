package joining

import (
	"slices"
	"time"
)

// A request whose first token is late is hedged: a hedged attempt, complete in itself, runs beside the
// first one on other workers. The first of the two that has a first token goes on, and the other is
// closed and released. Neither has delivered anything until then, so the client sees one attempt; and
// tokens are drawn by offset, so both would have been the same. If one of the two fails, the other
// goes on alone. A request is hedged once, and only before its first token.

// rival is the other of two attempts. Which of the two is Join.attempt changes: it is the one that the
// last event was of.
type rival struct {
	number  int
	attempt attempt
}

// hedgeSuffix is what the hedged attempt's id for the policy ends with. No id of a client's has a space
// (rpc.ValidRequestID), so no other request has such an id.
const hedgeSuffix = " hedge"

// id is what the policy calls the present attempt.
func (j *Join) id() string {
	if j.attempt.hedge {
		return j.p.ID + hedgeSuffix
	}
	return j.p.ID
}

// swap makes the rival the present attempt.
func (j *Join) swap() {
	j.rival.number, j.number = j.number, j.rival.number
	j.rival.attempt, j.attempt = j.attempt, j.rival.attempt
}

// turnTo makes the attempt of an event the present one, if it is one of two.
func (j *Join) turnTo(attempt int) {
	if j.rival != nil && attempt == j.rival.number {
		j.swap()
	}
}

// hedgeDue is when the present attempt is to be hedged; zero: it is not.
func (j *Join) hedgeDue() time.Time {
	t := &j.attempt
	if j.hedged || j.hedgeAsked != 0 || t.HedgeAfter <= 0 || t.first || len(j.tokens) > 0 || t.ended != nil || t.firstEnd != nil {
		return time.Time{}
	}
	return t.at.Add(max(t.HedgeAfter, t.hedgeAgain))
}

// notHedged takes in that there is no second attempt now: it is asked for again when the first one has
// waited for twice as long.
func (j *Join) notHedged(now time.Time) { j.attempt.hedgeAgain = 2 * now.Sub(j.attempt.at) }

// hedge asks for a hedged attempt, on other workers than the one whose turn it is.
func (j *Join) hedge(now time.Time) {
	t := &j.attempt
	late := t.Decode
	if t.disaggregated && t.reserved {
		late = t.Prefill
	}
	j.attempts++
	j.hedgeAsked = j.attempts
	j.do(AskHedge{
		Attempt: j.attempts, ID: j.p.ID + hedgeSuffix, Late: late, After: now.Sub(t.at), Again: t.hedgeAgain > 0, Generated: slices.Clone(j.tokens),
		Failures: slices.Clone(j.failures), Version: j.version,
	})
}

// answersHedge reports whether a hedged attempt may begin by an answer of the policy: it was asked
// for, and the first one still waits.
func (j *Join) answersHedge(attempt int) bool {
	asked := j.hedgeAsked != 0 && attempt == j.hedgeAsked
	if asked {
		j.hedgeAsked = 0
	}
	return asked && j.phase == running && !j.attempt.first
}

// wins ends the other attempt, because the present one has its first token or because the request
// ends.
func (j *Join) wins(now time.Time) {
	if j.rival == nil {
		return
	}
	j.swap()
	j.closeAll()
	j.do(Release{Attempt: j.number, ID: j.id(), Lost: true, Hedge: j.attempt.hedge, Beside: j.phase != finished, Computed: j.computedFor(now)})
	j.goOn()
}

// goOn goes on with the rival alone.
func (j *Join) goOn() {
	j.number, j.attempt, j.rival = j.rival.number, j.rival.attempt, nil
	j.released = false
}

// computedFor is for how long a worker has computed the prompt of the present attempt.
func (j *Join) computedFor(now time.Time) time.Duration {
	began := j.attempt.startedAt
	if !j.attempt.disaggregated {
		began = j.attempt.admittedAt
	}
	if began.IsZero() {
		return 0
	}
	return now.Sub(began)
}

// orRival is the earlier of what due says of the present attempt and of its rival.
func (j *Join) orRival(due func() time.Time) time.Time {
	at := due()
	if j.rival == nil {
		return at
	}
	j.swap()
	other := due()
	j.swap()
	if at.IsZero() || !other.IsZero() && other.Before(at) {
		return other
	}
	return at
}
