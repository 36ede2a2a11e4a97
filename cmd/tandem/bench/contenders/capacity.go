package contenders

import (
	"cmp"
	"context"
	"fmt"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// CapacityOptions say how to search for capacities.
type CapacityOptions struct {
	// Load is what is sent in a step, with its SLO; its Rate and Sweep are not used.
	Load loadtest.Config
	// Carry are the bounds that requests ask of the router.
	Carry Bounds
	// Start is the rate that the first round begins with, requests a second.
	Start float64
	// Rounds is how often each capacity is searched for, each time with other arrivals,
	// which are the same for all contenders.
	Rounds int
}

// Capacities is what was found.
type Capacities struct {
	// Rounds has, by round and contender, the highest rate at which search.Share of the
	// requests met the SLO; 0: there was none. All are whole.
	Rounds [][]float64
	// Tries in the order in which they were made.
	Tries    []Try
	Outcomes []*loadtest.Outcome
	// Interrupted: it ended early.
	Interrupted bool
}

// Try is one rate, tried by one contender. Its JSON is public.
type Try struct {
	Contender string `json:"contender"`
	// Round counts from 1.
	Round      int     `json:"round"`
	Rate       float64 `json:"rate"`
	Attainment float64 `json:"slo_attainment"`
	Goodput    float64 `json:"goodput_rps"`
	// Client says why the client's side limited the step; empty: it did not.
	Client string `json:"client_limit,omitempty"`
}

const (
	// The first round's search brackets the capacity by steps of firstFactor, the others, which
	// begin with the last round's result, by steps of nextFactor.
	firstFactor, nextFactor = 2, 1.1
)

// Capacities searches for the capacity of each contender, in turns at each step of the
// searches. An end of ctx ends it early, with the rounds that are whole; if there is none
// the error is ErrInterrupted. Another error comes with the rounds that were whole before it, nil if there
// are none.
func (s *Set) Capacities(ctx context.Context, o CapacityOptions, progress loadtest.Progress) (*Capacities, error) {
	if err := s.open(ctx, o.Load, o.Carry, progress); err != nil {
		return nil, err
	}
	found := &Capacities{}
	var err error
	for round := 0; round < max(o.Rounds, 1) && !found.Interrupted; round++ {
		err = found.round(ctx, s.all, round, o.Start)
	}
	if len(found.Rounds) == 0 {
		return nil, cmp.Or(err, ErrInterrupted)
	}
	found.Outcomes = s.outcomes()
	return found, err
}

// round searches once for the capacity of each.
func (c *Capacities) round(ctx context.Context, all []*running, round int, start float64) error {
	searches := make([]*search.Search, len(all))
	for i, r := range all {
		r.session.Round(round)
		searches[i] = search.NewCapacity(start, firstFactor, search.Fine)
		if round > 0 && c.Rounds[round-1][i] > 0 {
			searches[i] = search.NewCapacity(c.Rounds[round-1][i], nextFactor, search.Fine)
		}
	}
	for step, left := 0, true; left; step++ {
		left = false
		for _, i := range turn(len(all), round+step) {
			rate, more := searches[i].Next()
			if !more {
				continue
			}
			left = true
			t, whole, err := all[i].take(ctx, fmt.Sprintf("round %d, %.4g requests/s", round+1, rate), rate)
			if err != nil || !whole {
				c.Interrupted = true
				return err
			}
			f := &t.figures
			searches[i].Done(search.Step{Rate: rate, Summary: &f.Summary, Client: f.Limit()})
			c.Tries = append(c.Tries, Try{
				Contender: all[i].Name, Round: round + 1, Rate: rate, Attainment: f.SLOAttainment, Goodput: f.Goodput, Client: f.Limit(),
			})
		}
	}
	rates := make([]float64, len(all))
	for i, s := range searches {
		if found := s.Result().MaxRate; found != nil {
			rates[i] = *found
		}
	}
	c.Rounds = append(c.Rounds, rates)
	return nil
}
