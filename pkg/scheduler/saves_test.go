package scheduler_test

import (
	"slices"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// saves are those that have begun and not ended, as the driver knows them.
type saves struct {
	limit int
	open  map[scheduler.SaveID]*pinned
	begun int
}

type pinned struct {
	save    scheduler.Save
	stopped bool
}

// blocks are those that are read for saves.
func (s *saves) blocks() []kvcache.BlockID {
	var all []kvcache.BlockID
	for _, p := range s.open {
		all = append(all, p.save.Blocks...)
	}
	return all
}

// held counts them, each once.
func (s *saves) held() int {
	all := s.blocks()
	slices.Sort(all)
	return len(slices.Compact(all))
}

func (s *saves) allStopped() bool {
	for _, p := range s.open {
		if !p.stopped {
			return false
		}
	}
	return true
}

func (w *world) saveBegins(a scheduler.Save) {
	if w.draining || w.saves.open[a.ID] != nil || len(w.saves.open) >= w.saves.limit || len(a.Blocks) == 0 {
		w.t.Fatalf("save %d of %d blocks begins beside %d of %d", a.ID, len(a.Blocks), len(w.saves.open), w.saves.limit)
	}
	hashes := kvcache.PromptHashes("model", "class", a.Salt, a.Tokens, w.config.BlockTokens)
	for _, hash := range hashes {
		if !w.cache[hash] && !slices.ContainsFunc(w.actions, func(other scheduler.Action) bool {
			changed, is := other.(*scheduler.BlocksChanged)
			return is && slices.Contains(changed.Stored, hash)
		}) {
			w.t.Fatalf("save %d: %x is not in the cache", a.ID, hash)
		}
	}
	w.saves.begun++
	w.saves.open[a.ID] = &pinned{save: a}
	w.checkSave(a)
}

// checkSave looks whether the blocks hold the KV of the tokens.
func (w *world) checkSave(a scheduler.Save) {
	want, _ := alone(a.Tokens, 0, 0, 0, nil)
	if got := w.pages.read(a.Blocks, len(a.Tokens)); len(a.Tokens) != len(a.Blocks)*w.config.BlockTokens || !sameUnlessSpoilt(got, want) {
		w.t.Fatalf("save %d: the blocks hold the KV of other tokens", a.ID)
	}
}

func (w *world) saveStops(a scheduler.StopSave) {
	p := w.saves.open[a.ID]
	if p == nil || p.stopped {
		w.t.Fatalf("save %d is stopped twice, or is none", a.ID)
	}
	p.stopped = true
}

func (w *world) saveDone(id scheduler.SaveID, saved bool) {
	save := w.saves.open[id].save
	w.checkSave(save) // it was read until now
	delete(w.saves.open, id)
	if slices.Contains(w.pages.read(save.Blocks, len(save.Tokens)), notFinite) {
		for _, block := range save.Blocks {
			w.spoilt[block] = true
		}
		w.handle(scheduler.SaveDone{ID: id, NotFinite: true})
		return
	}
	w.handle(scheduler.SaveDone{ID: id, Saved: saved})
}

// endSave ends one save that has not ended.
func (w *world) endSave() bool {
	for id := range w.saves.open {
		w.saveDone(id, true)
		return true
	}
	return false
}

func (m *machine) limitSaves(t *rapid.T) {
	m.saves.limit = rapid.IntRange(0, 3).Draw(t, "limit")
	m.handle(scheduler.SaveLimit{Saves: m.saves.limit, Anew: rapid.Bool().Draw(t, "anew")})
}

func (m *machine) saveDoneAny(t *rapid.T) {
	var open []scheduler.SaveID
	for id := range m.saves.open {
		open = append(open, id)
	}
	if len(open) == 0 {
		t.Skip("nothing is saved")
	}
	slices.Sort(open)
	m.saveDone(rapid.SampledFrom(open).Draw(t, "save"), rapid.Bool().Draw(t, "saved"))
}

func (m *machine) restoredUsed(t *rapid.T) {
	l := m.pick(t, func(l *life) bool {
		return l.request.Kind == scheduler.Restore && l.arrived && !l.drained
	})
	m.transferDone(l)
	if !l.released {
		t.Fatalf("%d: what was restored is not given back", l.request.ID)
	}
}
