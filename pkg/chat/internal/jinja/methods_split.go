package jinja

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// split is str.split and str.rsplit.
func (m *machine) split(s string, right bool, p parameters) any {
	most := p.number(1, "maxsplit", -1)
	separator, given := p.get(0, "sep")
	if !given || separator == nil {
		if most >= 0 {
			return fail("maxsplit without a separator is not supported")
		}
		return m.fields(s)
	}
	by, err := p.asText(0, "sep", "")
	if err != nil || by == "" {
		return failWith(errors.Join(err, errors.New("the separator is empty")))
	}
	// The parts twice, and the rest that maxsplit leaves together.
	m.spend(len(s))
	m.spendTimes(strings.Count(s, by)+1, 2*valueCost)
	parts := strings.Split(s, by)
	if n := int64(len(parts)) - 1; most >= 0 && n > most {
		if right {
			cut := n - most
			parts = append([]string{strings.Join(parts[:cut+1], by)}, parts[cut+1:]...)
		} else {
			parts = append(slices.Clone(parts[:most]), strings.Join(parts[most:], by))
		}
	}
	out := make([]any, len(parts))
	for i, part := range parts {
		out[i] = part
	}
	return list(out)
}

// fields are the parts of a text between white space.
func (m *machine) fields(s string) any {
	m.spendTimes(len(s), runeCost)
	var out []any
	for part := range strings.FieldsFuncSeq(s, isSpace) {
		m.spend(valueCost)
		out = append(out, part)
	}
	return list(out)
}

// endsLine reports whether a line ends with a character, as Python has it.
func endsLine(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

func (m *machine) splitLines(s string, keep bool) []any {
	m.spendTimes(len(s), runeCost)
	var parts []any
	for s != "" {
		m.spend(valueCost)
		at := strings.IndexFunc(s, endsLine)
		if at < 0 {
			parts = append(parts, s)
			break
		}
		_, width := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			width = 2
		}
		end := at
		if keep {
			end += width
		}
		parts = append(parts, s[:end])
		s = s[at+width:]
	}
	return parts
}

// joinStrings is str.join, which takes nothing but strings.
func (m *machine) joinStrings(separator string, p parameters) any {
	v, _ := p.get(0, "iterable")
	elements := m.iterate(v)
	m.spendTimes(len(elements), elementCost)
	parts := make([]string, len(elements))
	for i, e := range elements {
		part, ok := e.(string)
		if !ok {
			return fail("element %d is a %s, not a string", i, typeName(e))
		}
		parts[i] = part
	}
	return m.joined(parts, separator)
}
