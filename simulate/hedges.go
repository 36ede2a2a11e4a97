package simulate

import "github.com/tandem-serving/tandem/pkg/joining"

// Hedges counts hedged attempts of requests whose first token was late, by their outcome.
type Hedges struct {
	// Won: the hedged attempt had its first token first, or outlived the first attempt. Lost: it did
	// not. Ended: the request ended before either had a first token.
	Won, Lost, Ended int
	// Refused: the router began no hedged attempt.
	Refused int
}

// Hedges counts hedged attempts so far.
func (c *Cluster) Hedges() Hedges { return c.hedges }

func (h *Hedges) released(a joining.Release) {
	switch a.Hedged() {
	case joining.HedgeWon:
		h.Won++
	case joining.HedgeLost:
		h.Lost++
	case joining.HedgeEnded:
		h.Ended++
	}
}
