package grammar

import (
	"encoding/binary"
	"fmt"
	"regexp/syntax"
	"slices"
)

// lexeme is a regular part of a grammar, as a deterministic automaton whose states are made
// when they are first needed. From each of its states a final one can be reached.
type lexeme struct {
	first *state
	// step is where a byte leads from one of its states, nil if nowhere.
	step func(from *state, b byte) *state
	// leads are the bytes that may lead on from one of its states, and all that do.
	leads func(from *state) byteSet
	// byteClass says of each byte which one leads to the same state everywhere, the first of them;
	// nil: it is not known of any.
	byteClass *[256]byte
	// text is set if it is the text of a JSON string: see stringText.
	text *stringText
	// exceptsSome is set if it is any string but some: see except.
	exceptsSome bool
	// free is set if it is free text: see freeText.
	free *freeText
}

// state is one of a lexeme.
type state struct {
	of    *lexeme
	id    uint32 // of all states of the grammar
	node  int32  // of freeText: which beginning of triggers the text ends with
	final bool
	// ends: no byte leads on.
	ends   bool
	escape escape // of except
	transitions[state]
	// onward is lexeme.leads, once it was asked for.
	onward byteSet
	asked  bool

	nodes []int32 // of the nfa, if that is what the lexeme is made of
	// Of a string: how many characters are complete, as far as that matters, and where in
	// the next one.
	characters int
	within     *state
	// a and b are of a product.
	a, b *state
}

// next is where a byte leads from s, nil if nowhere.
func (s *state) next(b byte) *state {
	if to, known := s.get(b); known {
		return to
	}
	var to *state
	if class := s.of.byteClass; class != nil && class[b] != b {
		to = s.next(class[b])
	} else {
		to = s.of.step(s, b)
	}
	s.set(b, to)
	return to
}

// leads are the bytes that may lead on from s: of the others it is known that they do not.
func (s *state) leads() *byteSet {
	if !s.asked {
		s.asked, s.onward = true, s.of.leads(s)
	}
	return &s.onward
}

// maxLexemeStates bounds the states of one automaton that are remembered, and maxStateNodes the
// nodes that they have together. With more, they are made again when they are needed again.
const (
	maxLexemeStates = 1 << 13
	maxStateNodes   = 1 << 20
)

// maxSubset bounds the nodes of one state: the ways of reading what a lexeme has had so far. What
// would have more is not allowed, as with maxThreads.
const maxSubset = 1 << 11

// lexemes makes lexemes, and numbers their states.
type lexemes struct {
	last     uint32
	held     int // states that are remembered, about
	nodes    int // of all nfas
	products int // states of all products
	ranges   map[numberKey]*lexeme
	strings  map[[2]int]*lexeme // of jsonString, by the least and the most characters
	// character is nil until it is made.
	character *characterText
	broken    error

	// ended says whether the time to compile is over; nil: there is no end of it.
	ended func() error
	ticks int
	// effort is the work that was done: bytes that were looked at, and what was made.
	effort int
	limit  int // of effort; 0: none
}

// tick is called as a compilation proceeds, with how many steps were done or are about to be. Its
// error is why it has to end.
func (l *lexemes) tick(steps int) error {
	before := l.ticks / 1024
	if l.ticks += steps; l.ticks/1024 == before || l.ended == nil {
		return nil
	}
	return l.ended()
}

// makingEffort is the effort to make a state or a place, beside what it is made of.
const makingEffort = 64

// exhausted says whether no more work may be done.
func (l *lexemes) exhausted() bool { return l.limit > 0 && l.effort >= l.limit }

func (l *lexemes) state(of *lexeme) *state {
	l.last++
	l.held++
	l.effort += makingEffort
	return &state{of: of, id: l.last}
}

// forget has a lexeme's states made again. Those that outputs are at stay, and lead nowhere that is known:
// so what they led to is not kept with them.
func forget[K comparable](l *lexemes, of *lexeme, states map[K]*state) {
	for _, one := range states {
		one.transitions = transitions[state]{}
	}
	if of.first != nil {
		of.first.transitions = transitions[state]{}
	}
	l.held -= len(states)
	clear(states)
}

// subsets is the deterministic automaton of an nfa.
type subsets struct {
	lexemes *lexemes
	lexeme  *lexeme
	nodes   []nfaNode
	live    []bool
	states  map[string]*state
	kept    int // nodes of states

	seen  []bool // of closure, all false between
	found []int32
	todo  []int32
	key   []byte
}

// automaton makes a lexeme of an nfa. It is nil if that matches nothing.
func (l *lexemes) automaton(n *nfa) *lexeme {
	s := &subsets{lexemes: l, lexeme: new(lexeme), nodes: n.nodes, live: n.live(), states: make(map[string]*state), seen: make([]bool, len(n.nodes))}
	s.lexeme.step, s.lexeme.leads, s.lexeme.byteClass = s.step, s.leads, n.byteClass()
	s.closure(n.start)
	ways := len(s.found)
	if s.lexeme.first = s.state(); s.lexeme.first == nil {
		if ways > maxSubset {
			l.broken = fmt.Errorf("an expression can begin in more than %d ways: have fewer alternatives", maxSubset)
		}
		return nil
	}
	return s.lexeme
}

// closure adds to found what can be reached from a node without a byte.
func (s *subsets) closure(node int32) {
	s.todo = append(s.todo[:0], node)
	for len(s.todo) > 0 {
		at := s.todo[len(s.todo)-1]
		s.todo = s.todo[:len(s.todo)-1]
		if s.seen[at] || !s.live[at] {
			continue
		}
		s.seen[at] = true
		if n := &s.nodes[at]; n.kind == nfaSplit {
			s.todo = append(s.todo, n.out, n.other)
			// Seen splits are found again by nobody, but have to be unseen.
		}
		s.found = append(s.found, at)
	}
}

// state is that of found, which is empty again after it; nil of none.
func (s *subsets) state() *state {
	var nodes []int32
	final := false
	s.lexemes.effort += len(s.found)
	for _, at := range s.found {
		s.seen[at] = false
		switch s.nodes[at].kind {
		case nfaMatch:
			final = true
		case nfaBytes:
			nodes = append(nodes, at)
		}
	}
	s.found = s.found[:0]
	if !final && len(nodes) == 0 || len(nodes) > maxSubset {
		return nil
	}
	slices.Sort(nodes)
	s.key = append(s.key[:0], 0)
	if final {
		s.key[0] = 1
	}
	for _, at := range nodes {
		s.key = binary.LittleEndian.AppendUint32(s.key, uint32(at))
	}
	if made := s.states[string(s.key)]; made != nil {
		return made
	}
	made := s.lexemes.state(s.lexeme)
	made.final, made.nodes, made.ends = final, nodes, len(nodes) == 0
	if s.kept += len(nodes); len(s.states) >= maxLexemeStates || s.kept > maxStateNodes {
		forget(s.lexemes, s.lexeme, s.states)
		s.kept = 0
	}
	s.states[string(s.key)] = made
	return made
}

func (s *subsets) step(from *state, b byte) *state {
	for _, at := range from.nodes {
		if n := &s.nodes[at]; n.lo <= b && b <= n.hi {
			s.closure(n.out)
		}
	}
	return s.state()
}

func (s *subsets) leads(from *state) (out byteSet) {
	s.lexemes.effort += len(from.nodes)
	for _, at := range from.nodes {
		out.addRange(s.nodes[at].lo, s.nodes[at].hi)
	}
	return out
}

// expression makes a lexeme of a regular expression; nil: it matches nothing.
func (l *lexemes) expression(re *syntax.Regexp, json bool) (*lexeme, error) {
	n := l.nfa(json)
	var err error
	if n.start, err = n.expression(re, 0); err != nil {
		return nil, err
	}
	return l.automaton(n), nil
}

// known makes a lexeme of an expression of this package. Should that have a mistake, no grammar
// can be compiled: see program.finish.
func (l *lexemes) known(text string) *lexeme {
	re, err := parseExpression(text)
	var lex *lexeme
	if err == nil {
		lex, err = l.expression(re, false)
	}
	if err != nil || lex == nil {
		l.broken = fmt.Errorf("a mistake in package grammar: %q: %w", text, err)
		nothing := &lexeme{step: func(*state, byte) *state { return nil }, leads: (*state).leading}
		nothing.first = &state{of: nothing}
		return nothing
	}
	return lex
}

// oneOf makes a lexeme of some texts.
func (l *lexemes) oneOf(texts []string) (*lexeme, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	texts = slices.Clone(texts)
	slices.Sort(texts)
	n := l.nfa(false)
	var err error
	if n.start, err = n.oneOf(slices.Compact(texts), 0); err != nil {
		return nil, err
	}
	return l.automaton(n), nil
}

// maxProductStates bounds a product.
const maxProductStates = 1 << 12

// maxProductsTotal bounds all products of a grammar together.
const maxProductsTotal = 1 << 14

// both makes a lexeme of what two lexemes match; nil: nothing.
func (l *lexemes) both(x, y *lexeme) (*lexeme, error) {
	type pair struct{ a, b *state }
	out := &lexeme{byteClass: classOfBoth(x.byteClass, y.byteClass), leads: (*state).leading}
	made := map[pair]*state{}
	var order []*state
	var before [][]int // by index in order
	index := map[*state]int{}
	visit := func(p pair) *state {
		s := made[p]
		if s == nil {
			s = l.state(out)
			s.a, s.b, s.final = p.a, p.b, p.a.final && p.b.final
			made[p], index[s] = s, len(order)
			order, before = append(order, s), append(before, nil)
		}
		return s
	}
	visit(pair{x.first, y.first})
	for i := 0; i < len(order); i++ {
		if l.products++; l.products > maxProductsTotal {
			return nil, fmt.Errorf("is too large beside all the other limits that stand together: leave some of them out (all have %d states together)", maxProductsTotal)
		}
		if i > maxProductStates {
			return nil, fmt.Errorf("is too large beside the other limits: lower them, or leave one out (the limit is %d states)", maxProductStates)
		}
		s := order[i]
		for b := range 256 {
			if err := l.tick(1); err != nil {
				return nil, err
			}
			if out.byteClass != nil && out.byteClass[b] != byte(b) {
				continue
			}
			na := s.a.next(byte(b))
			if na == nil {
				s.set(byte(b), nil)
				continue
			}
			nb := s.b.next(byte(b))
			if nb == nil {
				s.set(byte(b), nil)
				continue
			}
			to := visit(pair{na, nb})
			s.set(byte(b), to)
			before[index[to]] = append(before[index[to]], i)
		}
	}
	live := make([]bool, len(order))
	var left []int
	for i, s := range order {
		if s.final {
			live[i], left = true, append(left, i)
		}
	}
	for len(left) > 0 {
		at := left[len(left)-1]
		left = left[:len(left)-1]
		for _, i := range before[at] {
			if !live[i] {
				live[i] = true
				left = append(left, i)
			}
		}
	}
	if !live[0] {
		return nil, nil
	}
	for _, s := range order {
		s.keep(func(to *state) bool { return live[index[to]] })
		s.a, s.b = nil, nil
	}
	out.first = order[0]
	out.step = func(*state, byte) *state { return nil } // all are known
	return out, nil
}

// classOfBoth is lexeme.byteClass of a product.
func classOfBoth(x, y *[256]byte) *[256]byte {
	if x == nil || y == nil {
		return nil
	}
	out, first := new([256]byte), make(map[[2]byte]byte)
	for b := range 256 {
		both := [2]byte{x[b], y[b]}
		if _, is := first[both]; !is {
			first[both] = byte(b)
		}
		out[b] = first[both]
	}
	return out
}

// keep forgets transitions to other states than some, for good.
func (s *state) keep(is func(to *state) bool) {
	var kept transitions[state]
	kept.known.addRange(0, 255)
	s.ends = true
	for b := range 256 {
		first := byte(b)
		if s.of.byteClass != nil {
			first = s.of.byteClass[b]
		}
		if to, _ := s.get(first); to != nil && is(to) {
			kept.set(byte(b), to)
			s.ends = false
		}
	}
	s.transitions = kept
}
