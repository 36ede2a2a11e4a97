package simulate

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/joining"
)

// Hedges counts second tries of requests whose first token was late, by their outcome.
type Hedges struct {
	// Won: the second try had its first token first, or outlived the first try. Lost: it did
	// not. Ended: the request ended before either had a first token.
	Won, Lost, Ended int
	// Refused: the router began no second try.
	Refused int
	// Wasted is the time that workers spent on prompts of tries that lost.
	Wasted time.Duration
}

// Hedges counts second tries so far.
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
