package grammar

// maxMasks bounds the masks of a grammar that are remembered.
const maxMasks = 1 << 10

// masks finds the tokens that can come at the places of a grammar.
type masks struct {
	*machine
	vocabulary *Vocabulary
	path       []*place // of walk
}

// mask is the tokens that can come at a place, but for those that end an output. Nobody changes
// it.
func (m *masks) mask(at *place) []uint64 {
	if at.mask != nil {
		return at.mask
	}
	out := make([]uint64, m.vocabulary.words())
	var rest []thread
	for _, t := range at.threads {
		if !m.maskString(t, out) {
			rest = append(rest, t)
		}
	}
	switch {
	case len(rest) == 0:
	case len(rest) == len(at.threads):
		m.walkTrie(m.vocabulary.all, at, out)
	default:
		m.found = append(m.found[:0], rest...)
		m.walkTrie(m.vocabulary.all, m.place(false), out)
	}
	if m.masked++; m.masked > maxMasks {
		m.forget()
	}
	at.mask = out
	return out
}

// maskString adds the tokens that can come within a string: which of them stay in it is known
// for all strings, and of those that leave it only the rests are looked at.
func (m *masks) maskString(t thread, out []uint64) bool {
	text := t.at.of.text
	if text == nil {
		return false
	}
	place, inside := text.inside(t.at)
	if !inside {
		return false
	}
	known := m.vocabulary.at(place)
	left := text.high - t.at.characters
	switch {
	case text.high == unbounded || left >= len(known.byNeed) && len(known.byNeed) < maxNeeds:
		or(out, known.stay)
	case left >= 0 && len(known.byNeed) > 0:
		or(out, known.byNeed[min(left, len(known.byNeed)-1)])
	}
	m.found = m.found[:0]
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

func (m *masks) allowRests(rests *trie, behind *place, out []uint64) {
	for _, id := range rests.whole {
		set(out, id)
	}
	m.walkTrie(rests, behind, out)
}

// walkTrie adds the tokens of a trie whose texts can come at a place.
func (m *masks) walkTrie(t *trie, at *place, out []uint64) {
	if len(m.path) == 0 {
		m.path = make([]*place, maxTokenBytes+1)
	}
	path := m.path
	path[0] = at
	for i := 0; i < len(t.bytes); {
		depth := t.depth[i]
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
