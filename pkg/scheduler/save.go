package scheduler

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// saveBelow is the share of the pool, one in so many blocks, that should be free
// or cached and offered to be saved already: below it, cached prefixes are saved.
const saveBelow = 2

// save is a Save that has no SaveDone yet.
type save struct {
	id      SaveID
	blocks  []kvcache.BlockID // one reference each
	stopped bool              // StopSave was said
}

// save begins as many saves as there may be: of those blocks that would be evicted
// first, then of those that sequences hold, which are evicted as soon as they are let
// go where blocks are so short. Each is drawn when its save begins, so that none that is
// gone is ever waited for. The blocks that are read for one cannot be evicted
// meanwhile, so none begins while somebody waits who would have enough without them.
func (s *Scheduler) save() {
	for len(s.saves) < s.saveLimit && !s.draining && !s.blockedBySaves() {
		stats := s.pool.Stats()
		if (stats.Free+stats.Cached-stats.Unoffered)*saveBelow >= stats.Total {
			return
		}
		candidate, ok := s.pool.NextToSave()
		if !ok {
			candidate, ok = s.pool.NextHeldToSave()
		}
		if !ok {
			return
		}
		s.lastSave++
		s.saves = append(s.saves, &save{id: s.lastSave, blocks: candidate.Blocks})
		s.act(Save{ID: s.lastSave, SaveCandidate: candidate})
	}
}

func (s *Scheduler) saveDone(e SaveDone) {
	i := slices.IndexFunc(s.saves, func(saved *save) bool { return saved.id == e.ID })
	if i < 0 {
		return
	}
	saved := s.saves[i]
	s.saves = slices.Delete(s.saves, i, i+1)
	switch {
	case e.NotFinite:
		s.pool.Invalidate(saved.blocks)
	case e.Saved:
		s.pool.Saved(saved.blocks)
	default:
		s.pool.Unsaved(saved.blocks)
	}
	s.pool.Unpin(saved.blocks)
	s.freed++
}

// stopSavesFor stops the saves if q, which needs so many blocks and does not fit, would fit
// without them. Otherwise they go on: q waits for other sequences anyway.
func (s *Scheduler) stopSavesFor(q *sequence, need int) {
	q.blockedBySaves = false
	if len(s.saves) == 0 {
		return
	}
	s.pinned = s.pinned[:0]
	for _, saved := range s.saves {
		s.pinned = append(s.pinned, saved.blocks...)
	}
	slices.Sort(s.pinned)
	if need <= s.pool.Available()+s.pool.Pinned(slices.Compact(s.pinned)) {
		q.blockedBySaves = true
		s.stopSaves()
	}
}

// blockedBySaves says whether a sequence waits for blocks that are read for saves, or may be. It
// counts until it has tried again, whatever has ended meanwhile: else the next save would take the
// blocks.
func (s *Scheduler) blockedBySaves() bool {
	return slices.ContainsFunc(s.waiting, func(q *sequence) bool { return q.blockedBySaves }) ||
		slices.ContainsFunc(s.running, func(q *sequence) bool { return q.stalled })
}

// starved says whether somebody waits for blocks that are not to be had now.
func (s *Scheduler) starved() bool {
	return slices.ContainsFunc(s.waiting, func(q *sequence) bool { return q.triedAt == s.freed+1 })
}

// stopSaves asks for the blocks that are read for saves.
func (s *Scheduler) stopSaves() {
	for _, saved := range s.saves {
		if !saved.stopped {
			saved.stopped = true
			s.act(StopSave{ID: saved.id})
		}
	}
}

// Cached is how many leading blocks of tokens are in the prefix cache, of those
// that hashes, their block hashes under salt, name. It changes nothing.
func (s *Scheduler) Cached(salt string, hashes []kvcache.Hash, tokens []int32) int {
	return s.pool.Cached(salt, hashes, tokens)
}
