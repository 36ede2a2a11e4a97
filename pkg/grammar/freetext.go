package grammar

import (
	"bytes"
	"slices"
	"sort"
	"strings"
)

// freeText is the lexeme of any text up to where a trigger ends. Its states are those of Aho and
// Corasick's automaton of the triggers: how much of them the text ends with. Its masks are all
// tokens, but for the few that have a trigger and go on as no tag does.
type freeText struct {
	lexemes  *lexemes
	lexeme   *lexeme
	triggers []string
	atStart  bool
	nodes    []triggerNode
	states   map[int32]*state
	having   []int32 // tokens that contain a trigger, once they were looked for
}

// triggerNode is a beginning of triggers.
type triggerNode struct {
	to      []triggerStep
	fail    int32 // the longest other one that this ends with
	depth   int
	trigger int     // which one it is all of; -1: of none
	begins  []int32 // the triggers that begin with it
}

type triggerStep struct {
	b  byte
	to int32
}

// noTrigger is the node where no trigger can come any more.
const noTrigger int32 = -1

// free makes the lexeme. atStart: triggers count at the beginning of the text alone.
func (l *lexemes) free(triggers []string, atStart bool) *lexeme {
	f := &freeText{
		lexemes: l, lexeme: new(lexeme), triggers: triggers, atStart: atStart, nodes: []triggerNode{{trigger: -1}},
		states: make(map[int32]*state),
	}
	f.lexeme.free, f.lexeme.step = f, f.step
	f.lexeme.leads = func(*state) (all byteSet) { all.addRange(0, 255); return all }
	for i, trigger := range triggers {
		at := int32(0)
		f.nodes[0].begins = append(f.nodes[0].begins, int32(i))
		for j := range len(trigger) {
			to, is := f.nodes[at].child(trigger[j])
			if !is {
				to = int32(len(f.nodes))
				f.nodes = append(f.nodes, triggerNode{depth: j + 1, trigger: -1})
				f.nodes[at].to = append(f.nodes[at].to, triggerStep{trigger[j], to})
			}
			at = to
			f.nodes[at].begins = append(f.nodes[at].begins, int32(i))
		}
		f.nodes[at].trigger = i
	}
	// Breadth first, so that what a node fails to is ready.
	for queue := []int32{0}; len(queue) > 0; queue = queue[1:] {
		for _, step := range f.nodes[queue[0]].to {
			if queue[0] != 0 {
				f.nodes[step.to].fail = f.follow(f.nodes[queue[0]].fail, step.b)
			}
			queue = append(queue, step.to)
		}
	}
	l.nodes += len(f.nodes)
	f.lexeme.first = f.state(0)
	if len(triggers) == 0 {
		f.lexeme.first = f.state(noTrigger)
	}
	return f.lexeme
}

func (n *triggerNode) child(b byte) (to int32, is bool) {
	for _, step := range n.to {
		if step.b == b {
			return step.to, true
		}
	}
	return 0, false
}

// follow is where a byte leads.
func (f *freeText) follow(at int32, b byte) int32 {
	for at != noTrigger {
		if to, is := f.nodes[at].child(b); is {
			return to
		}
		switch {
		case f.atStart:
			at = noTrigger
		case at == 0:
			return 0
		default:
			at = f.nodes[at].fail
		}
	}
	return noTrigger
}

func (f *freeText) state(at int32) *state {
	if made := f.states[at]; made != nil {
		return made
	}
	made := f.lexemes.state(f.lexeme)
	made.node = at
	if at != noTrigger && f.nodes[at].trigger >= 0 {
		made.final, made.ends = true, true
	}
	f.states[at] = made
	return made
}

func (f *freeText) step(from *state, b byte) *state {
	return f.state(f.follow(from.node, b))
}

// trigger is which trigger a final state is the end of.
func (f *freeText) trigger(s *state) int { return f.nodes[s.node].trigger }

// candidates are the tokens that may end a trigger from a state on, and some others.
func (f *freeText) candidates(s *state, v *Vocabulary) (out []int32) {
	at := s.node
	if at == noTrigger {
		return nil
	}
	for ; ; at = f.nodes[at].fail {
		n := &f.nodes[at]
		if at == 0 && !f.atStart {
			break
		}
		for _, i := range n.begins {
			if node, is := v.all.find(f.triggers[i][n.depth:]); is {
				out = v.all.below(node, out)
			}
		}
		if at == 0 || f.atStart {
			return out
		}
	}
	if f.having == nil {
		f.having = f.lookFor(v)
	}
	return append(out, f.having...)
}

// maxSearches is how many triggers are looked for one by one, which takes the processor's search
// for bytes; more are looked for together. In 128,000 tokens the former is some hundred times as fast
// for one trigger, and four times for 32: it is part of the time of a grammar's first mask.
const maxSearches = 32

// lookFor finds the tokens that contain a trigger, never nil.
func (f *freeText) lookFor(v *Vocabulary) []int32 {
	out := []int32{}
	if len(f.triggers) <= maxSearches {
		for _, trigger := range f.triggers {
			out = append(out, v.having(trigger)...)
			f.lexemes.effort += len(v.joined) / 16
		}
		return out
	}
	f.lexemes.effort += len(v.all.bytes)
	return f.lookBehind(0, 0, v.all, out)
}

// lookBehind appends those behind a node of a trie, which leads to a beginning of triggers.
func (f *freeText) lookBehind(node, at int32, t *trie, out []int32) []int32 {
	first, end := t.behind(node)
	for child := first; child < end; child++ {
		if to := f.follow(at, t.bytes[child]); f.nodes[to].trigger >= 0 {
			out = t.below(child, out)
		} else {
			out = f.lookBehind(child, to, t, out)
		}
	}
	return out
}

// maskFree is the mask of a place where text is free: all tokens, special ones and those that end
// the output too, but for those that have a trigger and go on as nothing does.
func (m *masks) maskFree(at *place, free thread) []uint64 {
	out := make([]uint64, m.vocabulary.words())
	for i := range out {
		out[i] = ^uint64(0)
	}
	if extra := m.vocabulary.size & 63; extra != 0 {
		out[len(out)-1] = 1<<extra - 1
	}
	for _, id := range free.at.of.free.candidates(free.at, m.vocabulary) {
		text := m.vocabulary.text(id)
		if m.work += len(text); m.work > maxMaskWork || m.exhausted() {
			return out // it is not used
		}
		m.effort += len(text)
		if m.walkText(at, text) == nil {
			out[id>>6] &^= 1 << (id & 63)
		}
	}
	return out
}

// freeThread is the thread of a place in which text is free.
func (p *place) freeThread() (free thread, is bool) {
	i := slices.IndexFunc(p.threads, func(t thread) bool { return t.at.of.free != nil })
	if i < 0 {
		return free, false
	}
	return p.threads[i], true
}

// having are the tokens whose texts contain a text, never nil.
func (v *Vocabulary) having(text string) []int32 {
	out := []int32{}
	if strings.HasPrefix(text, "\xff") {
		return out // a special token, which is in no text
	}
	for from := 0; ; {
		found := bytes.Index(v.joined[from:], []byte(text))
		if found < 0 {
			return out
		}
		at := from + found
		// The token in which that begins; it may end in another one.
		id := sort.Search(v.size, func(id int) bool { return int(v.joins[id+1]) > at })
		if at+len(text) <= int(v.joins[id+1]) {
			out = append(out, int32(id))
			from = int(v.joins[id+1])
		} else {
			from = at + 1
		}
	}
}

// join puts all texts behind one another, to look for something in all of them.
func (v *Vocabulary) join() {
	v.joins = make([]int32, v.size+1)
	for id, text := range v.texts {
		v.joined = append(v.joined, text...)
		v.joins[id+1] = int32(len(v.joined))
	}
}
