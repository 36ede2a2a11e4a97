package speculation

import "math"

// StepTime is what a step takes, as far as drafts change it.
type StepTime struct {
	// AloneMs is the time without drafts, and DraftMs what each adds, in milliseconds.
	AloneMs, DraftMs float64
}

// Candidate is a sequence of a step that could have drafts.
type Candidate struct {
	// Acceptance is the probability that a draft is right, if those before it are.
	Acceptance float64
	// Most is the most drafts that it can have.
	Most int
	// Drafts is how many it gets.
	Drafts int
}

// Lengths gives the candidates of a step, of which all sequences together get so many tokens
// without drafts, as many drafts as give the most tokens a second. The j-th draft of a sequence
// gives acceptance^j tokens more, and is worth it if these are more than what the step would
// give in the time that the draft takes. That rate grows with the drafts, so it is looked for
// twice.
func Lengths(candidates []Candidate, sequences int, t StepTime) {
	alone := float64(sequences) / max(t.AloneMs, 1e-9)
	rate := alone
	for range 2 {
		tokens, ms := float64(sequences), t.AloneMs
		for i := range candidates {
			c := &candidates[i]
			c.Drafts = worth(c.Acceptance, rate*t.DraftMs, c.Most)
			tokens += expected(c.Acceptance, c.Drafts)
			ms += t.DraftMs * float64(c.Drafts)
		}
		rate = max(tokens/max(ms, 1e-9), alone)
	}
}

// worth is the last j, up to most, for which acceptance^j is above a threshold.
func worth(acceptance, threshold float64, most int) int {
	if acceptance <= threshold || most <= 0 {
		return 0
	}
	if acceptance >= 1 || threshold <= 0 {
		return most
	}
	// At most, before the conversion: a ratio can be larger than any int.
	return int(min(math.Log(threshold)/math.Log(acceptance), float64(most)))
}

// expected is how many tokens n drafts give.
func expected(acceptance float64, n int) float64 {
	var sum float64
	for p := acceptance; n > 0; n-- {
		sum += p
		p *= acceptance
	}
	return sum
}
