package grammar

import "slices"

// follow is rests at a place that is looked at by itself: its threads that are in no call may be
// in any, and where such a thread has come to its end the call has.
type follow struct {
	rests *rests
	at    *place
}

// followed is what becomes of rests at a place.
type followed struct {
	// allowed are the tokens that end within the call.
	allowed tokens
	// left is what is left of tokens at the end of the call; nil: none gets there.
	left *rests
	// depth is how deep calls are in one another at most, and threads how many a place has.
	depth, threads int
	work           int // more than maxMaskWork: the others are not known
}

// maxFollowed bounds what is kept of a grammar, and maxFollowedBytes what that takes, about. With
// more, all is found again when it is needed again.
const (
	maxFollowed      = 1 << 13
	maxFollowedBytes = 16 << 20
)

// follower finds what becomes of rests, and keeps it: the calls of a grammar may be in one another
// in many ways, but what tokens do in one of them is the same in each.
type follower struct {
	*machine
	vocabulary *Vocabulary
	known      map[follow]*followed
	knownBytes int // that known takes, about

	// Of what is being followed:
	trie      *trie
	allowed   []uint64
	ends      []uint64
	left      [256][]int32 // nodes behind the end, by their bytes
	classes   []classRests
	classText []byte // to the node that walkClass is at
	out       followed
}

// followed is what becomes of rests at a place.
func (f *follower) followed(r *rests, at *place) *followed {
	key := follow{r, at}
	if known := f.known[key]; known != nil {
		return known
	}
	made := f.follow(r, at)
	f.effort += made.work
	if f.exhausted() {
		return made // it may not be all
	}
	bytes := made.bytes()
	if f.knownBytes += bytes; len(f.known) >= maxFollowed || f.knownBytes > maxFollowedBytes {
		clear(f.known)
		f.knownBytes = bytes
	}
	f.known[key] = made
	return made
}

// bytes is what is kept of rests at a place, about.
func (f *followed) bytes() int {
	n := followedBytes + f.allowed.bytes()
	if f.left != nil {
		n += f.left.bytes()
	}
	return n
}

func (f *follower) follow(r *rests, at *place) *followed {
	if f.allowed == nil {
		f.allowed, f.ends = make([]uint64, f.vocabulary.words()), make([]uint64, f.vocabulary.words())
	}
	clear(f.allowed)
	clear(f.ends)
	f.trie, f.classes, f.out = r.trie, nil, followed{}
	f.visit(at)
	if at.complete {
		r.ends.add(f.ends)
		if r.all {
			f.leaveBehind(0)
		}
		for _, from := range r.from {
			f.left[from.b] = append(f.left[from.b], from.nodes...)
		}
		f.classes = append(f.classes, r.classes...)
	}
	if len(at.threads) > 0 {
		r.ends.add(f.allowed)
		// The walk of classes looks at what is behind by itself, as if it were in no call.
		if t := at.threads[0]; r == f.vocabulary.rests && len(at.threads) == 1 && t.frame == nil && t.at.wide() {
			f.walkClasses(t)
		} else {
			f.walkFrom(r, at)
		}
	}
	made := f.out
	made.allowed = tokensOf(f.allowed)
	left := rests{trie: f.trie, ends: tokensOf(f.ends), classes: f.classes}
	for b := range f.left {
		if nodes := f.left[b]; len(nodes) > 0 {
			slices.Sort(nodes)
			left.from = append(left.from, restsFrom{byte(b), slices.Clone(slices.Compact(nodes))})
			f.left[b] = nodes[:0]
		}
	}
	if left.ends.some() || len(left.from)+len(left.classes) > 0 {
		made.left = &left
	}
	return &made
}

// visit takes account of a place that a token comes to.
func (f *follower) visit(at *place) {
	f.out.depth = max(f.out.depth, at.depth)
	f.out.threads = max(f.out.threads, len(at.threads))
}

// works says whether there is so much work left.
func (f *follower) works(work int) bool {
	f.out.work += work
	return f.out.work <= maxMaskWork && !f.exhausted()
}

// walkFrom follows rests from a place.
func (f *follower) walkFrom(r *rests, at *place) {
	if r.all {
		f.walkBehind(0, at)
	}
	for _, from := range r.from {
		if !f.works(at.cost * len(from.nodes)) {
			return
		}
		if to := f.stepOn(at, from.b); to != nil {
			for _, node := range from.nodes {
				f.walkNode(node, to)
			}
		}
	}
	for _, c := range r.classes {
		f.walkRests(c, at)
	}
}

// stepOn is step, and quick where a byte surely leads nowhere, as most do.
func (f *follower) stepOn(from *place, b byte) *place {
	if !from.leads().has(b) {
		return nil
	}
	return f.step(from, b)
}

// walkBehind follows the texts that go on behind a node from the place after it.
func (f *follower) walkBehind(node int32, at *place) {
	first, end := f.trie.behind(node)
	if first == end || !f.works(at.cost*int(end-first)) {
		return
	}
	for i, b := range f.trie.bytes[first:end] {
		if to := f.stepOn(at, b); to != nil {
			f.walkNode(first+int32(i), to)
		}
	}
}

// walkNode follows the texts that go on with a node, from the place after it.
func (f *follower) walkNode(node int32, to *place) {
	f.visit(to)
	if to.complete {
		for _, id := range f.trie.of(node) {
			set(f.ends, id)
		}
		f.leaveBehind(node)
	}
	if len(to.threads) > 0 {
		for _, id := range f.trie.of(node) {
			set(f.allowed, id)
		}
		f.walkBehind(node, to)
	}
}

// leaveBehind notes that the texts that go on behind a node have got to the end of the call.
func (f *follower) leaveBehind(node int32) {
	first, end := f.trie.behind(node)
	for i, b := range f.trie.bytes[first:end] {
		f.left[b] = append(f.left[b], first+int32(i))
	}
}
