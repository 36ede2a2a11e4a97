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

// save begins as many saves as there may be. The blocks that are read for one
// cannot be evicted meanwhile, so none begins while somebody waits for blocks.
func (s *Scheduler) save() {
	for len(s.saves) < s.saveLimit && !s.draining && !s.starved() {
		stats := s.pool.Stats()
		if (stats.Free+stats.Cached-stats.Unoffered)*saveBelow >= stats.Total {
			return
		}
		nomination, ok := s.pool.Nominate()
		if !ok {
			return
		}
		s.lastSave++
		s.saves = append(s.saves, &save{id: s.lastSave, blocks: nomination.Blocks})
		s.act(Save{ID: s.lastSave, Nomination: nomination})
	}
}

func (s *Scheduler) saveDone(e SaveDone) {
	i := slices.IndexFunc(s.saves, func(saved *save) bool { return saved.id == e.ID })
	if i < 0 {
		return
	}
	saved := s.saves[i]
	s.saves = slices.Delete(s.saves, i, i+1)
	if e.Saved {
		s.pool.Saved(saved.blocks)
	}
	s.pool.Unpin(saved.blocks)
	s.freed++
}

// starved says whether somebody waits for blocks that are not to be had now.
func (s *Scheduler) starved() bool {
	for _, q := range s.waiting {
		if q.triedAt == s.freed+1 {
			return true
		}
	}
	return false
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
