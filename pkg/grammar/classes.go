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
	mu   sync.Mutex
	like *[256]byte
	all  *trie
	root classNode
}

// classNode is the nodes of a trie that a text of classes leads to.
type classNode struct {
	nodes []int32
	ids   []int32  // of the texts that end here, if they are few
	mask  []uint64 // of them, if they are many
	to    []classStep
	made  bool // to is
}

type classStep struct {
	class byte // the first byte of it
	to    *classNode
}

// classes is the trie of a lexeme's classes of bytes.
func (v *Vocabulary) classes(like *[256]byte) *classTrie {
	v.classMu.Lock()
	defer v.classMu.Unlock()
	if made := v.classTries[*like]; made != nil {
		return made
	}
	if len(v.classTries) >= maxClassTries {
		clear(v.classTries)
	}
	made := &classTrie{like: like, all: v.all}
	v.classTries[*like] = made
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
		class := t.like[t.all.bytes[child]]
		to := of[class]
		if to == nil {
			to = new(classNode)
			of[class] = to
			n.to = append(n.to, classStep{class, to})
		}
		to.nodes = append(to.nodes, child)
		to.ids = append(to.ids, t.all.of(int(child))...)
	}
	if n == &t.root {
		for child := int32(0); int(child) < len(t.all.bytes); child = t.all.after[child] {
			add(child)
		}
	}
	for _, at := range n.nodes {
		for child := at + 1; child < t.all.after[at]; child = t.all.after[child] {
			add(child)
		}
	}
	for _, step := range n.to {
		if len(step.to.ids) <= words {
			continue
		}
		step.to.mask = make([]uint64, words)
		for _, id := range step.to.ids {
			set(step.to.mask, id)
		}
		step.to.ids = nil
	}
	return n.to
}

func (n *classNode) allow(out []uint64) {
	if n.mask != nil {
		or(out, n.mask)
		return
	}
	for _, id := range n.ids {
		set(out, id)
	}
}

// wide says whether many bytes lead on from a state, and some of them to the same.
func (s *state) wide() bool {
	if s.of.like == nil || s.of.text != nil {
		return false
	}
	if !s.counted {
		s.counted = true
		for b := range 256 {
			if s.next(byte(b)) != nil {
				s.onward++
			}
		}
	}
	return s.onward >= wideBytes
}

// classWalk is a walk through a trie of classes, for one thread.
type classWalk struct {
	*masks
	trie   *classTrie
	behind *place // where the thread's lexeme leads; nil: nowhere
	out    []uint64
	// leads says of classes whether some of their bytes lead on from behind, once it is known.
	leads [256]struct{ known, is bool }
}

// maskClasses adds the tokens that can come for one thread.
func (m *masks) maskClasses(t thread, out []uint64) {
	w := classWalk{masks: m, trie: m.vocabulary.classes(t.at.of.like), out: out}
	w.trie.mu.Lock()
	defer w.trie.mu.Unlock()
	m.found = m.found[:0]
	clear(m.seen)
	w.behind = m.place(m.enter(m.nodes[t.node].next, t.frame))
	w.walk(&w.trie.root, t.at)
}

func (w *classWalk) walk(from *classNode, at *state) {
	for _, step := range w.trie.next(from, len(w.out)) {
		if w.work -= workOf(len(at.nodes)); w.work < 0 {
			return
		}
		to := at.next(step.class)
		if to == nil {
			continue
		}
		leaves := to.final && w.behind != nil
		if leaves || !to.ends {
			step.to.allow(w.out)
		}
		if leaves {
			w.leave(step.to)
		}
		if !to.ends {
			w.walk(step.to, to)
		}
	}
}

// leave adds the tokens that get out of the lexeme at a node.
func (w *classWalk) leave(from *classNode) {
	all := w.trie.all
	for _, step := range w.trie.next(from, len(w.out)) {
		if !w.leadsOn(step.class) {
			continue
		}
		for _, node := range step.to.nodes {
			w.walkNodes(all, int(node), int(all.after[node]), w.behind, w.out)
		}
	}
}

func (w *classWalk) leadsOn(class byte) bool {
	known := &w.leads[class]
	for b := 0; b < 256 && !known.known; b++ {
		if w.trie.like[b] == class && w.step(w.behind, byte(b)) != nil {
			known.is, known.known = true, true
		}
	}
	known.known = true
	return known.is
}
