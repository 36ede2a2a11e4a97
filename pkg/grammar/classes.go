package grammar

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// maxClassTries bounds the tries of classes that a vocabulary keeps, and maxClassBytes what they take
// together, about. With more, some are dropped, and made again when they are needed again. One alone has
// at most as many numbers as the vocabulary's own trie has nodes.
const (
	maxClassTries = 16
	maxClassBytes = 64 << 20
)

// maxWideThreads is how many threads of a place are walked through tries of classes. Each may need
// one of its own; the threads of places with more are walked together.
const maxWideThreads = 4

// wideBytes is from how many bytes that lead on from it a state is wide.
const wideBytes = 8

// classTrie is the texts of a vocabulary with the bytes taken together that a lexeme does not tell
// apart: where all letters are the same, all words of a length are one node. So places that differ
// by a count, which there are many of, cost little each. Nodes are made when they are first reached.
// Only the vocabulary keeps one, and who walks it: the rest refers to its nodes by their texts.
type classTrie struct {
	mu        sync.Mutex
	byteClass *[256]byte
	all       *trie
	root      classNode
	bytes     atomic.Int64 // that it takes, about
	used      int          // Vocabulary.classUses when it was last asked for; of Vocabulary.classMu
}

// What a node of a trie of classes takes, about, with its step: memory in bytes, and the effort to make it.
const (
	classNodeBytes  = 128
	classNodeEffort = 16
)

// classNode is the nodes of a trie that a text of classes leads to.
type classNode struct {
	nodes []int32
	ends  tokens // whose texts end here
	to    []classStep
	made  bool // to is, which is in the order of its classes
}

type classStep struct {
	class byte // the first byte of it
	to    *classNode
}

// classes is the trie of a lexeme's classes of bytes.
func (v *Vocabulary) classes(of *[256]byte) *classTrie {
	v.classMu.Lock()
	defer v.classMu.Unlock()
	made := v.classTries[*of]
	if made == nil {
		made = &classTrie{byteClass: of, all: v.all, root: classNode{nodes: []int32{0}}}
		v.classTries[*of] = made
	}
	v.classUses++
	made.used = v.classUses
	for v.dropClasses(made) {
	}
	return made
}

// dropClasses drops a trie of classes if they exceed their bounds, and says whether it did: one that takes
// more than all may, else the one that was not asked for the longest. The one that is asked for stays; if
// that alone takes more than all may, the others do not make up for it.
func (v *Vocabulary) dropClasses(asked *classTrie) bool {
	var all int64
	var drop *classTrie
	oldest := asked.used
	for _, trie := range v.classTries {
		bytes, used := trie.bytes.Load(), trie.used
		if bytes > v.mostClassBytes {
			if trie == asked {
				continue
			}
			used = 0
		}
		if all += bytes; used < oldest {
			drop, oldest = trie, used
		}
	}
	if drop == nil || len(v.classTries) <= maxClassTries && all <= v.mostClassBytes {
		return false
	}
	delete(v.classTries, *drop.byteClass)
	return true
}

// makeSteps makes where a node leads, and returns the effort. The trie is locked.
func (t *classTrie) makeSteps(n *classNode, words int) (effort int) {
	n.made = true
	var of [256]*classNode
	for _, at := range n.nodes {
		first, end := t.all.behind(at)
		effort += int(end - first)
		for child := first; child < end; child++ {
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
	}
	slices.SortFunc(n.to, func(a, b classStep) int { return cmp.Compare(a.class, b.class) })
	bytes := 4*effort + classNodeBytes*len(n.to)
	for _, step := range n.to {
		ends := &step.to.ends
		if len(ends.few) > words {
			ends.mask = make([]uint64, words)
			for _, id := range ends.few {
				set(ends.mask, id)
			}
			ends.few = nil
		}
		bytes += ends.bytes()
	}
	t.bytes.Add(int64(bytes))
	return effort + classNodeEffort*len(n.to)
}

// classesBehind is where a node of a trie of classes leads. To make it is no part of the work for a mask,
// which does not depend on what is remembered. The trie is locked.
func (f *follower) classesBehind(trie *classTrie, n *classNode) []classStep {
	if !n.made {
		f.effort += trie.makeSteps(n, len(f.allowed))
	}
	return n.to
}

// classNode is the node that a text of classes leads to. The trie is locked.
func (f *follower) classNode(trie *classTrie, text string) *classNode {
	n := &trie.root
	for i := range len(text) {
		steps := f.classesBehind(trie, n)
		at, _ := slices.BinarySearchFunc(steps, text[i], func(s classStep, class byte) int { return cmp.Compare(s.class, class) })
		n = steps[at].to
	}
	return n
}

// wide says whether many bytes lead on from a state, and some of them to the same.
func (s *state) wide() bool {
	return s.of.byteClass != nil && s.of.text == nil && s.leads().count() >= wideBytes
}

// walkClasses follows all tokens from the one thread of a place, which is wide and in no call.
func (f *follower) walkClasses(t thread) {
	trie := f.vocabulary.classes(t.at.of.byteClass)
	trie.mu.Lock()
	defer trie.mu.Unlock()
	behind := f.behind(f.nodes[t.node].next)
	if behind != nil {
		f.visit(behind)
	}
	f.classText = f.classText[:0]
	from := len(f.classes)
	f.classes = append(f.classes, classRests{byteClass: trie.byteClass})
	f.walkClass(trie, &trie.root, t.at, behind)
	if len(f.classes[from].texts) == 0 {
		f.classes = f.classes[:from]
	}
}

// walkClass follows what is behind a node of a trie of classes, to which f.classText leads, from a state.
// behind is where the lexeme leads; nil: nowhere.
func (f *follower) walkClass(trie *classTrie, from *classNode, at *state, behind *place) {
	for _, step := range f.classesBehind(trie, from) {
		if !f.works(workOf(len(at.nodes))) {
			return
		}
		to := at.next(step.class)
		if to == nil {
			continue
		}
		f.classText = append(f.classText, step.class)
		leaves := to.final && behind != nil
		if !to.ends || leaves && len(behind.threads) > 0 {
			step.to.ends.add(f.allowed)
		}
		if leaves {
			if behind.complete {
				step.to.ends.add(f.ends)
				left := &f.classes[len(f.classes)-1]
				left.texts = append(left.texts, string(f.classText))
			}
			f.walkBehindClass(trie, step.to, behind)
		}
		if !to.ends {
			f.walkClass(trie, step.to, to, behind)
		}
		f.classText = f.classText[:len(f.classText)-1]
	}
}

// walkRests follows what is left behind nodes of a trie of classes from a place.
func (f *follower) walkRests(r classRests, at *place) {
	trie := f.vocabulary.classes(r.byteClass)
	trie.mu.Lock()
	defer trie.mu.Unlock()
	for _, text := range r.texts {
		if !f.works(len(text)) {
			return
		}
		f.walkBehindClass(trie, f.classNode(trie, text), at)
	}
}

// walkBehindClass follows what is behind a node of a trie of classes from a place.
func (f *follower) walkBehindClass(trie *classTrie, from *classNode, at *place) {
	if len(at.threads) == 0 {
		return
	}
	var onward byteSet // classes
	for b := range at.leads().all {
		onward.add(trie.byteClass[b])
	}
	for _, step := range f.classesBehind(trie, from) {
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
