package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// toJSON is transformers' tojson: json.dumps that leaves characters as they are
// and escapes nothing for HTML.
func toJSON(m *machine, v any, p parameters) (any, error) {
	j := &encoder{m: m, between: ", ", colon: ": ", sort: p.truth(3, "sort_keys", false), ascii: p.truth(0, "ensure_ascii", false)}
	if width, ok := p.get(1, "indent"); ok && width != nil {
		j.lines, j.between = true, ","
		if s, ok := width.(string); ok {
			j.indent = s
		} else {
			n, err := p.number(1, "indent", 0)
			if err != nil {
				return nil, err
			}
			j.indent = strings.Repeat(" ", int(min(max(n, 0), 64)))
		}
	}
	if s, ok := p.get(2, "separators"); ok && s != nil {
		l, ok := s.(*List)
		if !ok || len(l.Items) != 2 {
			return nil, errors.New("separators have to be two strings")
		}
		j.between, j.colon = text(l.Items[0]), text(l.Items[1])
	}
	if err := j.value(v, 0); err != nil {
		return nil, err
	}
	return j.out.String(), nil
}

type encoder struct {
	m              *machine
	out            strings.Builder
	between, colon string
	indent         string
	lines          bool
	sort, ascii    bool
}

func (j *encoder) value(v any, depth int) error {
	if depth > maxDepth {
		return errors.New("a value is nested too deep")
	}
	if err := j.m.spend(stepCost + depth*len(j.indent)); err != nil {
		return err
	}
	switch x := v.(type) {
	case nil:
		j.out.WriteString("null")
	case bool:
		j.out.WriteString(strconv.FormatBool(x))
	case int64:
		j.out.WriteString(strconv.FormatInt(x, 10))
	case float64:
		j.out.WriteString(strings.NewReplacer("nan", "NaN", "inf", "Infinity").Replace(floatText(x)))
	case string:
		return j.text(x)
	case *List:
		return j.block('[', ']', len(x.Items), depth, func(i int) error { return j.value(x.Items[i], depth+1) })
	case *Dict:
		return j.dict(x, depth)
	case undefined:
		return errors.New(x.problem)
	default:
		return fmt.Errorf("a %s cannot be written as JSON", typeName(v))
	}
	return nil
}

func (j *encoder) dict(d *Dict, depth int) error {
	keys := make([]string, len(d.keys))
	order := make([]int, len(d.keys))
	for i, key := range d.keys {
		order[i] = i
		switch k := key.(type) {
		case string:
			keys[i] = k
		case nil:
			keys[i] = "null"
		case bool:
			keys[i] = strconv.FormatBool(k)
		default:
			keys[i] = text(k)
		}
	}
	if j.sort {
		slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(keys[a], keys[b]) })
	}
	return j.block('{', '}', len(keys), depth, func(i int) error {
		if err := j.text(keys[order[i]]); err != nil {
			return err
		}
		j.out.WriteString(j.colon)
		return j.value(d.values[order[i]], depth+1)
	})
}

func (j *encoder) block(open, closing byte, n, depth int, element func(i int) error) error {
	j.out.WriteByte(open)
	for i := range n {
		if i > 0 {
			j.out.WriteString(j.between)
		}
		j.newLine(depth + 1)
		if err := element(i); err != nil {
			return err
		}
	}
	if n > 0 {
		j.newLine(depth)
	}
	j.out.WriteByte(closing)
	return nil
}

func (j *encoder) newLine(depth int) {
	if j.lines {
		j.out.WriteByte('\n')
		j.out.WriteString(strings.Repeat(j.indent, depth))
	}
}

func (j *encoder) text(s string) error {
	if err := j.m.spend(len(s)); err != nil {
		return err
	}
	j.out.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			j.out.WriteByte('\\')
			j.out.WriteRune(r)
		case r == '\n':
			j.out.WriteString(`\n`)
		case r == '\r':
			j.out.WriteString(`\r`)
		case r == '\t':
			j.out.WriteString(`\t`)
		case r == '\b':
			j.out.WriteString(`\b`)
		case r == '\f':
			j.out.WriteString(`\f`)
		case r < 0x20:
			fmt.Fprintf(&j.out, `\u%04x`, r)
		case j.ascii && r > 0xffff:
			r -= 0x10000
			fmt.Fprintf(&j.out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		case j.ascii && r >= utf8.RuneSelf-1:
			fmt.Fprintf(&j.out, `\u%04x`, r)
		default:
			j.out.WriteRune(r)
		}
	}
	j.out.WriteByte('"')
	return nil
}
