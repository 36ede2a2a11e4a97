package scheduler_test

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// sender names who computes what transfers bring.
const sender = "another worker"

// failed checks what is said of a sequence that failed since its logits were not finite.
func (w *world) failed(l *life, a scheduler.Finished) bool {
	_, notNumbers := errors.AsType[*engine.NotFiniteError](a.Err)
	if !notNumbers {
		return a.NotFinite == nil
	}
	found := a.NotFinite
	if !slices.Contains(w.pages.read(found.Blocks, found.Tokens), notFinite) || len(found.Origins) != len(found.Blocks) {
		return false
	}
	for _, id := range found.Blocks {
		w.spoilt[id] = true
	}
	size, brought := w.config.BlockTokens, 0
	if l.arrived && !l.preempted {
		brought = len(l.request.Tokens)
	}
	for position := range found.Tokens {
		want := w.origins[found.Blocks[position/size]]
		if position < brought && position >= brought/size*size {
			want = sender
		}
		if found.Origin(position, size) != want {
			return false
		}
	}
	return true
}

// checkNotSpoilt looks for blocks that a sequence must not have got.
func (w *world) checkNotSpoilt(id scheduler.SequenceID, table []kvcache.BlockID) {
	w.t.Helper()
	for _, block := range table {
		if w.spoilt[block] {
			w.t.Fatalf("%d: got block %d, which is spoilt", id, block)
		}
	}
}

func (w *world) scrub(a scheduler.Scrub) {
	for _, id := range a.Blocks {
		if slices.Contains(w.scrubbing, id) {
			w.t.Fatalf("block %d is to be overwritten twice", id)
		}
		for _, l := range w.order {
			if !l.released && slices.Contains(l.table, id) {
				w.t.Fatalf("block %d of %d is to be overwritten", id, l.request.ID)
			}
		}
		w.spoilt[id] = true // or what was before it
		w.scrubbing = append(w.scrubbing, id)
	}
}

// scrubbed overwrites the first n blocks that are to be, and says whether there are any.
func (w *world) scrubbed(n int) bool {
	if n == 0 {
		return false
	}
	blocks := slices.Clone(w.scrubbing[:n])
	w.scrubbing = w.scrubbing[n:]
	for _, id := range blocks {
		clear(w.pages.kv[id])
		delete(w.spoilt, id)
	}
	w.handle(scheduler.Scrubbed{Blocks: blocks})
	return true
}

// spoilAny makes a position of a sequence no number, whoever else shares it.
func (m *machine) spoilAny(t *rapid.T) {
	if !rarely(t, 8) {
		t.Skip("not now")
	}
	l := m.pick(t, func(l *life) bool { return l.live() && l.table != nil && l.computed > 0 && !m.transferring(l) })
	position := rapid.IntRange(0, l.computed-1).Draw(t, "position")
	*m.pages.at(l.table, position) = notFinite
}

func (m *machine) scrubAny(t *rapid.T) {
	if len(m.scrubbing) == 0 {
		t.Skip("nothing to overwrite")
	}
	m.scrubbed(rapid.IntRange(1, len(m.scrubbing)).Draw(t, "blocks"))
}

// TestSpoiltSequenceFailsAlone: those beside it go on, nobody finds its prefix any more,
// and nobody gets its blocks before they were overwritten.
func TestSpoiltSequenceFailsAlone(t *testing.T) {
	w := newWorld(t, 12, standard)
	a := w.submit(scheduler.Request{ID: 1, Tokens: prompt(9), MaxTokens: 6})
	w.finishStep(1)
	b := w.submit(scheduler.Request{ID: 2, Tokens: prompt(9), MaxTokens: 6, Salt: "another"})
	w.finishStep(1)
	w.finishStep(1)
	if len(w.cache) != 4 {
		t.Fatalf("%d blocks in the cache", len(w.cache))
	}
	*w.pages.at(a.table, 2) = notFinite
	w.finishStep(1)
	if a.finished == nil || a.finished.NotFinite == nil || b.finished != nil {
		t.Fatalf("%+v and %+v", a.finished, b.finished)
	}
	if len(w.cache) != 2 || len(w.scrubbing) != len(a.table) {
		t.Errorf("%d blocks in the cache, %d of %d to be overwritten", len(w.cache), len(w.scrubbing), len(a.table))
	}
	again := w.submit(scheduler.Request{ID: 3, Tokens: prompt(9), MaxTokens: 6})
	w.finishStep(1)
	if !again.started || again.cached != 0 {
		t.Errorf("started %v, with %d cached tokens", again.started, again.cached)
	}
	w.scrubbed(len(w.scrubbing))
	w.finishAll()
	if reason := again.finished.Reason; reason == scheduler.Failed {
		t.Errorf("the next one: %+v", again.finished)
	}
}

// TestSpoiltPrefixIsSharedNoMore: who shared it before fails by himself, who comes later
// computes it anew.
func TestSpoiltPrefixIsSharedNoMore(t *testing.T) {
	w := newWorld(t, 20, standard)
	first := w.submit(scheduler.Request{ID: 1, Tokens: prompt(9), MaxTokens: 9})
	w.finishStep(1)
	second := w.submit(scheduler.Request{ID: 2, Tokens: prompt(10), MaxTokens: 9})
	w.finishStep(1)
	if second.cached != 8 {
		t.Fatalf("%d cached tokens", second.cached)
	}
	// Where only the first looks, so that the second does not find it at the same time.
	*w.pages.at(first.table, 8) = notFinite
	w.finishStep(1)
	third := w.submit(scheduler.Request{ID: 3, Tokens: prompt(10), MaxTokens: 9})
	if first.finished == nil || second.finished != nil || third.cached != 0 {
		t.Fatalf("%+v, %+v, %d cached tokens", first.finished, second.finished, third.cached)
	}
	if slices.ContainsFunc(w.scrubbing, func(id kvcache.BlockID) bool { return slices.Contains(second.table, id) }) {
		t.Error("blocks are overwritten that somebody reads")
	}
	w.finishAll()
	for _, l := range []*life{second, third} {
		if l.finished.Reason == scheduler.Failed {
			t.Errorf("%d: %+v", l.request.ID, l.finished)
		}
	}
}

// TestSpoiltKVHasASender: of what a transfer brought that is known, whoever uses it.
func TestSpoiltKVHasASender(t *testing.T) {
	w := newWorld(t, 20, standard)
	received := w.submit(scheduler.Request{ID: 1, Kind: scheduler.Receive, Tokens: prompt(10), MaxTokens: 9})
	w.arrive(received, 1)
	shares := w.submit(scheduler.Request{ID: 2, Tokens: prompt(10), MaxTokens: 9})
	w.finishStep(1)
	w.finishStep(1)
	if shares.cached != 8 {
		t.Fatalf("%d cached tokens", shares.cached)
	}
	*w.pages.at(received.table, 3) = notFinite
	w.finishStep(1)
	for _, c := range []struct {
		l       *life
		origins []string // of positions 3, 9 and 10
	}{{received, []string{sender, sender, ""}}, {shares, []string{sender, "", ""}}} {
		if c.l.finished == nil || c.l.finished.NotFinite == nil {
			t.Fatalf("%d: %+v", c.l.request.ID, c.l.finished)
		}
		for i, position := range []int{3, 9, 10} {
			if got := c.l.finished.NotFinite.Origin(position, standard.BlockTokens); got != c.origins[i] {
				t.Errorf("%d: position %d is of %q, want %q", c.l.request.ID, position, got, c.origins[i])
			}
		}
	}
	w.finishAll()
}

// TestCachedKVIsNotTheSenders: what a decode worker had in its prefix cache when a transfer
// brought the rest, it has computed itself, as it has what it generated in an earlier turn.
func TestCachedKVIsNotTheSenders(t *testing.T) {
	w := newWorld(t, 20, standard)
	w.submit(scheduler.Request{ID: 1, Tokens: prompt(8), MaxTokens: 1, Stop: never})
	w.finishAll()
	received := w.submit(scheduler.Request{ID: 2, Kind: scheduler.Receive, Tokens: prompt(14), MaxTokens: 9, Stop: never})
	if received.cached != 8 {
		t.Fatalf("%d cached tokens", received.cached)
	}
	w.arrive(received, 1)
	*w.pages.at(received.table, 3) = notFinite
	w.finishStep(1)
	if received.finished == nil || received.finished.NotFinite == nil {
		t.Fatalf("%+v", received.finished)
	}
	for position, want := range map[int]string{3: "", 7: "", 8: sender, 13: sender, 14: ""} {
		if got := received.finished.NotFinite.Origin(position, standard.BlockTokens); got != want {
			t.Errorf("position %d is of %q, want %q", position, got, want)
		}
	}
	w.finishAll()
}
