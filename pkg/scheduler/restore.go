package scheduler

import "errors"

// restoreShare is the share of the pool, one in so many blocks, that several
// Restores may be filling at a time: transfers that hang keep theirs from all. One
// alone may fill more.
const restoreShare = 4

// valid says whether a request makes sense by itself.
func (r *Request) valid(blockTokens int) bool {
	if len(r.Tokens) == 0 {
		return false
	}
	switch r.Kind {
	case Full, PrefillOnly, Receive:
		return r.Generated >= 0 && r.Generated < len(r.Tokens) && r.MaxTokens > r.Generated
	case Restore:
		return r.Generated == 0 && r.Spare >= 0 && len(r.Tokens)%blockTokens == 0
	}
	return false
}

// restore takes a Restore sequence at once or not at all: it is worth its blocks
// only while nobody waits for them. It counts as one that overtook all who wait.
func (s *Scheduler) restore(q *sequence) bool {
	if s.starved() || len(s.waiting) > 0 && s.waiting[0].aged {
		return false
	}
	s.growthOfAll = s.reserveForGrowth()
	arriving, spare := s.restoring()
	q.hashes = s.hashesOf(&q.request)
	// What is cached of it and held by others takes nothing.
	if s.pool.Available()-s.pool.Need(q.request.Salt, q.hashes, q.request.Tokens, q.blocksNeeded) < spare+q.request.Spare+s.growthOfAll {
		return false
	}
	lacking := q.blocksNeeded - s.pool.Cached(q.request.Salt, q.hashes, q.request.Tokens)
	if arriving > 0 && (arriving+lacking)*restoreShare > s.pool.Total() {
		return false
	}
	if !s.acquire(q) {
		return false
	}
	s.sequences[q.request.ID] = q
	s.overtake(s.waiting, q)
	s.receive(q)
	return true
}

// restoring is how many blocks transfers of Restores may write, and how many all
// Restores that are not released have to leave to others: what one left, for the
// request that it is for, no later one takes.
func (s *Scheduler) restoring() (arriving, spare int) {
	for _, q := range s.sequences {
		if q.request.Kind != Restore {
			continue
		}
		spare += q.request.Spare
		if !q.kvArrived {
			arriving += len(q.ownBlocks())
		}
	}
	return arriving, spare
}

// restored publishes the blocks of a Restore sequence and ends it. They are held
// until TransferDone, and are not saved: they came from where they would go.
func (s *Scheduler) restored(q *sequence, from string) {
	s.pool.Arrived(q.ownBlocks())
	if q.unshared {
		s.finish(q, Failed, errors.New("scheduler: restored KV is approximate; fetch it unencoded"))
		return
	}
	q.computed = len(q.request.Tokens)
	s.setOrigin(q, from)
	s.publish(q)
	s.pool.Saved(q.table)
	q.phase, q.inTransfer = ready, true // nothing writes the blocks any more
	s.finish(q, Restored, nil)
}
