package scheduler

import "slices"

// enqueue puts a sequence where it belongs in the queue.
func (s *Scheduler) enqueue(q *sequence) {
	tokens := q.request.Tokens
	q.setLeft(len(tokens) - s.pool.Cached(q.request.Salt, q.hashes, tokens)*s.config.BlockTokens)
	i, _ := slices.BinarySearchFunc(s.waiting, q, before)
	s.waiting = slices.Insert(s.waiting, i, q)
}

// reserve gives blocks to Receive sequences. They need no place in the batch
// yet, and the prefill elsewhere begins when they have them, so it happens at
// every event and not only between steps.
func (s *Scheduler) reserve() {
	s.sumExpectedGrowth()
	for i := 0; i < len(s.waiting); {
		q := s.waiting[i]
		switch {
		case q.request.Kind == Receive && s.acquire(q):
			s.admit(i)
			s.receive(q)
			i = 0 // somebody may have aged
		case q.aged:
			return
		default:
			i++
		}
	}
}

// receive has a sequence that has its blocks wait for their KV.
func (s *Scheduler) receive(q *sequence) {
	q.phase, q.inTransfer = receiving, true
	s.receiving = append(s.receiving, q)
	s.pool.Reserve(q.ownBlocks())
	s.act(Reserved{ID: q.request.ID, Blocks: q.table, CachedTokens: q.cached * s.config.BlockTokens})
}

// sumExpectedGrowth sums up, before sequences are admitted, how much those that have blocks are
// expected to grow.
func (s *Scheduler) sumExpectedGrowth() {
	if s.growthOfAll = 0; len(s.waiting) > 0 {
		s.growthOfAll = s.reserveForGrowth()
	}
}

// outputReserve is the most tokens of its output that a sequence takes memory for when it
// begins: what requests may generate is often their whole context, and most of that is
// never used.
const outputReserve = 4096

// acquire gets a sequence the blocks that it begins with, if enough are left for what
// it and the others are expected to grow by.
func (s *Scheduler) acquire(q *sequence) bool {
	if q.triedAt == s.freed+1 {
		return false // nothing changed since it last did not fit
	}
	first, growth := q.firstBlocks(s.config.BlockTokens), s.expectedGrowth(q)
	need := s.pool.Need(q.request.Salt, q.hashes, q.request.Tokens, first)
	if need += s.growthOfAll + growth; need > s.pool.Available() {
		q.triedAt = s.freed + 1
		s.stopSavesFor(q, need)
		return false
	}
	s.growthOfAll += growth
	table, cached, chain, _ := s.pool.Acquire(q.request.Salt, q.hashes, q.request.Tokens, first)
	q.table, q.cached, q.chain = slices.Grow(table, q.blocksNeeded-first), cached, chain
	if q.grows() {
		q.output = slices.Grow(q.output, min(q.totalTokens-q.length(), outputReserve)) // so that few steps have to
	}
	if !q.lookedUp && q.request.Kind != Restore && q.request.Pooling == nil && !q.request.PromptLogprobs {
		q.lookedUp = true
		s.pool.CountLookup(len(q.request.Tokens), cached*s.config.BlockTokens-q.request.Fetched)
	}
	q.published = cached
	q.computed = cached * s.config.BlockTokens
	return true
}

// admit takes the i-th of the queue out of it. Who came earlier was overtaken.
func (s *Scheduler) admit(i int) {
	taken := s.waiting[i]
	s.waiting = slices.Delete(s.waiting, i, i+1)
	s.overtake(s.waiting, taken)
}

// overtake counts that a sequence was taken before those of a list, in the order of before, that
// came earlier.
func (s *Scheduler) overtake(list []*sequence, taken *sequence) {
	aged := false
	for _, q := range list {
		if q.ticket < taken.ticket {
			q.overtaken++
			if q.overtaken >= s.config.MaxOvertakes && !q.aged {
				q.aged, aged = true, true
			}
		}
	}
	if aged {
		slices.SortFunc(list, before)
	}
}
