package grammar

import (
	"cmp"
	"slices"
)

// maxMasks bounds the masks of places that are remembered of a grammar.
const maxMasks = 1 << 8

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
	follower
	special    map[int32][]byte   // the texts of the special tokens that the grammar has
	masked     []*place           // that have masks
	blocked    map[*state][]int32 // of blockedAt
	blockedIDs int                // that blocked has

	// Of the mask that is being made:
	work    int // for it so far
	threads int // of all that was followed for it
	rest    []thread
}

// What parts of a grammar take, about, in bytes.
const (
	nodeBytes     = 64
	stateBytes    = 512
	placeBytes    = 512
	threadBytes   = 32
	restsBytes    = 64
	followedBytes = 128
	blockedBytes  = 64
)

// size is what a grammar takes, about, in bytes.
func (m *masks) size() int64 {
	n := nodeBytes*(len(m.program.nodes)+m.lexemes.nodes) + stateBytes*m.held + placeBytes*len(m.places) + threadBytes*m.kept
	n += m.knownBytes + blockedBytes*len(m.blocked) + 4*m.blockedIDs
	if m.vocabulary != nil {
		n += 8 * m.vocabulary.words() * len(m.masked)
	}
	return int64(n)
}

// mask is the tokens that can come at a place, but for those that end an output; nil: finding
// them takes too long. Nobody changes it.
func (m *masks) mask(at *place) []uint64 {
	if at.mask != nil || at.slow {
		return at.mask
	}
	if m.masked = append(m.masked, at); len(m.masked) > maxMasks {
		for _, p := range m.masked {
			p.mask = nil
		}
		m.masked = append(m.masked[:0], at)
	}
	m.work, m.threads = 0, 0
	mask := m.find(at)
	if _, free := at.freeThread(); !free && m.threads > maxThreads {
		// Tokens may have too many readings together.
		clear(mask)
		m.addSpecial(at, mask)
		m.all(m.followed(m.vocabulary.rests, at), mask)
	}
	switch {
	case m.exhausted():
		return nil
	case m.work > maxMaskWork:
		at.slow = true
		return nil
	}
	at.mask = mask
	return mask
}

// find is mask of a place that has none yet. It is not all of it if that takes too much work.
func (m *masks) find(at *place) []uint64 {
	if free, is := at.freeThread(); is {
		return m.maskFree(at, free)
	}
	out := make([]uint64, m.vocabulary.words())
	m.addSpecial(at, out)
	m.rest = m.rest[:0]
	wide := 0
	for _, t := range at.threads {
		switch {
		case m.maskString(t, out):
		case wide < maxWideThreads && t.at.wide():
			wide++
			m.maskThreads([]thread{t}, out)
		default:
			m.rest = append(m.rest, t)
		}
	}
	// Those in the same call are looked at together.
	slices.SortFunc(m.rest, func(a, b thread) int { return cmp.Compare(a.frame.number(), b.frame.number()) })
	for rest := m.rest; len(rest) > 0; {
		same := 1
		for same < len(rest) && rest[same].frame == rest[0].frame {
			same++
		}
		m.maskThreads(rest[:same], out)
		rest = rest[same:]
	}
	return out
}

// addSpecial adds the special tokens that can come at a place.
func (m *masks) addSpecial(at *place, out []uint64) {
	for id, text := range m.special {
		if m.walkText(at, text) != nil {
			set(out, id)
		}
	}
}

// maskThreads adds the tokens that can come for threads in one call. What they do within it is the
// same in all such calls.
func (m *masks) maskThreads(threads []thread, out []uint64) {
	if m.work > maxMaskWork {
		return
	}
	frame := threads[0].frame
	m.found = m.found[:0]
	for _, t := range threads {
		m.found = append(m.found, thread{t.node, t.at, nil})
	}
	all := m.vocabulary.rests
	f := m.followed(all, m.place(false))
	if m.tooDeep(f, frame) {
		m.found = append(m.found[:0], threads...)
		m.all(m.followed(all, m.place(false)), out)
		return
	}
	m.take(f, out)
	m.goOn(f.left, frame, out)
}

// take adds the tokens that end within a call.
func (m *masks) take(f *followed, out []uint64) {
	m.work += f.work
	m.threads += f.threads
	f.allowed.add(out)
}

// all is take of what is in no call: its end is that of all.
func (m *masks) all(f *followed, out []uint64) {
	m.take(f, out)
	if f.left != nil {
		f.left.ends.add(out)
	}
}

// goOn adds the tokens that get behind the end of a call, of which rests are left; nil: none do.
func (m *masks) goOn(left *rests, frame *frame, out []uint64) {
	switch {
	case left == nil:
	case frame == nil:
		left.ends.add(out)
	default:
		m.goOnAt(left, frame.back, frame.outer, out)
	}
}

// goOnAt adds the tokens of which rests, if there are any, are left before a node.
func (m *masks) goOnAt(left *rests, node int32, frame *frame, out []uint64) {
	if left == nil || m.work > maxMaskWork {
		return
	}
	behind := m.behind(node)
	if behind == nil {
		return
	}
	f := m.followed(left, behind)
	if m.tooDeep(f, frame) {
		m.found = m.found[:0]
		clear(m.seen)
		if behind = m.place(m.enter(node, frame)); behind != nil {
			m.all(m.followed(left, behind), out)
		}
		return
	}
	m.take(f, out)
	m.goOn(f.left, frame, out)
}

// tooDeep says whether what was found without a frame may be wrong in one, since calls would be
// too deep in one another.
func (m *masks) tooDeep(f *followed, in *frame) bool {
	return in != nil && in.depth+f.depth+m.deepest > maxDepth
}

// next is where a token leads, nil if nowhere. ends are those that end the output.
func (m *masks) next(from *place, token int32, ends []int32) *place {
	text := m.vocabulary.text(token)
	if text == nil {
		text = m.special[token]
	}
	if text != nil {
		return m.walkText(from, text)
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
	if t.at.of.exceptsSome {
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
	m.threads++
	next := m.nodes[t.node].next
	if text.high == unbounded && t.at.characters >= text.low {
		m.goOnAt(known.leave, next, t.frame, out)
		return true
	}
	for n, rests := range known.leaveAfter {
		if characters := t.at.characters + n; characters >= text.low && characters <= text.high {
			m.goOnAt(rests, next, t.frame, out)
		}
	}
	return true
}

// maskExcept is maskString of a string that must not be one of some: the tokens of any string,
// but for those on the way to one of them, which are few.
func (m *masks) maskExcept(t thread, out []uint64) bool {
	mask := make([]uint64, len(out))
	if t.at.escape != noEscape || !m.maskString(thread{t.node, t.at.a, t.frame}, mask) {
		return false
	}
	for _, id := range m.blockedAt(t.at) {
		mask[id>>6] &^= 1 << (id & 63)
	}
	or(out, mask)
	return true
}

// maxBlockedIDs bounds what is remembered of blockedAt.
const maxBlockedIDs = 1 << 20

// blockedAt are the tokens that a string that must not be one of some cannot have at a state.
func (m *masks) blockedAt(at *state) []int32 {
	blocked, known := m.blocked[at]
	if known {
		return blocked
	}
	if m.blocked == nil || len(m.blocked) >= maxLexemeStates || m.blockedIDs > maxBlockedIDs {
		m.blocked, m.blockedIDs = make(map[*state][]int32), 0
	}
	blocked = m.findBlocked(0, at, nil)
	m.blockedIDs += len(blocked)
	m.blocked[at] = blocked
	return blocked
}

// findBlocked appends those behind a node, which leads to a state.
func (m *masks) findBlocked(node int32, at *state, blocked []int32) []int32 {
	all := m.vocabulary.all
	first, end := all.behind(node)
	for child := first; child < end; child++ {
		m.effort++
		switch to := at.next(all.bytes[child]); {
		case to == nil:
			blocked = all.below(child, blocked)
		case to.of == at.of: // else it is another string from here on
			blocked = m.findBlocked(child, to, blocked)
		}
	}
	return blocked
}
