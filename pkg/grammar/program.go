package grammar

import (
	"errors"
	"fmt"
)

// program is the structure of a grammar: a graph of nodes, made back to front, which calls rules.
type program struct {
	lexemes
	nodes []node
	rules []int32          // the first node of each; -1 until it is known
	names map[int32]string // of rules, where their source gives them any
	start int32
	// special are the names of the special tokens that texts have.
	special []string
	// ignored are keywords of schemas that are not enforced, sorted; of many, some.
	ignored []string
	// deepest is how many rules begin with one another at most.
	deepest int

	json *json              // nil: not made
	made map[string]*lexeme // of expressionOf
}

type node struct {
	kind   nodeKind
	lexeme *lexeme // of nodeLexeme
	next   int32   // of nodeLexeme and nodeCall
	rule   int32   // of nodeCall
	ways   []int32 // of nodeSplit; of nodeFree, where each trigger leads
}

type nodeKind uint8

const (
	// nodeReturn goes on where the rule was called, or is the end of all.
	nodeReturn nodeKind = iota
	nodeLexeme
	nodeSplit
	nodeCall
	// nodeFree is free text until a trigger, and may be the end of all.
	nodeFree
)

// end is the node that every rule ends with.
const end int32 = 0

// nowhere is a node that nothing comes after, and that nothing gets past.
const nowhere int32 = 1

// maxNodes bounds a program.
const maxNodes = 1 << 16

var errNothing = errors.New("nothing matches it: its parts contradict one another")

var errTooManyNodes = errors.New("the grammar is too large: leave some of it out, or move what repeats into $defs")

func newProgram() *program {
	return &program{nodes: []node{{kind: nodeReturn}, {kind: nodeSplit}}, names: make(map[int32]string)}
}

func (p *program) add(n node) int32 {
	p.nodes = append(p.nodes, n)
	return int32(len(p.nodes) - 1)
}

// lexeme goes on with a lexeme before next; nil matches nothing.
func (p *program) lexeme(l *lexeme, next int32) int32 {
	if l == nil || next == nowhere {
		return nowhere
	}
	return p.add(node{kind: nodeLexeme, lexeme: l, next: next})
}

// text goes on with a text before next.
func (p *program) text(text string, next int32) (int32, error) {
	l, err := p.oneOf([]string{text})
	return p.lexeme(l, next), err
}

// split goes on one of several ways.
func (p *program) split(ways ...int32) int32 {
	var open []int32
	for _, way := range ways {
		if way != nowhere {
			open = append(open, way)
		}
	}
	switch len(open) {
	case 0:
		return nowhere
	case 1:
		return open[0]
	}
	return p.add(node{kind: nodeSplit, ways: open})
}

// loop is a split whose ways are given later.
func (p *program) loop() int32 { return p.add(node{kind: nodeSplit}) }

// rule makes a rule whose first node is given later.
func (p *program) rule() int32 {
	p.rules = append(p.rules, nowhere)
	return int32(len(p.rules) - 1)
}

// call goes on with a rule before next.
func (p *program) call(rule, next int32) int32 {
	return p.add(node{kind: nodeCall, rule: rule, next: next})
}

// finish checks a program: a rule must not begin with itself, and something has to match. Nodes
// that nothing gets past become none.
func (p *program) finish() error {
	if p.broken != nil {
		return p.broken
	}
	if len(p.nodes) > maxNodes {
		return errTooManyNodes
	}
	reaches, err := p.productive()
	if err != nil {
		return err
	}
	if !reaches[p.start] {
		return errNothing
	}
	for i := range p.nodes {
		n := &p.nodes[i]
		if n.kind != nodeSplit {
			continue
		}
		kept := n.ways[:0:0]
		for _, way := range n.ways {
			if reaches[way] {
				kept = append(kept, way)
			}
		}
		n.ways = kept
	}
	return p.checkRecursion()
}

// reaching says of each node whether the end of its rule can be reached from it through lexemes
// that pass.
func (p *program) reaching(pass func(*lexeme) bool) ([]bool, error) {
	reaches := make([]bool, len(p.nodes))
	reaches[end] = true
	for again := true; again; {
		again = false
		// Nodes come after what they lead to, but for loops and rules.
		for i := range p.nodes {
			if reaches[i] {
				continue
			}
			if err := p.tick(1); err != nil {
				return nil, err
			}
			n := &p.nodes[i]
			switch n.kind {
			case nodeLexeme:
				reaches[i] = reaches[n.next] && pass(n.lexeme)
			case nodeCall:
				reaches[i] = reaches[n.next] && reaches[p.rules[n.rule]]
			case nodeSplit:
				for _, way := range n.ways {
					reaches[i] = reaches[i] || reaches[way]
				}
			case nodeFree:
				reaches[i] = true
			}
			again = again || reaches[i]
		}
	}
	return reaches, nil
}

// productive says of each node whether the end of its rule can be reached from it.
func (p *program) productive() ([]bool, error) {
	return p.reaching(func(*lexeme) bool { return true })
}

// empty says of each node whether the end of its rule can be reached from it without a byte.
func (p *program) empty() ([]bool, error) {
	return p.reaching(func(l *lexeme) bool { return l.first.final })
}

// checkRecursion refuses a rule that calls itself before any byte.
func (p *program) checkRecursion() error {
	empty, err := p.empty()
	if err != nil {
		return err
	}
	calls := make([][]int32, len(p.rules)) // which rules begin with which
	for rule, first := range p.rules {
		seen := map[int32]bool{}
		for left := []int32{first}; len(left) > 0; {
			at := left[len(left)-1]
			left = left[:len(left)-1]
			if seen[at] {
				continue
			}
			if err := p.tick(1); err != nil {
				return err
			}
			seen[at] = true
			switch n := &p.nodes[at]; n.kind {
			case nodeSplit:
				left = append(left, n.ways...)
			case nodeLexeme:
				if n.lexeme.first.final {
					left = append(left, n.next)
				}
			case nodeCall:
				calls[rule] = append(calls[rule], n.rule)
				if empty[p.rules[n.rule]] {
					left = append(left, n.next)
				}
			}
		}
	}
	const visiting, done = 1, 2
	mark := make([]byte, len(p.rules))
	depths := make([]int, len(p.rules))
	var visit func(rule int32) error
	visit = func(rule int32) error {
		mark[rule] = visiting
		for _, called := range calls[rule] {
			switch mark[called] {
			case visiting:
				if name := p.names[called]; name != "" {
					return fmt.Errorf("the rule %q refers to itself before anything else: write what repeats with * or +", name)
				}
				return errors.New("a rule refers to itself before anything else")
			case 0:
				if err := visit(called); err != nil {
					return err
				}
			}
			depths[rule] = max(depths[rule], depths[called])
		}
		depths[rule]++
		p.deepest = max(p.deepest, depths[rule])
		mark[rule] = done
		return nil
	}
	for rule := range p.rules {
		if mark[rule] == 0 {
			if err := visit(int32(rule)); err != nil {
				return err
			}
		}
	}
	return nil
}
