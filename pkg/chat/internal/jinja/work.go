package jinja

import (
	"strings"
	"unicode/utf8"
)

// Work is counted in units of about a byte moved or a nanosecond, before it is
// done: whatever takes time or memory in proportion to a value is charged here. So
// the budget bounds the memory of a rendering as well as its time, which is some
// tenths of a second of a core.
const (
	defaultOutputBytes = 16 << 20
	defaultWork        = 64 << 20
	watchInterval      = 1 << 16 // of work, between two looks at the context

	stepCost    = 32  // an expression, a statement
	turnCost    = 128 // of a loop, a call of a macro
	scopeCost   = 8   // a variable looked for
	elementCost = 16  // a place in a list, a value compared
	valueCost   = 64  // a small value that is made, and its place
	entryCost   = 128 // a key and a value in a dictionary, a pair
	runeCost    = 4   // a byte of text that is looked at letter by letter
)

// maxMessageBytes bounds what an error says: templates write messages.
const maxMessageBytes = 4 << 10

// spend counts work. The rendering fails when none is left.
func (m *machine) spend(units int) {
	if m.work -= units; m.work < 0 || units < 0 {
		m.work = -1
		fail("the template ran too long: it was stopped")
	}
	if m.unwatched -= units; m.unwatched < 0 {
		m.unwatched = watchInterval
		if err := m.ctx.Err(); err != nil {
			failWith(err)
		}
	}
}

// spendTimes counts work that is done so many times.
func (m *machine) spendTimes(times, units int) {
	if units > 0 && times > m.work/units {
		m.spend(m.work + 1)
	}
	m.spend(times * units)
}

// text is str() of a value.
func (m *machine) text(v any) string {
	switch v.(type) {
	case *List, *Dict:
		// A character may be written as \x00.
		m.weighAt(v, 4, 0)
	}
	return text(v)
}

// weigh counts the work of comparing a value, which may hold one value often.
func (m *machine) weigh(v any) { m.weighAt(v, 1, 0) }

// weighAt counts so much for each byte of text in a value.
func (m *machine) weighAt(v any, byteCost, depth int) {
	if depth > maxDepth {
		fail("a value is nested too deep")
	}
	switch x := v.(type) {
	case string:
		m.spend(byteCost * len(x))
	case BigInt:
		m.spend(byteCost * len(x))
	case *List:
		for _, e := range x.Items {
			m.weighAt(e, byteCost, depth+1)
		}
	case *Dict:
		for i, key := range x.keys {
			m.weighAt(key, byteCost, depth+1)
			m.weighAt(x.values[i], byteCost, depth+1)
		}
	}
	m.spend(elementCost)
}

// weight counts the work of comparing a value once, and returns it.
func (m *machine) weight(v any) int {
	before := m.work
	m.weigh(v)
	return before - m.work
}

// hash counts the work of looking for a key.
func (m *machine) hash(key any) {
	if s, ok := key.(string); ok {
		m.spend(len(s))
	}
	m.spend(elementCost)
}

// find looks a key up.
func (m *machine) find(d *Dict, key any) (any, bool) {
	m.hash(key)
	v, ok := d.Get(key)
	return v, ok
}

// list is a list of n places that the caller fills.
func (m *machine) list(n int) []any {
	m.spendTimes(n, elementCost)
	return make([]any, n)
}

// cut is at most limit bytes of a text, and a sign of what is missing.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// shortText is how errors name a value that a template chose.
func shortText(v any) string {
	switch x := v.(type) {
	case string:
		return quoted(cut(x, 40))
	case *List, *Dict:
		return "a " + typeName(v)
	}
	return quoted(text(v))
}

// concat is the sum of two texts.
func (m *machine) concat(a, b string) string {
	m.spend(len(a) + len(b))
	return a + b
}

// joined is texts with another between them.
func (m *machine) joined(parts []string, between string) string {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	m.spendTimes(len(parts), len(between))
	m.spend(size)
	return strings.Join(parts, between)
}
