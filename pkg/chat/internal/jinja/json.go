package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
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
			j.indent = strings.Repeat(" ", int(min(max(n, 0), maxIndent)))
		}
	}
	if s, ok := p.get(2, "separators"); ok && s != nil {
		l, ok := s.(*List)
		if !ok || len(l.Items) != 2 {
			return nil, errors.New("separators have to be two strings")
		}
		var err error
		if j.between, err = m.text(l.Items[0]); err != nil {
			return nil, err
		}
		if j.colon, err = m.text(l.Items[1]); err != nil {
			return nil, err
		}
	}
	if err := j.value(v, 0); err != nil {
		return nil, err
	}
	return j.out.String(), nil
}

// maxIndent is the widest indentation of JSON.
const maxIndent = 64

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
	if err := j.m.spend(stepCost); err != nil {
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
	if err := j.m.spend(valueCost * len(d.keys)); err != nil {
		return err
	}
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
		var failed error
		slices.SortStableFunc(order, func(a, b int) int {
			if failed == nil {
				failed = j.m.spend(stepCost + min(len(keys[a]), len(keys[b])))
			}
			if failed != nil {
				return 0
			}
			return strings.Compare(keys[a], keys[b])
		})
		if failed != nil {
			return failed
		}
	}
	return j.block('{', '}', len(keys), depth, func(i int) error {
		if err := j.text(keys[order[i]]); err != nil {
			return err
		}
		if err := j.write(j.colon, 1); err != nil {
			return err
		}
		return j.value(d.values[order[i]], depth+1)
	})
}

func (j *encoder) block(open, closing byte, n, depth int, element func(i int) error) error {
	j.out.WriteByte(open)
	for i := range n {
		if i > 0 {
			if err := j.write(j.between, 1); err != nil {
				return err
			}
		}
		if err := j.newLine(depth + 1); err != nil {
			return err
		}
		if err := element(i); err != nil {
			return err
		}
	}
	if n > 0 {
		if err := j.newLine(depth); err != nil {
			return err
		}
	}
	j.out.WriteByte(closing)
	return nil
}

func (j *encoder) newLine(depth int) error {
	if !j.lines {
		return nil
	}
	j.out.WriteByte('\n')
	return j.write(j.indent, depth)
}

// write writes a text so many times.
func (j *encoder) write(s string, times int) error {
	if err := j.m.spendTimes(times, 2*len(s)); err != nil {
		return err
	}
	for range times {
		j.out.WriteString(s)
	}
	return nil
}

func (j *encoder) text(s string) error {
	if err := j.m.spend(2 * len(s)); err != nil {
		return err
	}
	j.out.WriteByte('"')
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' || j.ascii && r >= utf8.RuneSelf-1 {
			if err := j.m.spend(2 * len(`\u0000`)); err != nil {
				return err
			}
		}
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
			hex(&j.out, 'u', 4, r)
		case j.ascii && r > 0xffff:
			high, low := utf16.EncodeRune(r)
			hex(&j.out, 'u', 4, high)
			hex(&j.out, 'u', 4, low)
		case j.ascii && r >= utf8.RuneSelf-1:
			hex(&j.out, 'u', 4, r)
		default:
			j.out.WriteRune(r)
		}
	}
	j.out.WriteByte('"')
	return nil
}
