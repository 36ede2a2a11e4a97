package grammar

import (
	"regexp/syntax"
)

// maxLexemeSize bounds the expressions that become one automaton, with the rules in them. Larger
// ones are made of several.
const maxLexemeSize = 4096

// gbnfProgram makes a program of a grammar in GBNF. What calls no rule that calls itself is
// regular, and becomes automata; the rest becomes rules of the program.
type gbnfProgram struct {
	*program
	sizes map[*syntax.Regexp]int   // 0: being found
	made  map[*syntax.Regexp]int32 // rules of the program, by group
	left  []*syntax.Regexp         // groups that are called, and not made
}

// gbnf adds a grammar in GBNF, and gives its first node.
func (p *program) gbnf(text string) (int32, error) {
	g, err := parseGBNF(text)
	if err != nil {
		return 0, err
	}
	b := &gbnfProgram{program: p, sizes: make(map[*syntax.Regexp]int), made: make(map[*syntax.Regexp]int32)}
	start, err := b.node(g.rules["root"], end)
	for err == nil && len(b.left) > 0 {
		group := b.left[len(b.left)-1]
		b.left = b.left[:len(b.left)-1]
		p.rules[b.made[group]], err = b.node(group.Sub[0], end)
	}
	return start, err
}

// recursive is the size of what cannot be one automaton.
const recursive = 1 << 30

// size is about how large an expression is as an automaton, with what it refers to.
func (p *gbnfProgram) size(re *syntax.Regexp) int {
	if known, is := p.sizes[re]; is {
		if known == 0 {
			return recursive // it is in itself
		}
		return known
	}
	p.sizes[re] = 0
	total := max(1, len(re.Rune))
	for _, sub := range re.Sub {
		total = min(total+p.size(sub), recursive)
	}
	if re.Op == syntax.OpRepeat {
		total = min(total*max(1, re.Min, re.Max), recursive)
	}
	p.sizes[re] = total
	return total
}

func (p *gbnfProgram) regular(re *syntax.Regexp) bool { return p.size(re) <= maxLexemeSize }

// node goes on with an expression before next.
func (p *gbnfProgram) node(re *syntax.Regexp, next int32) (int32, error) {
	if len(p.nodes) > maxNodes {
		return 0, errTooManyNodes
	}
	if p.regular(re) {
		if re.Op == syntax.OpEmptyMatch {
			return next, nil
		}
		l, err := p.expression(re, false)
		return p.lexeme(l, next), err
	}
	switch re.Op {
	case syntax.OpCapture:
		return p.call(p.ruleOf(re), next), nil
	case syntax.OpConcat:
		return p.sequence(re.Sub, next)
	case syntax.OpAlternate:
		return p.alternatives(re.Sub, next)
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		return p.repeat(re, next)
	}
	return 0, errTooLarge // a text or a class
}

// ruleOf is the rule of the program for a group.
func (p *gbnfProgram) ruleOf(group *syntax.Regexp) int32 {
	rule, is := p.made[group]
	if !is {
		rule = p.rule()
		p.names[rule] = group.Name
		p.made[group] = rule
		p.left = append(p.left, group)
	}
	return rule
}

// sequence is one after the other. Those beside each other that are regular become one automaton.
func (p *gbnfProgram) sequence(subs []*syntax.Regexp, next int32) (int32, error) {
	for last := len(subs); last > 0; {
		first := last - 1
		together := subs[first]
		if p.regular(together) {
			for size := p.size(together) + 1; first > 0 && size+p.size(subs[first-1]) <= maxLexemeSize; first-- {
				size += p.size(subs[first-1])
			}
			together = &syntax.Regexp{Op: syntax.OpConcat, Sub: subs[first:last]}
		}
		var err error
		if next, err = p.node(together, next); err != nil {
			return 0, err
		}
		last = first
	}
	return next, nil
}

// alternatives is one of several. Those that are regular become one automaton.
func (p *gbnfProgram) alternatives(subs []*syntax.Regexp, next int32) (int32, error) {
	together := &syntax.Regexp{Op: syntax.OpAlternate}
	size := 1
	var apart []*syntax.Regexp
	for _, sub := range subs {
		if size+p.size(sub) <= maxLexemeSize {
			size += p.size(sub)
			together.Sub = append(together.Sub, sub)
		} else {
			apart = append(apart, sub)
		}
	}
	if len(together.Sub) > 0 {
		apart = append(apart, together)
	}
	ways := make([]int32, len(apart))
	for i, sub := range apart {
		var err error
		if ways[i], err = p.node(sub, next); err != nil {
			return 0, err
		}
	}
	return p.split(ways...), nil
}

// repeat is an expression several times. It is made once, as a rule.
func (p *gbnfProgram) repeat(re *syntax.Regexp, next int32) (int32, error) {
	group := re.Sub[0]
	if group.Op != syntax.OpCapture {
		group = &syntax.Regexp{Op: syntax.OpCapture, Sub: re.Sub}
	}
	rule := p.ruleOf(group)
	low, high := re.Min, re.Max
	if high < 0 {
		loop := p.loop()
		p.nodes[loop].ways = []int32{p.call(rule, loop), next}
		next = loop
	}
	last := next
	for range max(high-low, 0) {
		next = p.split(p.call(rule, next), last)
	}
	for range low {
		next = p.call(rule, next)
	}
	return next, nil
}
