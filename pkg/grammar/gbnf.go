package grammar

import (
	"errors"
	"fmt"
	"maps"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a grammar in GBNF.
const (
	// maxRules bounds its rules.
	maxRules = 4096
	// maxRepeats bounds the numbers of a repetition.
	maxRepeats = 2000
	// maxNesting bounds the brackets that are in one another.
	maxNesting = 128
)

// gbnf is a grammar in the notation of llama.cpp, read. A rule is an expression, and a reference
// is a group with the rule's name whose only part is the rule's expression.
type gbnf struct {
	rules map[string]*syntax.Regexp
	// where is the line of the first reference to a rule that is not defined yet.
	where map[string]int

	text    string // what is left
	line    int
	nesting int
}

// parseGBNF reads the rules of a grammar. Its errors say in which line they are.
func parseGBNF(text string) (*gbnf, error) {
	g := &gbnf{rules: make(map[string]*syntax.Regexp), where: make(map[string]int), text: text, line: 1}
	switch {
	case len(text) > MaxSourceBytes:
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), MaxSourceBytes)
	case !utf8.ValidString(text):
		return nil, errors.New("is not valid UTF-8")
	}
	defined := make(map[string]bool)
	for g.space(true); g.text != ""; g.space(true) {
		if err := g.rule(defined); err != nil {
			return nil, fmt.Errorf("line %d: %w", g.line, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.where)) {
		if !defined[name] {
			return nil, fmt.Errorf("line %d: there is no rule %q", g.where[name], name)
		}
	}
	if !defined["root"] {
		return nil, errors.New(`has no rule "root", which an output begins with: write root ::= …`)
	}
	return g, nil
}

// rule reads one rule: a name, "::=" and alternatives.
func (g *gbnf) rule(defined map[string]bool) error {
	name := g.word()
	if name == "" {
		return fmt.Errorf("a rule's name is expected, not %s", g.next())
	}
	g.space(false)
	if !g.take("::=") {
		return fmt.Errorf(`"::=" is expected behind %q, not %s`, name, g.next())
	}
	if defined[name] {
		return fmt.Errorf("the rule %q stands here a second time", name)
	}
	g.space(true)
	re, err := g.alternatives(false)
	if err != nil {
		return err
	}
	if g.text != "" && !strings.HasPrefix(g.text, "\n") && !strings.HasPrefix(g.text, "\r") {
		return fmt.Errorf("the rule %q goes on with %s, which nothing here begins with", name, g.next())
	}
	defined[name] = true
	reference, err := g.reference(name)
	reference.Sub[0] = re
	return err
}

// reference is a group that stands for a rule, the same for all references to it.
func (g *gbnf) reference(name string) (*syntax.Regexp, error) {
	if r := g.rules[name]; r != nil {
		return r, nil
	}
	r := &syntax.Regexp{Op: syntax.OpCapture, Name: name, Sub: []*syntax.Regexp{nil}}
	g.rules[name], g.where[name] = r, g.line
	if len(g.rules) > maxRules {
		return r, fmt.Errorf("there are more than %d rules", maxRules)
	}
	return r, nil
}

// alternatives reads what "|" stands between, which can begin a line. Inside of brackets all goes
// on in further lines.
func (g *gbnf) alternatives(inside bool) (*syntax.Regexp, error) {
	all := &syntax.Regexp{Op: syntax.OpAlternate}
	for {
		one, err := g.sequence(inside)
		if err != nil {
			return nil, err
		}
		all.Sub = append(all.Sub, one)
		text, line := g.text, g.line
		if g.space(true); !g.take("|") {
			if !inside {
				g.text, g.line = text, line
			}
			break
		}
		g.space(true)
	}
	if len(all.Sub) == 1 {
		return all.Sub[0], nil
	}
	return all, nil
}

// sequence reads what follows one another, which can be nothing.
func (g *gbnf) sequence(inside bool) (*syntax.Regexp, error) {
	all := &syntax.Regexp{Op: syntax.OpConcat}
	for g.text != "" {
		one, err := g.item()
		if err != nil {
			return nil, err
		}
		if one == nil {
			break
		}
		for {
			g.space(inside)
			repeated, err := g.repeated(one)
			if err != nil {
				return nil, err
			}
			if repeated == nil {
				break
			}
			one = repeated
		}
		all.Sub = append(all.Sub, one)
	}
	switch len(all.Sub) {
	case 0:
		return &syntax.Regexp{Op: syntax.OpEmptyMatch}, nil
	case 1:
		return all.Sub[0], nil
	}
	return all, nil
}

// item reads a text, a class of characters, any character, brackets or the name of a rule; nil:
// none of them comes.
func (g *gbnf) item() (*syntax.Regexp, error) {
	switch {
	case g.take(`"`):
		return g.literal()
	case g.take("["):
		return g.class()
	case g.take("."):
		return &syntax.Regexp{Op: syntax.OpAnyChar}, nil
	case g.take("("):
		if g.nesting++; g.nesting > maxNesting {
			return nil, fmt.Errorf("more than %d brackets are in one another", maxNesting)
		}
		g.space(true)
		re, err := g.alternatives(true)
		if err != nil {
			return nil, err
		}
		if g.nesting--; !g.take(")") {
			return nil, fmt.Errorf(`")" is expected, not %s`, g.next())
		}
		// A group of its own, so that what repeats it repeats all of it.
		return &syntax.Regexp{Op: syntax.OpConcat, Sub: []*syntax.Regexp{re}}, nil
	case strings.HasPrefix(g.text, "<") || strings.HasPrefix(g.text, "!<"):
		return nil, errors.New("tokens in angle brackets are not supported: write their text")
	}
	if name := g.word(); name != "" {
		return g.reference(name)
	}
	return nil, nil
}

// repeated reads how often one may come; nil: nothing says so.
func (g *gbnf) repeated(one *syntax.Regexp) (*syntax.Regexp, error) {
	again := func(op syntax.Op, low, high int) *syntax.Regexp {
		return &syntax.Regexp{Op: op, Min: low, Max: high, Sub: []*syntax.Regexp{one}}
	}
	switch {
	case g.take("*"):
		return again(syntax.OpStar, 0, -1), nil
	case g.take("+"):
		return again(syntax.OpPlus, 1, -1), nil
	case g.take("?"):
		return again(syntax.OpQuest, 0, 1), nil
	case !g.take("{"):
		return nil, nil
	}
	g.space(false)
	low, err := g.number()
	if err != nil {
		return nil, err
	}
	high := low
	g.space(false)
	if g.take(",") {
		g.space(false)
		if high = -1; !strings.HasPrefix(g.text, "}") {
			if high, err = g.number(); err != nil {
				return nil, err
			}
			g.space(false)
		}
	}
	switch {
	case !g.take("}"):
		return nil, fmt.Errorf(`"}" is expected, not %s`, g.next())
	case high >= 0 && high < low:
		return nil, fmt.Errorf("{%d,%d} is backwards", low, high)
	}
	return again(syntax.OpRepeat, low, high), nil
}

func (g *gbnf) number() (int, error) {
	end := 0
	for end < len(g.text) && end < 6 && g.text[end] >= '0' && g.text[end] <= '9' {
		end++
	}
	if end == 0 {
		return 0, fmt.Errorf("a number is expected, not %s", g.next())
	}
	n, err := strconv.Atoi(g.text[:end])
	if err == nil && n > maxRepeats {
		err = fmt.Errorf("%d times are more than %d", n, maxRepeats)
	}
	g.text = g.text[end:]
	return n, err
}
