package workload

import (
	"errors"
)

// Warner is a Source that can say what it had to change or leave out so far, in
// sentences. Safe for concurrent use. Those of Spec.New are Warners.
type Warner interface {
	Warnings() []string
}

// New begins a run. The Spec must be valid, and stay as it is while sources are in
// use. A replayed trace is a file that is open: if the source is an io.Closer,
// close it when no more is asked of it.
func (s *Spec) New(p Params) (Source, error) {
	if s.prose == nil {
		return nil, errors.New("workload: Validate comes before New")
	}
	if err := p.validate(s); err != nil {
		return nil, err
	}
	m, err := newMaker(s, p)
	if err != nil {
		return nil, err
	}
	a := &arrivals{
		random: random(repeated(s.Seed, p.Repeat), forArrivals, 0, 0), process: s.Arrival,
		rate: p.Rate, from: s.RampFrom, shape: s.Burstiness,
		until: p.Duration.Seconds(), closed: p.Concurrency > 0,
	}
	if s.replays() {
		return newReplay(m, a, p)
	}
	return newSynthetic(m, a), nil
}
