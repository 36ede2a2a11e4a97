package grammar

import "slices"

// maxMasks bounds the masks of a grammar that are remembered.
const maxMasks = 1 << 9

// maxMaskWork bounds the work for one mask: the bytes of tokens that are looked at, each with the
// nodes of automata that it is looked at from, but for the first cheapNodes. It does not depend on
// what is remembered, so a place has a mask at any time or at none. Common forms need a fraction of
// it, however many tokens there are.
const (
	maxMaskWork = 1 << 22
	cheapNodes  = 32
)

// workOf is the work for a byte from so many nodes.
func workOf(nodes int) int { return 1 + max(0, nodes-cheapNodes) }

// masks finds the tokens that can come at the places of a grammar.
type masks struct {
	*machine
	vocabulary *Vocabulary
	path       []*place         // of walkTrie
	states     []*state         // of maskExcept
	special    map[int32][]byte // the texts of the special tokens that the grammar has
	work       int              // that is left for a mask
}

// mask is the tokens that can come at a place, but for those that end an output; nil: finding
// them takes too long. Nobody changes it.
func (m *masks) mask(at *place) []uint64 {
	if at.mask != nil || at.slow {
		return at.mask
	}
	if m.masked++; m.masked > maxMasks {
		m.forget()
	}
	m.work = maxMaskWork
	if at.mask = m.find(at); m.work < 0 {
		at.mask, at.slow = nil, true
	}
	return at.mask
}

// find is mask of a place that has none yet. It is not all of it if the work that is left is
// not enough.
func (m *masks) find(at *place) []uint64 {
	if free, is := at.freeThread(); is {
		return m.maskFree(at, free)
	}
	out := make([]uint64, m.vocabulary.words())
	for id, text := range m.special {
		if m.walk(at, text) != nil {
			set(out, id)
		}
	}
	var rest, wide []thread
	for _, t := range at.threads {
		switch {
		case m.maskString(t, out):
		case len(wide) < maxWideThreads && t.at.wide():
			wide = append(wide, t)
		default:
			rest = append(rest, t)
		}
	}
	for _, t := range wide {
		m.maskClasses(t, out)
	}
	switch {
	case len(rest) == 0:
	case len(rest) == len(at.threads):
		m.walkTrie(m.vocabulary.all, at, out)
	default:
		m.found = append(m.found[:0], rest...)
		m.walkTrie(m.vocabulary.all, m.place(false), out)
	}
	return out
}

// next is where a token leads, nil if nowhere. ends are those that end the output.
func (m *masks) next(from *place, token int32, ends []int32) *place {
	text := m.vocabulary.text(token)
	if text == nil {
		text = m.special[token]
	}
	if text != nil {
		return m.walk(from, text)
	}
	// A special token: free text has it, and does not show it.
	if _, free := from.freeThread(); free && token >= 0 && int(token) < m.vocabulary.size && !slices.Contains(ends, token) {
		return from
	}
	return nil
}

// maskString adds the tokens that can come within a string: which of them stay in it is known
// for all strings, and of those that leave it only the rests are looked at.
func (m *masks) maskString(t thread, out []uint64) bool {
	if t.at.of.but {
		return m.maskExcept(t, out)
	}
	text := t.at.of.text
	if text == nil {
		return false
	}
	place, inside := text.inside(t.at)
	if !inside {
		return false
	}
	known := m.vocabulary.inStrings[place]
	left := unbounded
	if text.high != unbounded {
		left = text.high - t.at.characters
	}
	known.addStaying(out, left)
	m.found = m.found[:0]
	clear(m.seen)
	behind := m.place(m.enter(m.nodes[t.node].next, t.frame))
	if behind == nil {
		return true
	}
	if text.high == unbounded && t.at.characters >= text.low {
		m.allowRests(known.leave, behind, out)
		return true
	}
	for n, rests := range known.leaveAfter {
		if characters := t.at.characters + n; characters >= text.low && characters <= text.high {
			m.allowRests(rests, behind, out)
		}
	}
	return true
}

// maskExcept is maskString of a string that must not be one of some: the tokens of any string,
// but for those on the way to one of them, which are few.
func (m *masks) maskExcept(t thread, out []uint64) bool {
	of := t.at.of
	mask := make([]uint64, len(out))
	if t.at.characters != noEscape || !m.maskString(thread{t.node, t.at.a, t.frame}, mask) {
		return false
	}
	if len(m.states) == 0 {
		m.states = make([]*state, maxTokenBytes+1)
	}
	m.states[0] = t.at
	all := m.vocabulary.all
	for i := 0; i < len(all.bytes); {
		depth := all.depth[i]
		m.work--
		to := m.states[depth].next(all.bytes[i])
		switch {
		case to == nil:
			for _, id := range all.below(i) {
				mask[id>>6] &^= 1 << (id & 63)
			}
			i = int(all.after[i])
		case to.of != of: // it is another string from here on
			i = int(all.after[i])
		default:
			m.states[depth+1] = to
			i++
		}
	}
	or(out, mask)
	return true
}

func (m *masks) allowRests(rests *trie, behind *place, out []uint64) {
	for _, id := range rests.whole {
		set(out, id)
	}
	m.walkTrie(rests, behind, out)
}

// walkTrie adds the tokens of a trie whose texts can come at a place.
func (m *masks) walkTrie(t *trie, at *place, out []uint64) {
	m.walkNodes(t, 0, len(t.bytes), at, out)
}

// walkNodes is walkTrie of some nodes, and of what the texts have from the first one's byte on.
func (m *masks) walkNodes(t *trie, i, end int, at *place, out []uint64) {
	if i == end {
		return
	}
	if len(m.path) == 0 {
		m.path = make([]*place, maxTokenBytes+1)
	}
	path := m.path
	path[0] = at
	begins := t.depth[i]
	for i < end {
		depth := t.depth[i] - begins
		if m.work -= path[depth].cost; m.work < 0 {
			return
		}
		to := m.step(path[depth], t.bytes[i])
		if to == nil {
			i = int(t.after[i])
			continue
		}
		for _, id := range t.of(i) {
			set(out, id)
		}
		path[depth+1] = to
		i++
	}
}

func or(dst, src []uint64) {
	for i, word := range src {
		dst[i] |= word
	}
}
