package kvcache_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// holder is a sequence as the model sees it.
type holder struct {
	salt        string
	tokens      []int32
	table       []kvcache.BlockID
	published   int
	chain       kvcache.Chain
	reserved    bool
	cached      int
	quarantined bool
	pinned      bool
}

// world is a naive model of a pool: who has which block, and what is in it.
type world struct {
	pool    *kvcache.Pool
	strong  bool // hashes do not collide
	holders []*holder
	content map[kvcache.BlockID]string // what was written last
	names   map[kvcache.Hash]string    // what each hash was published for
	seen    map[kvcache.Hash]bool      // Changes added up
	known   map[string]bool            // every content ever published

	invalid   map[kvcache.BlockID]bool // until they were overwritten
	scrubbing []kvcache.BlockID        // those that nobody holds any more
}

// prefix is what a block has to hold to be the i-th of a prompt.
func prefix(salt string, tokens []int32, i int) string {
	return fmt.Sprint(salt, tokens[:(i+1)*size])
}

func (w *world) acquire(t *rapid.T) {
	h := &holder{
		salt:   rapid.SampledFrom([]string{"", "x"}).Draw(t, "salt"),
		tokens: rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 10).Draw(t, "tokens"),
	}
	hashes := w.pool.BlockHashes(h.salt, h.tokens)
	hashes = hashes[:rapid.IntRange(0, len(hashes)).Draw(t, "limit")]
	total := (len(h.tokens)+size-1)/size + rapid.IntRange(0, 2).Draw(t, "more")
	before, available := w.pool.Stats(), w.pool.Available()
	table, cached, chain, ok := w.pool.Acquire(h.salt, hashes, h.tokens, total)
	if !ok {
		if total <= available-len(hashes) {
			t.Fatalf("no %d blocks of %d", total, available)
		}
		if after := w.pool.Stats(); after != before {
			t.Fatalf("a failure changed %+v to %+v", before, after)
		}
		return
	}
	if len(table) != total || cached > len(hashes) {
		t.Fatalf("%d blocks, %d of them cached; wanted %d and at most %d", len(table), cached, total, len(hashes))
	}
	for i, id := range table[:cached] {
		if w.content[id] != prefix(h.salt, h.tokens, i) {
			t.Fatalf("block %d holds %q, not %q", id, w.content[id], prefix(h.salt, h.tokens, i))
		}
		if w.invalid[id] {
			t.Fatalf("block %d is found although it is invalid", id)
		}
	}
	if w.strong && w.pool.Stats().Evictions == 0 && cached < len(hashes) && w.known[prefix(h.salt, h.tokens, cached)] {
		t.Fatalf("matched %d blocks although the next is published", cached)
	}
	for _, id := range table[cached:] {
		if slices.ContainsFunc(w.holders, func(o *holder) bool { return slices.Contains(o.table, id) }) {
			t.Fatalf("block %d given twice", id)
		}
		if w.invalid[id] {
			t.Fatalf("block %d is given away although it is invalid", id)
		}
		if origin := w.pool.Origin(id); origin != "" {
			t.Fatalf("block %d is of %q before anybody wrote it", id, origin)
		}
		w.content[id] = "garbage"
	}
	h.table, h.cached, h.published, h.chain = table, cached, cached, chain
	w.holders = append(w.holders, h)
}

func (w *world) pick(t *rapid.T, want func(*holder) bool) *holder {
	var fit []*holder
	for _, h := range w.holders {
		if want(h) {
			fit = append(fit, h)
		}
	}
	if len(fit) == 0 {
		t.Skip("nobody to do it")
	}
	return rapid.SampledFrom(fit).Draw(t, "holder")
}

func (w *world) publish(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool {
		return !h.quarantined && !h.reserved && (h.published+1)*size <= len(h.tokens)
	})
	id, name := h.table[h.published], prefix(h.salt, h.tokens, h.published)
	w.content[id] = name
	w.pool.SetOrigin([]kvcache.BlockID{id}, name)
	h.chain = w.pool.Publish(h.chain, id, h.tokens[h.published*size:(h.published+1)*size])
	h.published++
	hashes := kvcache.PromptHashes("model", "class", h.salt, h.tokens, size)
	w.names[hashes[h.published-1]] = name
	if h.chain != (kvcache.Chain{}) {
		w.known[name] = true
	}
}

func (w *world) release(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return !h.quarantined && !h.pinned })
	w.pool.Release(h.table)
	w.gone(h)
}

// offer pins a prefix, which has to be whole, and cold at its end.
func (w *world) offer(t *rapid.T) {
	before := w.pool.Stats()
	n, ok := w.pool.NextToSave()
	if ok != (before.Unoffered > 0) || before.Unoffered > before.Cached {
		t.Fatalf("offered %v of %+v", ok, before)
	}
	if !ok {
		t.Skip("nothing to offer")
	}
	w.offered(t, n)
	last := n.Blocks[len(n.Blocks)-1]
	if slices.ContainsFunc(w.holders[:len(w.holders)-1], func(o *holder) bool { return slices.Contains(o.table, last) }) {
		t.Fatalf("block %d is offered although it is held", last)
	}
}

// offerHeld pins a prefix of which somebody holds some: its beginning may be cached
// only, where the holder has a copy of its own.
func (w *world) offerHeld(t *rapid.T) {
	before := w.pool.Stats()
	n, ok := w.pool.NextHeldToSave()
	if !ok {
		t.Skip("nothing to offer")
	}
	if !slices.ContainsFunc(n.Blocks, func(id kvcache.BlockID) bool {
		return slices.ContainsFunc(w.holders, func(o *holder) bool { return slices.Contains(o.table, id) })
	}) {
		t.Fatalf("%v is offered as held, and is not", n.Blocks)
	}
	if after := w.pool.Stats(); after.Held < before.Held || after.Free != before.Free {
		t.Fatalf("offering changed %+v to %+v", before, after)
	}
	w.offered(t, n)
}

// offered checks what a candidate says, and keeps its references.
func (w *world) offered(t *rapid.T, n kvcache.SaveCandidate) {
	if len(n.Blocks) == 0 || len(n.Tokens) != len(n.Blocks)*size {
		t.Fatalf("%d blocks of %d tokens", len(n.Blocks), len(n.Tokens))
	}
	for i, id := range n.Blocks {
		if w.content[id] != prefix(n.Salt, n.Tokens, i) {
			t.Fatalf("block %d holds %q, not %q", id, w.content[id], prefix(n.Salt, n.Tokens, i))
		}
	}
	w.holders = append(w.holders, &holder{table: n.Blocks, cached: len(n.Blocks), published: len(n.Blocks), pinned: true})
}

// offerAll looks whether candidates reach every cached block, and leave the
// pool as it was.
func (w *world) offerAll(t *rapid.T) {
	before := w.pool.Stats()
	var all []kvcache.SaveCandidate
	for {
		n, ok := w.pool.NextToSave()
		if !ok {
			break
		}
		all = append(all, n)
	}
	if s := w.pool.Stats(); s.Unoffered != 0 {
		t.Fatalf("nothing is offered of %+v", s)
	}
	for _, n := range all {
		w.pool.Unpin(n.Blocks)
	}
	before.Unoffered = 0
	if after := w.pool.Stats(); after != before {
		t.Fatalf("candidates changed %+v to %+v", before, after)
	}
}

func (w *world) unpin(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return h.pinned })
	before := w.pool.Stats()
	switch rapid.IntRange(0, 2).Draw(t, "saved") {
	case 1:
		w.pool.Saved(h.table)
	case 2:
		w.pool.Unsaved(h.table)
	}
	if after := w.pool.Stats(); after != before {
		t.Fatalf("marking held blocks changed %+v to %+v", before, after)
	}
	pinned := w.pool.Pinned(h.table)
	w.pool.Unpin(h.table)
	others := 0 // candidates that share blocks, each of which Pinned counts
	w.gone(h)
	for _, id := range h.table {
		if slices.ContainsFunc(w.holders, func(o *holder) bool { return slices.Contains(o.table, id) }) {
			others++
		}
	}
	if got := w.pool.Stats().Held; before.Held-got > pinned || pinned > len(h.table) || others == 0 && before.Held-got != pinned {
		t.Fatalf("%d blocks were pinned only, %d of %d come back", pinned, before.Held-got, len(h.table))
	}
}

func (w *world) save(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return !h.quarantined && !h.reserved })
	before := w.pool.Stats()
	w.pool.Saved(h.table)
	if after := w.pool.Stats(); after != before {
		t.Fatalf("marking held blocks changed %+v to %+v", before, after)
	}
}

func (w *world) gone(h *holder) {
	w.holders = slices.DeleteFunc(w.holders, func(o *holder) bool { return o == h })
}

func (w *world) reserve(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return !h.quarantined && !h.reserved && !h.pinned && h.published == h.cached })
	w.pool.Reserve(h.table[h.cached:])
	h.reserved = true
}

func (w *world) arrive(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return h.reserved })
	w.pool.Arrived(h.table[h.cached:])
	h.reserved = false
}

func (w *world) quarantine(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return h.reserved })
	w.pool.Quarantine(h.table[h.cached:])
	w.pool.Release(h.table[:h.cached])
	h.table, h.cached, h.reserved, h.quarantined = h.table[h.cached:], 0, false, true
}

func (w *world) drain(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return h.quarantined })
	w.pool.Drained(h.table)
	w.gone(h)
}

// invalidate finds out that the blocks of somebody are wrong, who goes on to hold them: none
// of them is to be found, nor what follows them, and nobody gets them before they were
// overwritten.
func (w *world) invalidate(t *rapid.T) {
	h := w.pick(t, func(h *holder) bool { return !h.quarantined && !h.reserved && !h.pinned })
	before := w.pool.Stats()
	hashes := w.pool.Hashes()
	w.pool.Invalidate(h.table)
	clear(w.known) // some of it is gone, without an eviction
	for _, id := range h.table {
		w.invalid[id] = true
	}
	if after := w.pool.Stats(); after.Held != before.Held || after.Free != before.Free || after.Evictions != before.Evictions ||
		after.Cached+after.Quarantined != before.Cached+before.Quarantined {
		t.Fatalf("invalidating changed %+v to %+v", before, after)
	}
	for _, hash := range w.pool.Hashes() {
		hashes = slices.DeleteFunc(hashes, func(left kvcache.Hash) bool { return left == hash })
	}
	if w.strong { // what is gone is what the blocks held, and what follows that
		for _, hash := range hashes {
			if name := w.names[hash]; !slices.ContainsFunc(h.table, func(id kvcache.BlockID) bool {
				return strings.HasPrefix(name, strings.TrimSuffix(w.content[id], "]"))
			}) {
				t.Fatalf("%q is gone, of other blocks than %v", name, h.table)
			}
		}
	}
	h.published = len(h.tokens)/size + 1 // nothing more of it
}

// scrub overwrites what nobody holds any more.
func (w *world) scrub(t *rapid.T) {
	if len(w.scrubbing) == 0 {
		t.Skip("nothing to overwrite")
	}
	n := rapid.IntRange(1, len(w.scrubbing)).Draw(t, "blocks")
	w.pool.Drained(w.scrubbing[:n])
	for _, id := range w.scrubbing[:n] {
		delete(w.invalid, id)
	}
	w.scrubbing = w.scrubbing[n:]
}

func (w *world) check(t *rapid.T) {
	for _, id := range w.pool.Invalidated() {
		if slices.ContainsFunc(w.holders, func(o *holder) bool { return slices.Contains(o.table, id) }) || slices.Contains(w.scrubbing, id) {
			t.Fatalf("block %d is to be overwritten although it is held, or twice", id)
		}
		w.invalid[id] = true // or one behind it was
		w.scrubbing = append(w.scrubbing, id)
	}
	s := w.pool.Stats()
	held, reserved, quarantined := map[kvcache.BlockID]bool{}, 0, 0
	for _, h := range w.holders {
		if h.quarantined {
			quarantined += len(h.table)
			continue
		}
		for _, id := range h.table {
			held[id] = true
		}
		if h.reserved {
			reserved += len(h.table) - h.cached
		}
	}
	if s.Free+s.Cached+s.Held+s.Quarantined != s.Total || s.Held != len(held) ||
		s.Quarantined != quarantined+len(w.scrubbing) || s.Reserved != reserved || s.Misuses != 0 {
		t.Fatalf("%+v; the model has %d held, %d reserved, %d quarantined", s, len(held), reserved, quarantined)
	}
	stored, removed := w.pool.Changes()
	for _, hash := range removed {
		if !w.seen[hash] {
			t.Fatalf("removed %x, which was not there", hash)
		}
		delete(w.seen, hash)
	}
	for _, hash := range stored {
		if w.seen[hash] {
			t.Fatalf("stored %x twice", hash)
		}
		w.seen[hash] = true
	}
	hashes := w.pool.Hashes()
	if len(hashes) != len(w.seen) || len(hashes) != s.Published {
		t.Fatalf("%d hashes, changes add up to %d, %d published", len(hashes), len(w.seen), s.Published)
	}
	for _, hash := range hashes {
		if !w.seen[hash] {
			t.Fatalf("%x is missing from the changes", hash)
		}
	}
	if w.strong {
		w.checkChains(t, hashes)
	}
}

// checkChains looks for blocks that nothing can find since what is before them
// is gone.
func (w *world) checkChains(t *rapid.T, hashes []kvcache.Hash) {
	published := map[string]bool{}
	for _, hash := range hashes {
		published[w.names[hash]] = true
	}
	for name := range published {
		words := strings.Fields(name[strings.Index(name, "[")+1 : len(name)-1])
		if len(words) > size {
			parent := name[:strings.Index(name, "[")+1] + strings.Join(words[:len(words)-size], " ") + "]"
			if !published[parent] {
				t.Fatalf("%q is published, %q is not", name, parent)
			}
		}
	}
}

func TestPoolAgainstModel(t *testing.T) {
	for name, bits := range map[string]int{"strong": 0, "colliding": 2} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := &world{
					pool:    newPool(rapid.IntRange(1, 24).Draw(t, "blocks")),
					strong:  bits == 0,
					content: map[kvcache.BlockID]string{},
					names:   map[kvcache.Hash]string{},
					seen:    map[kvcache.Hash]bool{},
					known:   map[string]bool{},

					invalid: map[kvcache.BlockID]bool{},
				}
				if bits > 0 {
					w.pool.Weaken(bits)
				}
				t.Repeat(map[string]func(*rapid.T){
					"":           w.check,
					"acquire":    w.acquire,
					"acquire2":   w.acquire,
					"publish":    w.publish,
					"publish2":   w.publish,
					"publish3":   w.publish,
					"release":    w.release,
					"reserve":    w.reserve,
					"arrive":     w.arrive,
					"quarantine": w.quarantine,
					"drain":      w.drain,
					"offer":      w.offer,
					"held":       w.offerHeld,
					"all":        w.offerAll,
					"unpin":      w.unpin,
					"saved":      w.save,
					"invalidate": w.invalidate,
					"scrub":      w.scrub,
				})
			})
		})
	}
}
