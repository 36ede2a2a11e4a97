package grammar

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// maxDepth is how deep rules may be in one another: arrays and objects of JSON, for one. What
// would go deeper is not allowed.
const maxDepth = 128

// maxPlaces bounds the places of a grammar that are remembered, with the masks that belong to
// them. With more, all are made again when they are needed again.
const maxPlaces = 1 << 13

// maxThreads bounds the ways of reading one output. Where a grammar has more, an output cannot go
// on: a grammar says the same in fewer, and each costs time in every step.
const maxThreads = 1 << 10

// maxKept bounds what all places have together, as maxPlaces does their number.
const maxKept = 1 << 20

// frame is a call that has not returned: where it goes on, and the call that it is in.
type frame struct {
	back   int32
	outer  *frame
	depth  int
	id     uint32
	inside map[int32]*frame // calls within it, by where they go on
}

// number tells frames apart.
func (f *frame) number() uint32 {
	if f == nil {
		return 0
	}
	return f.id
}

// thread is one way of reading what was written so far.
type thread struct {
	node  int32  // of the program: the lexeme that is being read
	at    *state // in it
	frame *frame // nil: in no call
}

// place is where in a grammar an output can be: all ways of reading it.
type place struct {
	transitions[place]
	threads []thread
	// complete: what was written is all of something.
	complete bool
	mask     []uint64 // of the tokens that go on, once it was asked for
	slow     bool     // there is no mask, since it takes too long
	cost     int      // the work of a step from here, by workOf
	depth    int      // of calls in one another, at most
	// onward is leads, once it was asked for.
	onward byteSet
	asked  bool
}

// leads are the bytes that may lead on from a place: of the others it is known that they do not.
func (p *place) leads() *byteSet {
	if !p.asked {
		p.asked = true
		for _, t := range p.threads {
			p.onward.addAll(t.at.leads())
		}
	}
	return &p.onward
}

// machine walks a program. It is not safe for concurrent use.
type machine struct {
	*program
	outermost map[int32]*frame
	frames    uint32
	places    map[string]*place
	kept      int              // frames, and threads of places
	starts    map[int32]*place // of behind
	first     *place

	key   []byte
	found []thread
	todo  []todo
	seen  map[todo]bool
	// many: there are more ways on from a place than maxThreads, or too many to look for.
	many bool
}

type todo struct {
	node  int32
	frame *frame
}

func newMachine(p *program) *machine {
	m := &machine{
		program: p, outermost: make(map[int32]*frame), places: make(map[string]*place), starts: make(map[int32]*place), seen: make(map[todo]bool),
	}
	complete := m.enter(p.start, nil)
	m.first = m.place(complete)
	return m
}

// frameOf is the frame of a call within another one; nil: that would be too deep.
func (m *machine) frameOf(back int32, outer *frame) *frame {
	within, depth := m.outermost, 1
	if outer != nil {
		if outer.inside == nil {
			outer.inside = make(map[int32]*frame)
		}
		within, depth = outer.inside, outer.depth+1
	}
	if depth > maxDepth {
		return nil
	}
	f := within[back]
	if f == nil {
		m.frames++
		m.kept++
		f = &frame{back: back, outer: outer, depth: depth, id: m.frames}
		within[back] = f
	}
	return f
}

// enter adds to found the lexemes that can come at a node, and says whether the end can.
// Until m.seen is cleared, what comes at places that were looked at is found once.
func (m *machine) enter(at int32, in *frame) (complete bool) {
	m.todo = append(m.todo[:0], todo{at, in})
	for len(m.todo) > 0 {
		t := m.todo[len(m.todo)-1]
		m.todo = m.todo[:len(m.todo)-1]
		if m.seen[t] {
			continue
		}
		m.seen[t] = true
		if m.many = m.many || len(m.seen) > maxThreads<<4; m.many {
			return false
		}
		switch n := &m.nodes[t.node]; n.kind {
		case nodeReturn:
			if t.frame == nil {
				complete = true
			} else {
				m.todo = append(m.todo, todo{t.frame.back, t.frame.outer})
			}
		case nodeLexeme:
			if !n.lexeme.first.ends {
				m.found = append(m.found, thread{t.node, n.lexeme.first, t.frame})
			}
			if n.lexeme.first.final {
				m.todo = append(m.todo, todo{n.next, t.frame})
			}
		case nodeFree:
			m.found = append(m.found, thread{t.node, n.lexeme.first, t.frame})
			complete = true
		case nodeSplit:
			for i := len(n.ways) - 1; i >= 0; i-- {
				m.todo = append(m.todo, todo{n.ways[i], t.frame})
			}
		case nodeCall:
			inside := t.frame
			if n.next != end { // else what it returns to returns at once
				if inside = m.frameOf(n.next, t.frame); inside == nil {
					continue
				}
			}
			m.todo = append(m.todo, todo{m.rules[n.rule], inside})
		}
	}
	return complete
}

// place is that of found, which is empty again after it; nil if nothing can come and nothing is
// complete, or if there are too many ways on.
func (m *machine) place(complete bool) *place {
	threads, many := m.found, m.many
	m.found, m.many = m.found[:0], false
	if many || len(threads) == 0 && !complete {
		return nil
	}
	if len(threads) > 1 {
		slices.SortFunc(threads, func(a, b thread) int {
			return cmp.Or(cmp.Compare(a.node, b.node), cmp.Compare(a.at.id, b.at.id), cmp.Compare(a.frame.number(), b.frame.number()))
		})
		if threads = slices.Compact(threads); len(threads) > maxThreads {
			return nil
		}
	}
	m.key = append(m.key[:0], 0)
	if complete {
		m.key[0] = 1
	}
	for _, t := range threads {
		m.key = binary.LittleEndian.AppendUint32(m.key, uint32(t.node))
		m.key = binary.LittleEndian.AppendUint32(m.key, t.at.id)
		m.key = binary.LittleEndian.AppendUint32(m.key, t.frame.number())
	}
	if made := m.places[string(m.key)]; made != nil {
		return made
	}
	made := &place{threads: slices.Clone(threads), complete: complete}
	nodes := 0
	for _, t := range threads {
		nodes += 1 + len(t.at.nodes)
		if t.frame != nil {
			made.depth = max(made.depth, t.frame.depth)
		}
	}
	made.cost = workOf(nodes)
	m.effort += makingEffort + len(threads)
	if m.kept += len(threads); len(m.places) >= maxPlaces || m.kept > maxKept {
		m.forget()
	}
	m.places[string(m.key)] = made
	return made
}

// forget has the places made again. Those that outputs are at stay, and lead nowhere that is
// known: so what they led to is not kept with them.
func (m *machine) forget() {
	for _, p := range m.places {
		p.transitions = transitions[place]{}
	}
	m.first.transitions = transitions[place]{}
	clear(m.places)
	clear(m.outermost)
	clear(m.starts)
	m.kept = 0
}

// behind is the place where an output goes on at a node, looked at by itself; nil if it cannot go on.
func (m *machine) behind(node int32) *place {
	at, known := m.starts[node]
	if !known {
		m.found = m.found[:0]
		clear(m.seen)
		at = m.place(m.enter(node, nil))
		m.starts[node] = at
	}
	return at
}

// step is where a byte leads, nil if nowhere.
func (m *machine) step(from *place, b byte) *place {
	if to, known := from.get(b); known {
		return to
	}
	complete := false
	clear(m.seen)
	for _, t := range from.threads {
		to := t.at.next(b)
		if to == nil {
			continue
		}
		if !to.ends {
			m.found = append(m.found, thread{t.node, to, t.frame})
		}
		next := m.nodes[t.node].next
		if free := to.of.free; free != nil {
			if !to.final {
				complete = true
				continue
			}
			next = m.nodes[t.node].ways[free.trigger(to)]
		}
		if to.final && m.enter(next, t.frame) {
			complete = true
		}
		if m.many = m.many || len(m.found) > maxThreads<<4; m.many {
			break
		}
	}
	to := m.place(complete)
	from.set(b, to)
	return to
}

// walkText is where bytes lead, nil if nowhere.
func (m *machine) walkText(from *place, text []byte) *place {
	for _, b := range text {
		if from == nil {
			return nil
		}
		from = m.step(from, b)
	}
	return from
}
