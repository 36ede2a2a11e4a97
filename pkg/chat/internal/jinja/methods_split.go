package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// split is str.split and str.rsplit.
func (m *machine) split(s string, right bool, p parameters) (any, error) {
	most, err := p.number(1, "maxsplit", -1)
	if err != nil {
		return nil, err
	}
	separator, given := p.get(0, "sep")
	if !given || separator == nil {
		if most >= 0 {
			return nil, errors.New("maxsplit without a separator is not supported")
		}
		return m.fields(s)
	}
	by, err := p.text(0, "sep", "")
	if err != nil || by == "" {
		return nil, errors.Join(err, errors.New("the separator is empty"))
	}
	// The parts twice, and the rest that maxsplit leaves together.
	if err := m.spend(len(s)); err != nil {
		return nil, err
	}
	if err := m.spendTimes(strings.Count(s, by)+1, 2*valueCost); err != nil {
		return nil, err
	}
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
	return list(out), nil
}

// fields are the parts of a text between white space.
func (m *machine) fields(s string) (any, error) {
	if err := m.spendTimes(len(s), runeCost); err != nil {
		return nil, err
	}
	var out []any
	for part := range strings.FieldsFuncSeq(s, isSpace) {
		if err := m.spend(valueCost); err != nil {
			return nil, err
		}
		out = append(out, part)
	}
	return list(out), nil
}

// endsLine reports whether a line ends with a character, as Python has it.
func endsLine(r rune) bool {
	return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
}

func (m *machine) splitLines(s string, keep bool) (any, error) {
	if err := m.spendTimes(len(s), runeCost); err != nil {
		return nil, err
	}
	var parts []any
	for s != "" {
		if err := m.spend(valueCost); err != nil {
			return nil, err
		}
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
	return list(parts), nil
}

// joinStrings is str.join, which takes nothing but strings.
func (m *machine) joinStrings(separator string, p parameters) (any, error) {
	v, _ := p.get(0, "iterable")
	elements, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	if err := m.spendTimes(len(elements), elementCost); err != nil {
		return nil, err
	}
	parts := make([]string, len(elements))
	for i, e := range elements {
		part, ok := e.(string)
		if !ok {
			return nil, fmt.Errorf("element %d is a %s, not a string", i, typeName(e))
		}
		parts[i] = part
	}
	return m.joined(parts, separator)
}
