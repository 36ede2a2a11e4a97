package speculation

// Acceptance is how often drafts were right: of all sequences of a worker, or of one. It tells
// matches apart by how many tokens were the same.
type Acceptance struct{ by [LongestMatch + 1]rate }

// rate is a share, of which what is longer ago counts less.
type rate struct{ right, all float64 }

const (
	// firstAcceptance is taken of a match before any draft was verified, as if firstDrafts had
	// been.
	firstAcceptance = 0.5
	firstDrafts     = 2
	// keepOwn and keepAll are what a draft counts for after another one, of the same sequence
	// and of all: about the last 16 and 256 count.
	keepOwn = 1 - 1.0/16
	keepAll = 1 - 1.0/256
)

// observe takes the outcome of drafts of which the first so many were right. Those behind one
// that was wrong say nothing.
func (r *rate) observe(drafts, right int, keep float64) {
	for i := range min(right+1, drafts) {
		r.right, r.all = r.right*keep, r.all*keep+1
		if i < right {
			r.right++
		}
	}
}

func (r *rate) share(expected float64) float64 {
	return (r.right + expected*firstDrafts) / (r.all + firstDrafts)
}

// OfAll is the Acceptance over the sequences of a worker, which Verified and Of are given: a new
// sequence is taken to be like those before it.
type OfAll struct{ Acceptance }

// Verified takes the outcome of drafts after a match of so many tokens.
func (a *Acceptance) Verified(all *OfAll, matched, drafts, right int) {
	a.by[matched].observe(drafts, right, keepOwn)
	all.by[matched].observe(drafts, right, keepAll)
}

// Of is the probability that a draft after a match of so many tokens is right, if those before
// it are.
func (a *Acceptance) Of(all *OfAll, matched int) float64 {
	return a.by[matched].share(all.by[matched].share(firstAcceptance))
}

// Trial tries a draft now and then where none is worth it, so that what has changed is found
// out: the longer in vain the more rarely.
type Trial struct{ apart, waited int }

const (
	leastApart = 16
	mostApart  = 256
)

// Due is asked in each step in which a sequence could have drafts and gets none, and says
// whether it should have one all the same.
func (t *Trial) Due() bool {
	t.waited++
	return t.waited >= max(t.apart, leastApart)
}

// Tried takes the outcome of any drafts.
func (t *Trial) Tried(right bool) {
	t.waited = 0
	if t.apart = min(2*max(t.apart, leastApart), mostApart); right {
		t.apart = leastApart
	}
}

// Budget is the time that trials of all sequences may cost: a share of that of all steps.
type Budget struct{ ms float64 }

const (
	trialShare = 1.0 / 128
	mostTrials = 4 // that are saved up
)

// Step adds a step that takes so long without drafts, where a trial would cost so much.
func (b *Budget) Step(aloneMs, trialMs float64) {
	b.ms = min(b.ms+aloneMs*trialShare, mostTrials*max(trialMs, 0))
}

// Spend takes what a trial costs, if that is there.
func (b *Budget) Spend(trialMs float64) bool {
	if trialMs > b.ms {
		return false
	}
	b.ms -= max(trialMs, 0)
	return true
}

// Charge takes what a trial cost more than was spent.
func (b *Budget) Charge(ms float64) { b.ms -= max(ms, 0) }

// Window is how many drafts a sequence may have: it begins with few, has more after those that
// were all right, and after a wrong one no more than were right. Texts that repeat do so for a while,
// which a mean does not say. The zero Window is ready.
type Window struct{ size int }

const firstWindow = 2

// Size is the most drafts now.
func (w *Window) Size() int {
	if w.size == 0 {
		return firstWindow
	}
	return w.size
}

// Verified takes the outcome of drafts.
func (w *Window) Verified(drafts, right int) {
	if right == drafts {
		w.size = max(w.Size(), min(2*drafts, mostWindow))
	} else {
		w.size = max(right, 1)
	}
}

const mostWindow = 64
