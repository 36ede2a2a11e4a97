package speculation

// Kind tells drafts apart by how likely they are.
type Kind uint8

const (
	// ByModel is the kind of drafts that a model makes.
	ByModel Kind = iota
	// Forced is the kind of drafts of a text that an output constraint forces.
	Forced
	// ForcedLast is that of the last of them, which may be part of a longer token.
	ForcedLast
	firstLookedUp

	shares = 6 // of votes that are told apart
	kinds  = firstLookedUp + longestMatch*shares
)

// lookedUp is the kind of a draft of Lookup: of how many tokens were the same at the best place, and of which share
// of the votes it has.
func lookedUp(same int, share float64) Kind {
	return firstLookedUp + Kind((same-1)*shares+min(int(share*shares), shares-1))
}

// OfAll is how often drafts of each kind were right, and all of them, over the sequences of a worker.
type OfAll struct {
	by  [kinds]rate
	any rate
}

// rate is a share, of which what is longer ago counts less.
type rate struct{ right, all float64 }

func (r *rate) observe(right float64) {
	r.right, r.all = r.right*keepAll+right, r.all*keepAll+1
}

// share is that of those observed and of firstDrafts more, of which so many are taken to have been right.
func (r *rate) share(expected float64) float64 {
	return (r.right + expected*firstDrafts) / (r.all + firstDrafts)
}

// Acceptance is how much more often the drafts of a sequence were right than those of others.
type Acceptance struct{ right, expected float64 }

const (
	// firstAcceptance is taken of drafts before any was verified, as if firstDrafts had been. Of a kind that is what
	// was found of all kinds.
	firstAcceptance = 0.5
	firstDrafts     = 2
	// ownDrafts of a sequence are taken to have been as right as expected.
	ownDrafts = 4
	// keepOwn and keepAll are what a draft counts for after another one, of the same sequence
	// and of all: about the last 32 and 256 count.
	keepOwn = 1 - 1.0/32
	keepAll = 1 - 1.0/256
)

func (o *OfAll) of(kind Kind) float64 { return o.by[kind].share(o.any.share(firstAcceptance)) }

// Of is the probability that a draft of a kind is right, if those before it are.
func (a *Acceptance) Of(all *OfAll, kind Kind) float64 {
	return min(all.of(kind)*(a.right+ownDrafts)/(a.expected+ownDrafts), 1)
}

// Verified takes the outcome of drafts, of which the first so many were right. Those behind one that was wrong
// say nothing.
func (a *Acceptance) Verified(all *OfAll, drafts []Kind, right int) {
	for i, kind := range drafts[:min(right+1, len(drafts))] {
		is := 0.0
		if i < right {
			is = 1
		}
		a.right, a.expected = a.right*keepOwn+is, a.expected*keepOwn+all.of(kind)
		all.by[kind].observe(is)
		all.any.observe(is)
	}
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
