package jinja

import (
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filter func(m *machine, v any, p parameters) any

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
	return func(m *machine, v any, _ parameters) any {
		t := m.text(v)
		m.spendTimes(len(t), byteCost)
		return change(t)
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

var escape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace

func attributeFilter(m *machine, v any, p parameters) any {
	name := p.text(0, "name", "")
	if _, ok := v.(*Dict); ok { // attr never looks at elements
		return undefined{"a dict has no attribute " + shortText(name)}
	}
	return m.getAttribute(v, name)
}

func batch(m *machine, v any, p parameters) any {
	all := m.iterate(v)
	n, err := p.asNumber(0, "linecount", 1)
	if err != nil || n < 1 {
		return failWith(errors.Join(err, errors.New("linecount has to be at least 1")))
	}
	fill, filled := p.get(1, "fill_with")
	var out []any
	for part := range slices.Chunk(all, int(min(n, int64(max(len(all), 1))))) {
		m.spend(valueCost + elementCost*len(part))
		part = slices.Clone(part)
		for filled && fill != nil && int64(len(part)) < n {
			m.spend(valueCost)
			part = append(part, fill)
		}
		out = append(out, list(part))
	}
	return list(out)
}

func lengthFilter(m *machine, v any, _ parameters) any {
	if s, ok := v.(string); ok {
		m.spend(len(s))
	}
	return int64(length(v))
}

func defaultFilter(_ *machine, v any, p parameters) any {
	otherwise, ok := p.get(0, "default_value")
	if !ok {
		otherwise = ""
	}
	if _, missing := v.(undefined); missing || p.truth(1, "boolean", false) && !truth(v) {
		return otherwise
	}
	return v
}

func dictsort(m *machine, v any, p parameters) any {
	d, ok := v.(*Dict)
	if !ok {
		return fail("a %s is not a mapping", typeName(v))
	}
	by, err := p.asText(1, "by", "key")
	if err != nil || by != "key" && by != "value" {
		return failWith(errors.Join(err, errors.New("by has to be key or value")))
	}
	pairs := m.pairs(d)
	position := 0
	if by == "value" {
		position = 1
	}
	return m.sorted(pairs.Items, func(v any) any {
		pair, ok := v.(*List)
		if !ok {
			return fail("a %s is not a pair", typeName(v))
		}
		return pair.Items[position]
	},
		p.truth(2, "reverse", false), p.truth(0, "case_sensitive", false))
}

func first(m *machine, v any, _ parameters) any {
	if s, ok := v.(string); ok && s != "" {
		_, width := utf8.DecodeRuneInString(s)
		return s[:width]
	}
	all := m.iterate(v)
	if len(all) == 0 {
		return undefined{"there is no first item, the sequence is empty"}
	}
	return all[0]
}

func last(m *machine, v any, _ parameters) any {
	if s, ok := v.(string); ok && s != "" {
		_, width := utf8.DecodeLastRuneInString(s)
		return s[len(s)-width:]
	}
	all := m.iterate(v)
	if len(all) == 0 {
		return undefined{"there is no last item, the sequence is empty"}
	}
	return all[len(all)-1]
}

func indent(m *machine, v any, p parameters) any {
	s, ok := v.(string)
	if !ok {
		return fail("a %s cannot be indented", typeName(v))
	}
	with := "    "
	if w, given := p.get(0, "width"); given {
		if with, ok = w.(string); !ok {
			n, err := p.asNumber(0, "width", 4)
			if err != nil || n > maxRange {
				return failWith(errors.Join(err, errors.New("width is too large")))
			}
			m.spend(int(max(n, 0)))
			with = strings.Repeat(" ", int(max(n, 0)))
		}
	}
	m.spend(2 * len(s))
	lines := m.splitLines(s+"\n", false)
	m.spendTimes(len(lines), 2*len(with)+valueCost)
	out := make([]string, len(lines))
	for i, line := range lines {
		out[i], _ = line.(string)
		if i == 0 && p.truth(1, "first", false) || i > 0 && (out[i] != "" || p.truth(2, "blank", false)) {
			out[i] = with + out[i]
		}
	}
	return strings.Join(out, "\n")
}

func items(m *machine, v any, _ parameters) any {
	switch x := v.(type) {
	case undefined:
		return list(nil)
	case *Dict:
		return m.pairs(x)
	}
	return fail("a %s is not a mapping", typeName(v))
}

// pairs are the keys of a dictionary with their values.
func (m *machine) pairs(d *Dict) *List {
	m.spend(entryCost * len(d.keys))
	out := make([]any, len(d.keys))
	for i, key := range d.keys {
		out[i] = tuple(key, d.values[i])
	}
	return list(out)
}

func join(m *machine, v any, p parameters) any {
	all := m.iterate(v)
	separator, ok := p.get(0, "d")
	if !ok {
		separator = ""
	}
	by := m.path(p.get(1, "attribute"))
	between := m.text(separator)
	m.spendTimes(len(all), elementCost)
	parts := make([]string, len(all))
	for i, e := range all {
		parts[i] = m.text(m.follow(e, by))
	}
	return m.joined(parts, between)
}

func toList(m *machine, v any, _ parameters) any {
	return list(m.iterate(v))
}

func replace(m *machine, v any, p parameters) any {
	return replaced(m, m.text(v), p)
}

// replaced is str.replace, which counts what it makes before it is made.
func replaced(m *machine, s string, p parameters) any {
	old := p.text(0, "old", "")
	with := p.text(1, "new", "")
	n := int64(-1)
	if v, ok := p.get(2, "count"); ok && v != nil {
		n = p.number(2, "count", -1)
	}
	m.spend(2 * len(s))
	times := int64(strings.Count(s, old))
	if n >= 0 {
		times = min(times, n)
	}
	m.spendTimes(int(times), len(with)+elementCost)
	return strings.Replace(s, old, with, int(times))
}

func reverse(m *machine, v any, _ parameters) any {
	_, isText := v.(string)
	all := m.iterate(v)
	out := m.list(len(all))
	var t strings.Builder
	for i, e := range slices.Backward(all) {
		out[len(all)-1-i] = e
		if s, ok := e.(string); ok && isText {
			t.WriteString(s)
		}
	}
	if isText {
		return t.String()
	}
	return list(out)
}

func trim(m *machine, v any, p parameters) any {
	return m.strip(m.text(v), "strip", p)
}

func wordcount(m *machine, v any, _ parameters) any {
	s := m.text(v)
	m.spendTimes(len(s), runeCost)
	words, inside := int64(0), false
	for _, r := range s {
		isLetter := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_'
		if isLetter && !inside {
			words++
		}
		inside = isLetter
	}
	return words
}
