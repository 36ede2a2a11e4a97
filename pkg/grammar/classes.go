package grammar

import "sync"

// maxClassTries bounds the tries of classes that a vocabulary keeps. Each has at most as many
// numbers as the vocabulary's own trie has nodes.
const maxClassTries = 16

// maxWideThreads is how many threads of a place are walked through tries of classes. Each may need
// one of its own; the threads of places with more are walked together.
const maxWideThreads = 4

// wideBytes is from how many bytes that lead on from it a state is wide.
const wideBytes = 8

// classTrie is the texts of a vocabulary with the bytes taken together that a lexeme does not tell
// apart: where all letters are the same, all words of a length are one node. So places that differ
// by a count, which there are many of, cost little each. Nodes are made when they are first reached.
type classTrie struct {
	mu        sync.Mutex
	byteClass *[256]byte
	all       *trie
	root      classNode
}

// classNode is the nodes of a trie that a text of classes leads to.
type classNode struct {
	nodes []int32
	ends  tokens // whose texts end here
	to    []classStep
	made  bool // to is
}

type classStep struct {
	class byte // the first byte of it
	to    *classNode
}

// classes is the trie of a lexeme's classes of bytes.
func (v *Vocabulary) classes(of *[256]byte) *classTrie {
	v.classMu.Lock()
	defer v.classMu.Unlock()
	if made := v.classTries[*of]; made != nil {
		return made
	}
	if len(v.classTries) >= maxClassTries {
		clear(v.classTries)
	}
	made := &classTrie{byteClass: of, all: v.all, root: classNode{nodes: []int32{0}}}
	v.classTries[*of] = made
	return made
}

// next makes where a node leads. The trie is locked.
func (t *classTrie) next(n *classNode, words int) []classStep {
	if n.made {
		return n.to
	}
	n.made = true
	var of [256]*classNode
	add := func(child int32) {
		class := t.byteClass[t.all.bytes[child]]
		to := of[class]
		if to == nil {
			to = new(classNode)
			of[class] = to
			n.to = append(n.to, classStep{class, to})
		}
		to.nodes = append(to.nodes, child)
		to.ends.few = append(to.ends.few, t.all.of(child)...)
	}
	for _, at := range n.nodes {
		first, end := t.all.behind(at)
		for child := first; child < end; child++ {
			add(child)
		}
	}
	for _, step := range n.to {
		ends := &step.to.ends
		if len(ends.few) <= words {
			continue
		}
		ends.mask = make([]uint64, words)
		for _, id := range ends.few {
			set(ends.mask, id)
		}
		ends.few = nil
	}
	return n.to
}

// wide says whether many bytes lead on from a state, and some of them to the same.
func (s *state) wide() bool {
	return s.of.byteClass != nil && s.of.text == nil && s.leads().count() >= wideBytes
}

// walkClasses follows all tokens from the one thread of a place, which is wide.
func (f *follower) walkClasses(t thread) {
	trie := f.vocabulary.classes(t.at.of.byteClass)
	trie.mu.Lock()
	defer trie.mu.Unlock()
	behind := f.behind(f.nodes[t.node].next)
	if behind != nil {
		f.visit(behind)
	}
	f.walkClass(classRests{trie, &trie.root}, t.at, behind)
}

// walkClass follows what is behind a node of a trie of classes from a state. behind is where the
// lexeme leads; nil: nowhere.
func (f *follower) walkClass(from classRests, at *state, behind *place) {
	for _, step := range from.trie.next(from.node, len(f.allowed)) {
		if !f.works(workOf(len(at.nodes))) {
			return
		}
		to := at.next(step.class)
		if to == nil {
			continue
		}
		here := classRests{from.trie, step.to}
		leaves := to.final && behind != nil
		if !to.ends || leaves && len(behind.threads) > 0 {
			step.to.ends.add(f.allowed)
		}
		if leaves {
			if behind.complete {
				step.to.ends.add(f.ends)
				f.classes = append(f.classes, here)
			}
			f.walkBehindClass(here, behind)
		}
		if !to.ends {
			f.walkClass(here, to, behind)
		}
	}
}

// walkBehindClass follows what is behind a node of a trie of classes from a place.
func (f *follower) walkBehindClass(from classRests, at *place) {
	if len(at.threads) == 0 {
		return
	}
	var onward byteSet // classes
	for b := range at.leads().all {
		onward.add(from.trie.byteClass[b])
	}
	for _, step := range from.trie.next(from.node, len(f.allowed)) {
		if !onward.has(step.class) {
			continue
		}
		if !f.works(at.cost * len(step.to.nodes)) {
			return
		}
		for _, node := range step.to.nodes {
			if to := f.stepOn(at, f.trie.bytes[node]); to != nil {
				f.walkNode(node, to)
			}
		}
	}
}
