package tokenizer_test

import (
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// A slow, literal interpreter of the regular expressions that the scanners were
// written by hand for. It reads the pattern itself, tries alternatives in order,
// repeats greedily and backtracks, as Oniguruma does; it shares no code and no
// tables with what it checks.

// matcher matches text[i:] and calls next with where it got to, for one way of
// matching after the other, until next is content.
type matcher func(text []rune, i int, next func(i int) bool) bool

// reference is a compiled pattern.
type reference struct {
	match matcher
}

// split cuts text; a byte that is in no character counts as U+FFFD.
func (r reference) split(text string) []string {
	var runes []rune
	var starts []int
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRuneInString(text[i:])
		runes = append(runes, c)
		starts = append(starts, i)
		i += size
	}
	starts = append(starts, len(text))
	pieces := []string{}
	for i := 0; i < len(runes); {
		end := -1
		r.match(runes, i, func(j int) bool {
			end = j
			return true
		})
		if end <= i {
			pieces = append(pieces, "no match here: "+text[starts[i]:])
			break
		}
		pieces = append(pieces, text[starts[i]:starts[end]])
		i = end
	}
	return pieces
}

type patternParser struct {
	t    testing.TB
	rest string
	fold bool
}

func compileReference(t testing.TB, pattern string) reference {
	t.Helper()
	p := &patternParser{t: t, rest: pattern}
	m := p.alternatives()
	if p.rest != "" {
		t.Fatalf("reference: %q of %q is left", p.rest, pattern)
	}
	return reference{m}
}

func (p *patternParser) take(prefix string) bool {
	rest, ok := strings.CutPrefix(p.rest, prefix)
	if ok {
		p.rest = rest
	}
	return ok
}

func (p *patternParser) alternatives() matcher {
	branches := []matcher{p.sequence()}
	for p.take("|") {
		branches = append(branches, p.sequence())
	}
	return func(text []rune, i int, next func(int) bool) bool {
		for _, m := range branches {
			if m(text, i, next) {
				return true
			}
		}
		return false
	}
}

func (p *patternParser) sequence() matcher {
	m := func(_ []rune, i int, next func(int) bool) bool { return next(i) }
	for p.rest != "" && p.rest[0] != '|' && p.rest[0] != ')' {
		first, second := m, p.repeated()
		m = func(text []rune, i int, next func(int) bool) bool {
			return first(text, i, func(j int) bool { return second(text, j, next) })
		}
	}
	return m
}

func (p *patternParser) repeated() matcher {
	m := p.atom()
	low, high := 1, 1
	switch {
	case p.take("?"):
		low = 0
	case p.take("+"):
		high = 1 << 30
	case p.take("*"):
		low, high = 0, 1<<30
	case p.take("{"):
		bounds, rest, _ := strings.Cut(p.rest, "}")
		from, to, _ := strings.Cut(bounds, ",")
		var err error
		if low, err = strconv.Atoi(from); err != nil {
			p.t.Fatal(err)
		}
		if high, err = strconv.Atoi(to); err != nil {
			p.t.Fatal(err)
		}
		p.rest = rest
		return repeat(m, low, high)
	default:
		return m
	}
	greedy := repeat(m, low, high)
	if !p.take("+") {
		return greedy
	}
	return func(text []rune, i int, next func(int) bool) bool { // possessive: its first way or none
		end := -1
		greedy(text, i, func(j int) bool {
			end = j
			return true
		})
		return end >= 0 && next(end)
	}
}

func repeat(m matcher, low, high int) matcher {
	return func(text []rune, i int, next func(int) bool) bool {
		if high > 0 && m(text, i, func(j int) bool {
			return j > i && repeat(m, max(low-1, 0), high-1)(text, j, next)
		}) {
			return true
		}
		return low == 0 && next(i)
	}
}

func (p *patternParser) atom() matcher {
	outer := p.fold
	switch {
	case p.take("(?!"):
		m := p.alternatives()
		p.close()
		return func(text []rune, i int, next func(int) bool) bool {
			return !m(text, i, func(int) bool { return true }) && next(i)
		}
	case p.take("(?i:"):
		p.fold = true
		fallthrough
	case p.take("(?:"):
		m := p.alternatives()
		p.close()
		p.fold = outer
		return m
	case p.take("[^"):
		set := p.set()
		return one(func(r rune) bool { return !set(r) })
	case p.take("["):
		return one(p.set())
	}
	return one(p.character())
}

func (p *patternParser) close() {
	if !p.take(")") {
		p.t.Fatalf("reference: no ) before %q", p.rest)
	}
}

func (p *patternParser) set() func(rune) bool {
	var members []func(rune) bool
	for !p.take("]") {
		members = append(members, p.character())
	}
	return func(r rune) bool {
		for _, is := range members {
			if is(r) {
				return true
			}
		}
		return false
	}
}

func (p *patternParser) character() func(rune) bool {
	whiteSpace := func(r rune) bool { return unicode.Is(unicode.White_Space, r) }
	switch {
	case p.take(`\p{`):
		name, rest, _ := strings.Cut(p.rest, "}")
		table, ok := unicode.Categories[name]
		if !ok {
			p.t.Fatalf("reference: no category %q", name)
		}
		p.rest = rest
		return func(r rune) bool { return unicode.Is(table, r) }
	case p.take(`\s`):
		return whiteSpace
	case p.take(`\S`):
		return func(r rune) bool { return !whiteSpace(r) }
	case p.take(`\r`):
		return func(r rune) bool { return r == '\r' }
	case p.take(`\n`):
		return func(r rune) bool { return r == '\n' }
	}
	c, fold := rune(p.rest[0]), p.fold
	if strings.ContainsRune(`\.^$()[]{}*+?|`, c) || c >= utf8.RuneSelf {
		p.t.Fatalf("reference: %q is not understood", p.rest)
	}
	p.rest = p.rest[1:]
	return func(r rune) bool {
		for same := unicode.SimpleFold(c); fold && same != c; same = unicode.SimpleFold(same) {
			if r == same {
				return true
			}
		}
		return r == c
	}
}

func one(is func(rune) bool) matcher {
	return func(text []rune, i int, next func(int) bool) bool {
		return i < len(text) && is(text[i]) && next(i+1)
	}
}
