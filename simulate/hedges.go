package simulate

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/joining"
)

// Hedges is what became of the second tries of requests whose first token was late.
type Hedges struct {
	// Won had their first token before the first try, or outlived it. Lost did not. Ended are those
	// whose request ended before either had a first token.
	Won, Lost, Ended int
	// Refused were asked for and not begun.
	Refused int
	// Wasted is for how long workers computed prompts whose first token another try had before.
	Wasted time.Duration
}

// Hedges is what became of second tries so far.
func (c *Cluster) Hedges() Hedges { return c.hedges }

func (h *Hedges) released(a joining.Release) {
	if a.Lost {
		h.Wasted += a.Computed
	}
	switch {
	case a.Beside && a.Hedge:
		h.Lost++
	case a.Beside:
		h.Won++
	case a.Lost:
		h.Ended++
	}
}
