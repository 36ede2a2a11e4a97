package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// A sequence begins with the blocks of its prompt and of one token more, and takes
// another whenever it has filled its last. Whether there will be enough is forecast
// when one is admitted; where the forecast was wrong, somebody is preempted.

// forecast is which share of the tokens that it may generate a sequence does
// generate.
type forecast float64

// forecastWeight is how much of a forecast the last sequence to end makes up.
const forecastWeight = 1.0 / 16

// observe takes what a sequence that ended by itself did generate, of what it might.
func (f *forecast) observe(generated, most int) {
	*f += (forecast(generated)/forecast(max(most, 1)) - *f) * forecastWeight
}

// wrong takes a preemption: until others have ended, all of it is expected.
func (f *forecast) wrong() { *f = 1 }

// of is how many of the most tokens that a sequence might still generate it will.
func (f forecast) of(most int) int { return min(int(float64(f)*float64(most))+1, most) }

// grows says whether a sequence takes blocks as it generates.
func (q *sequence) grows() bool { return q.request.Kind == Full || q.request.Kind == Receive }

// firstBlocks is what a sequence begins with.
func (q *sequence) firstBlocks(blockTokens int) int {
	if !q.grows() {
		return q.blocksNeeded
	}
	return min(kvcache.BlocksFor(len(q.request.Tokens)+1, blockTokens), q.blocksNeeded)
}

// expectedGrowth is how many blocks more than it has, or begins with, a sequence is expected
// to need.
func (s *Scheduler) expectedGrowth(q *sequence) int {
	if !q.grows() {
		return 0
	}
	has := len(q.table)
	if q.table == nil {
		has = q.firstBlocks(s.config.BlockTokens)
	}
	// The generated tokens are part of what it might generate: one that has gone past
	// its forecast is expected to go on for that share of the rest.
	length := q.length()
	expected := min(length+s.forecast.of(q.totalTokens-length), q.totalTokens) - 1
	return max(min(kvcache.BlocksFor(expected, s.config.BlockTokens), q.blocksNeeded)-has, 0)
}

// reserveForGrowth is how many blocks those who have some are expected to need
// besides.
func (s *Scheduler) reserveForGrowth() int {
	n := 0
	for _, q := range s.running {
		n += s.expectedGrowth(q)
	}
	for _, q := range s.arrived {
		n += s.expectedGrowth(q)
	}
	for _, q := range s.receiving {
		n += s.expectedGrowth(q)
	}
	return n
}

// grow gives each sequence that decodes the block that its next token needs: the most
// urgent first, and where there is none, from who is least. If that is itself, it waits
// for the others with what it has, but not if it has a place that one of them needs.
func (s *Scheduler) grow(now time.Time) {
	s.growing = s.growing[:0]
	for _, q := range s.running {
		q.stalled = false
		if q.phase == decoding && q.computed >= len(q.table)*s.config.BlockTokens {
			s.growing = append(s.growing, q)
		}
	}
	slices.SortFunc(s.growing, moreUrgent)
	for _, q := range s.growing {
		for q.phase == decoding && !s.lengthen(q) {
			if s.reclaim() {
				continue
			}
			victim := s.leastUrgent()
			if victim == q && (len(s.arrived) == 0 || len(s.running) < s.slots) {
				q.stalled = true
				s.stopSaves()
				break
			}
			s.preempt(now, victim)
		}
	}
	clear(s.growing)
}

// lengthen adds a block to a sequence's table.
func (s *Scheduler) lengthen(q *sequence) bool {
	table, ok := s.pool.Allocate(q.table, 1)
	q.table = table
	return ok
}

// moreUrgent orders those that have blocks: who comes first keeps them.
func moreUrgent(a, b *sequence) int {
	return cmp.Or(cmp.Compare(b.request.Priority, a.request.Priority), cmp.Compare(a.ticket, b.ticket))
}

// leastUrgent is who is preempted first, nil if nobody can be. What a transfer reads or
// writes cannot be given away.
func (s *Scheduler) leastUrgent() *sequence {
	var last *sequence
	for _, list := range [][]*sequence{s.running, s.arrived} {
		for _, q := range list {
			if q.grows() && (last == nil || moreUrgent(q, last) > 0) {
				last = q
			}
		}
	}
	return last
}

// preempt takes all blocks from a sequence, which goes back to the front of the queue:
// nobody overtakes it. What was computed stays in the prefix cache until others need its
// place; what is gone by then is computed again, to the same bits, unless they came
// approximate.
func (s *Scheduler) preempt(now time.Time, q *sequence) {
	if q.phase == ready {
		s.arrived = without(s.arrived, q)
	} else {
		s.running = without(s.running, q)
	}
	s.act(Preempted{ID: q.request.ID})
	s.pool.Release(q.table)
	s.freed++
	s.forecast.wrong()

	r := &q.request
	if sampled := q.sampled(); len(sampled) > 0 {
		r.Tokens = slices.Concat(r.Tokens, sampled)
		r.Generated, r.Hashes = len(q.output), nil
	}
	r.Kind = Full // whatever it was, all that is left to do is here
	q.phase, q.since, q.kvArrived, q.stalled = waiting, now, false, false
	q.table, q.chain, q.cached, q.published, q.computed = nil, kvcache.Chain{}, 0, 0, 0
	q.unshared, q.received, q.from = r.Pooling != nil, 0, "" // what it computes from now on is its own
	q.overtaken, q.aged, q.skipped, q.triedAt = s.config.MaxOvertakes, true, 0, 0
	q.hashes = s.findable(q)
	s.enqueue(q)
}
