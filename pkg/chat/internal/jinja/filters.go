package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filter func(m *machine, v any, p parameters) (any, error)

var filters = map[string]filter{
	"abs": absolute, "attr": attributeFilter, "batch": batch, "capitalize": ofText(runeCost, capitalize), "count": lengthFilter,
	"d": defaultFilter, "default": defaultFilter, "dictsort": dictsort, "e": ofText(escapeCost, escape), "escape": ofText(escapeCost, escape),
	"first": first, "float": toFloat, "indent": indent, "int": toInt, "items": items, "join": join, "last": last,
	"length": lengthFilter, "list": toList, "lower": ofText(runeCost, strings.ToLower), "max": extreme(1), "min": extreme(-1),
	"replace": replace, "reverse": reverse, "round": round, "safe": ofText(0, func(s string) string { return s }),
	"sort": sortFilter, "string": ofText(0, func(s string) string { return s }), "sum": sum, "title": ofText(runeCost, title),
	"tojson": toJSON, "trim": trim, "unique": unique, "upper": ofText(2*runeCost, upper), "wordcount": wordcount,
}

// filterOf looks a filter up; those that look up others are not in the table.
func filterOf(name string) filter {
	switch name {
	case "map":
		return mapFilter
	case "select":
		return choose(false, true)
	case "selectattr":
		return choose(true, true)
	case "reject":
		return choose(false, false)
	case "rejectattr":
		return choose(true, false)
	}
	return filters[name]
}

// escapeCost is what becomes of a byte: "&" is "&amp;".
const escapeCost = 6

// ofText is a filter of a value's text, which costs so much a byte.
func ofText(byteCost int, change func(string) string) filter {
	return func(m *machine, v any, _ parameters) (any, error) {
		t, err := m.text(v)
		if err != nil {
			return nil, err
		}
		if err := m.spendTimes(len(t), byteCost); err != nil {
			return nil, err
		}
		return change(t), nil
	}
}

func upper(s string) string {
	return strings.ToUpper(strings.ReplaceAll(s, "ß", "SS"))
}

func capitalize(s string) string {
	r, n := utf8.DecodeRuneInString(s)
	if n == 0 {
		return s
	}
	return string(unicode.ToTitle(r)) + strings.ToLower(s[n:])
}

// title is Jinja2's filter: words begin after white space, - and brackets.
func title(s string) string {
	var out strings.Builder
	begins := true
	for _, r := range s {
		if begins {
			out.WriteRune(unicode.ToTitle(r))
		} else {
			out.WriteRune(unicode.ToLower(r))
		}
		begins = isSpace(r) || strings.ContainsRune("-({[<", r)
	}
	return out.String()
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace(s)
}

func attributeFilter(m *machine, v any, p parameters) (any, error) {
	name, err := p.text(0, "name", "")
	if err != nil {
		return nil, err
	}
	if _, ok := v.(*Dict); ok { // attr never looks at elements
		return undefined{"a dict has no attribute " + shortText(name)}, nil
	}
	return m.getAttribute(v, name)
}

func batch(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	n, err := p.number(0, "linecount", 1)
	if err != nil || n < 1 {
		return nil, errors.Join(err, errors.New("linecount has to be at least 1"))
	}
	fill, filled := p.get(1, "fill_with")
	var out []any
	for part := range slices.Chunk(all, int(min(n, int64(max(len(all), 1))))) {
		if err := m.spend(valueCost + elementCost*len(part)); err != nil {
			return nil, err
		}
		part = slices.Clone(part)
		for filled && fill != nil && int64(len(part)) < n {
			if err := m.spend(valueCost); err != nil {
				return nil, err
			}
			part = append(part, fill)
		}
		out = append(out, list(part))
	}
	return list(out), nil
}

func lengthFilter(m *machine, v any, _ parameters) (any, error) {
	if s, ok := v.(string); ok {
		if err := m.spend(len(s)); err != nil {
			return nil, err
		}
	}
	n, err := length(v)
	return int64(n), err
}

func defaultFilter(_ *machine, v any, p parameters) (any, error) {
	otherwise, ok := p.get(0, "default_value")
	if !ok {
		otherwise = ""
	}
	if _, missing := v.(undefined); missing || p.truth(1, "boolean", false) && !truth(v) {
		return otherwise, nil
	}
	return v, nil
}

func dictsort(m *machine, v any, p parameters) (any, error) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("a %s is no mapping", typeName(v))
	}
	by, err := p.text(1, "by", "key")
	if err != nil || by != "key" && by != "value" {
		return nil, errors.Join(err, errors.New("by has to be key or value"))
	}
	pairs, err := m.pairs(d)
	if err != nil {
		return nil, err
	}
	position := 0
	if by == "value" {
		position = 1
	}
	return m.sorted(pairs.Items, func(v any) (any, error) {
		pair, ok := v.(*List)
		if !ok {
			return nil, fmt.Errorf("a %s is no pair", typeName(v))
		}
		return pair.Items[position], nil
	},
		p.truth(2, "reverse", false), p.truth(0, "case_sensitive", false))
}

func first(m *machine, v any, _ parameters) (any, error) {
	if s, ok := v.(string); ok && s != "" {
		_, width := utf8.DecodeRuneInString(s)
		return s[:width], nil
	}
	all, err := m.iterate(v)
	if err != nil || len(all) == 0 {
		return undefined{"there is no first item, the sequence is empty"}, err
	}
	return all[0], nil
}

func last(m *machine, v any, _ parameters) (any, error) {
	if s, ok := v.(string); ok && s != "" {
		_, width := utf8.DecodeLastRuneInString(s)
		return s[len(s)-width:], nil
	}
	all, err := m.iterate(v)
	if err != nil || len(all) == 0 {
		return undefined{"there is no last item, the sequence is empty"}, err
	}
	return all[len(all)-1], nil
}

func indent(m *machine, v any, p parameters) (any, error) {
	s, ok := v.(string)
	if !ok {
		return nil, fmt.Errorf("a %s cannot be indented", typeName(v))
	}
	with := "    "
	if w, given := p.get(0, "width"); given {
		if with, ok = w.(string); !ok {
			n, err := p.number(0, "width", 4)
			if err != nil || n > maxRange {
				return nil, errors.Join(err, errors.New("width is too large"))
			}
			if err := m.spend(int(max(n, 0))); err != nil {
				return nil, err
			}
			with = strings.Repeat(" ", int(max(n, 0)))
		}
	}
	if err := m.spend(2 * len(s)); err != nil {
		return nil, err
	}
	if err := m.spendTimes(strings.Count(s, "\n")+1, 2*len(with)+valueCost); err != nil {
		return nil, err
	}
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		if i == 0 && !p.truth(1, "first", false) || line == "" && !p.truth(2, "blank", false) && i > 0 {
			continue
		}
		lines[i] = with + line
	}
	return strings.Join(lines, "\n"), nil
}

func items(m *machine, v any, _ parameters) (any, error) {
	switch x := v.(type) {
	case undefined:
		return list(nil), nil
	case *Dict:
		return m.pairs(x)
	}
	return nil, fmt.Errorf("a %s is no mapping", typeName(v))
}

// pairs are the keys of a dictionary with their values.
func (m *machine) pairs(d *Dict) (*List, error) {
	if err := m.spend(entryCost * len(d.keys)); err != nil {
		return nil, err
	}
	out := make([]any, len(d.keys))
	for i, key := range d.keys {
		out[i] = tuple(key, d.values[i])
	}
	return list(out), nil
}

func join(m *machine, v any, p parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	separator, ok := p.get(0, "d")
	if !ok {
		separator = ""
	}
	by, err := m.path(p.get(1, "attribute"))
	if err != nil {
		return nil, err
	}
	between, err := m.text(separator)
	if err != nil {
		return nil, err
	}
	if err := m.spendTimes(len(all), elementCost); err != nil {
		return nil, err
	}
	parts := make([]string, len(all))
	for i, e := range all {
		if e, err = m.follow(e, by); err != nil {
			return nil, err
		}
		if parts[i], err = m.text(e); err != nil {
			return nil, err
		}
	}
	return m.joined(parts, between)
}

func toList(m *machine, v any, _ parameters) (any, error) {
	all, err := m.iterate(v)
	return list(all), err
}

func replace(m *machine, v any, p parameters) (any, error) {
	s, err := m.text(v)
	if err != nil {
		return nil, err
	}
	return replaced(m, s, p)
}

// replaced is str.replace, which counts what it makes before it is made.
func replaced(m *machine, s string, p parameters) (any, error) {
	old, err := p.text(0, "old", "")
	if err != nil {
		return nil, err
	}
	with, err := p.text(1, "new", "")
	if err != nil {
		return nil, err
	}
	n := int64(-1)
	if v, ok := p.get(2, "count"); ok && v != nil {
		if n, err = p.number(2, "count", -1); err != nil {
			return nil, err
		}
	}
	if err := m.spend(2 * len(s)); err != nil {
		return nil, err
	}
	times := int64(strings.Count(s, old))
	if n >= 0 {
		times = min(times, n)
	}
	if err := m.spendTimes(int(times), len(with)+elementCost); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, int(times)), nil
}

func reverse(m *machine, v any, _ parameters) (any, error) {
	_, isText := v.(string)
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	out, err := m.list(len(all))
	if err != nil {
		return nil, err
	}
	var t strings.Builder
	for i, e := range slices.Backward(all) {
		out[len(all)-1-i] = e
		if s, ok := e.(string); ok && isText {
			t.WriteString(s)
		}
	}
	if isText {
		return t.String(), nil
	}
	return list(out), nil
}

func trim(m *machine, v any, p parameters) (any, error) {
	s, err := m.text(v)
	if err != nil {
		return nil, err
	}
	return m.strip(s, "strip", p)
}

func wordcount(m *machine, v any, _ parameters) (any, error) {
	s, err := m.text(v)
	if err != nil {
		return nil, err
	}
	if err := m.spendTimes(len(s), runeCost); err != nil {
		return nil, err
	}
	words, inside := int64(0), false
	for _, r := range s {
		isLetter := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_'
		if isLetter && !inside {
			words++
		}
		inside = isLetter
	}
	return words, nil
}
