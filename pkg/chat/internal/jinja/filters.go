package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// parameters are what a filter or a function is given.
type parameters struct {
	args  []any
	named *Dict
}

// get is the i-th argument, or the one with a name.
func (p parameters) get(i int, name string) (any, bool) {
	if i < len(p.args) {
		return p.args[i], true
	}
	if p.named == nil {
		return nil, false
	}
	return p.named.Get(name)
}

func (p parameters) text(i int, name, otherwise string) (string, error) {
	v, ok := p.get(i, name)
	if !ok {
		return otherwise, nil
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s is a %s, not a string", name, typeName(v))
	}
	return s, nil
}

func (p parameters) number(i int, name string, otherwise int64) (int64, error) {
	v, ok := p.get(i, name)
	if !ok {
		return otherwise, nil
	}
	n, _, isFloat, ok := number(v)
	if !ok || isFloat {
		return 0, fmt.Errorf("%s is a %s, not a whole number", name, typeName(v))
	}
	return n, nil
}

func (p parameters) truth(i int, name string, otherwise bool) bool {
	if v, ok := p.get(i, name); ok {
		return truth(v)
	}
	return otherwise
}

type filter func(m *machine, v any, p parameters) (any, error)

var filters = map[string]filter{
	"abs": absolute, "attr": attributeFilter, "batch": batch, "capitalize": ofText(capitalize), "count": lengthFilter,
	"d": defaultFilter, "default": defaultFilter, "dictsort": dictsort, "e": ofText(escape), "escape": ofText(escape),
	"first": first, "float": toFloat, "indent": indent, "int": toInt, "items": items, "join": join, "last": last,
	"length": lengthFilter, "list": toList, "lower": ofText(strings.ToLower), "max": extreme(1), "min": extreme(-1),
	"replace": replace, "reverse": reverse, "round": round, "safe": ofText(func(s string) string { return s }),
	"sort": sortFilter, "string": ofText(func(s string) string { return s }), "sum": sum, "title": ofText(title),
	"tojson": toJSON, "trim": trim, "unique": unique, "upper": ofText(upper), "wordcount": wordcount,
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

// ofText is a filter of a value's text.
func ofText(change func(string) string) filter {
	return func(m *machine, v any, _ parameters) (any, error) {
		t, err := m.text(v)
		return change(t), err
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

func absolute(_ *machine, v any, _ parameters) (any, error) {
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return nil, unsupported("abs", v, v)
	case isFloat && f < 0:
		return -f, nil
	case isFloat:
		return f, nil
	case i < 0:
		return -i, nil
	}
	return i, nil
}

func attributeFilter(_ *machine, v any, p parameters) (any, error) {
	name, err := p.text(0, "name", "")
	if err != nil {
		return nil, err
	}
	if _, ok := v.(*Dict); ok { // attr never looks at elements
		return undefined{"a dict has no attribute " + quoted(name)}, nil
	}
	return getAttribute(v, name)
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
		part = slices.Clone(part)
		for filled && fill != nil && int64(len(part)) < n {
			if err := m.spend(elementCost); err != nil {
				return nil, err
			}
			part = append(part, fill)
		}
		out = append(out, list(part))
	}
	return list(out), nil
}

func lengthFilter(m *machine, v any, _ parameters) (any, error) {
	n, err := length(v)
	if s, ok := v.(string); ok && err == nil {
		err = m.spend(len(s))
	}
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
	pairs := make([]any, len(d.keys))
	for i, key := range d.keys {
		pairs[i] = tuple(key, d.values[i])
	}
	position := 0
	if by == "value" {
		position = 1
	}
	return m.sorted(pairs, func(v any) (any, error) {
		pair, ok := v.(*List)
		if !ok {
			return nil, fmt.Errorf("a %s is no pair", typeName(v))
		}
		return pair.Items[position], nil
	},
		p.truth(2, "reverse", false), p.truth(0, "case_sensitive", false))
}

func first(m *machine, v any, _ parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil || len(all) == 0 {
		return undefined{"there is no first item, the sequence is empty"}, err
	}
	return all[0], nil
}

func last(m *machine, v any, _ parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil || len(all) == 0 {
		return undefined{"there is no last item, the sequence is empty"}, err
	}
	return all[len(all)-1], nil
}

func indent(_ *machine, v any, p parameters) (any, error) {
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
			with = strings.Repeat(" ", int(max(n, 0)))
		}
	}
	if len(with)*(strings.Count(s, "\n")+1) > defaultOutputBytes {
		return nil, errors.New("the indented text is too long")
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

func items(_ *machine, v any, _ parameters) (any, error) {
	switch x := v.(type) {
	case undefined:
		return list(nil), nil
	case *Dict:
		return x.items(), nil
	}
	return nil, fmt.Errorf("a %s is no mapping", typeName(v))
}

func (d *Dict) items() *List {
	out := make([]any, len(d.keys))
	for i, key := range d.keys {
		out[i] = tuple(key, d.values[i])
	}
	return list(out)
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
	by, hasAttribute := p.get(1, "attribute")
	between := text(separator)
	parts := make([]string, len(all))
	for i, e := range all {
		if hasAttribute && by != nil {
			if e, err = m.path(e, by); err != nil {
				return nil, err
			}
		}
		if parts[i], err = m.text(e); err != nil {
			return nil, err
		}
		if err := m.spend(len(parts[i]) + len(between)); err != nil {
			return nil, err
		}
	}
	return strings.Join(parts, between), nil
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
	times := strings.Count(s, old)
	if err := m.spend(len(s)); err != nil {
		return nil, err
	}
	if with != "" && times > workBudget/len(with) {
		return nil, errors.New("the replaced text is too long")
	}
	if err := m.spend(times * len(with)); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, int(min(n, 1<<40))), nil
}

func reverse(m *machine, v any, _ parameters) (any, error) {
	all, err := m.iterate(v)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(all)
	slices.Reverse(out)
	if _, ok := v.(string); ok {
		var t strings.Builder
		for _, r := range out {
			t.WriteString(text(r))
		}
		return t.String(), nil
	}
	return list(out), nil
}

func trim(m *machine, v any, p parameters) (any, error) {
	s, err := m.text(v)
	if err != nil {
		return nil, err
	}
	set, ok := p.get(0, "chars")
	if !ok || set == nil {
		return strings.TrimFunc(s, isSpace), nil
	}
	chars, err := p.text(0, "chars", "")
	return strings.Trim(s, chars), err
}

func wordcount(m *machine, v any, _ parameters) (any, error) {
	s, err := m.text(v)
	words := strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' })
	return int64(len(words)), err
}
