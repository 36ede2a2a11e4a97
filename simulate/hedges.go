package simulate

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/joining"
)

// Hedges counts hedged attempts of requests whose first token was late, by their outcome.
type Hedges struct {
	// Won: the hedged attempt had its first token first, or outlived the first attempt. Lost: it did
	// not. Ended: the request ended before either had a first token.
	Won, Lost, Ended int
	// Refused: the router began no hedged attempt.
	Refused int
	// Wasted is the time that workers spent on prompts of attempts that lost.
	Wasted time.Duration
}

// Hedges counts hedged attempts so far.
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
