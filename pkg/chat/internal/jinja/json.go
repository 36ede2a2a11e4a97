package jinja

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// toJSON is transformers' tojson: json.dumps that leaves characters as they are
// and escapes nothing for HTML.
func toJSON(m *machine, v any, p parameters) any {
	j := &encoder{m: m, between: ", ", colon: ": ", sort: p.truth(3, "sort_keys", false), ascii: p.truth(0, "ensure_ascii", false)}
	if width, ok := p.get(1, "indent"); ok && width != nil {
		j.lines, j.between = true, ","
		if s, ok := width.(string); ok {
			j.indent = s
		} else {
			n := p.number(1, "indent", 0)
			j.indent = strings.Repeat(" ", int(min(max(n, 0), maxIndent)))
		}
	}
	if s, ok := p.get(2, "separators"); ok && s != nil {
		l, ok := s.(*List)
		if !ok || len(l.Items) != 2 {
			return fail("separators have to be two strings")
		}
		j.between = m.text(l.Items[0])
		j.colon = m.text(l.Items[1])
	}
	j.value(v, 0)
	return j.out.String()
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

func (j *encoder) value(v any, depth int) {
	if depth > maxDepth {
		fail("a value is nested too deep")
	}
	j.m.spend(stepCost)
	switch x := v.(type) {
	case nil:
		j.out.WriteString("null")
	case bool:
		j.out.WriteString(strconv.FormatBool(x))
	case int64:
		j.out.WriteString(strconv.FormatInt(x, 10))
	case BigInt:
		j.write(string(x), 1)
	case float64:
		j.out.WriteString(strings.NewReplacer("nan", "NaN", "inf", "Infinity").Replace(floatText(x)))
	case string:
		j.text(x)
	case *List:
		j.block('[', ']', len(x.Items), depth, func(i int) { j.value(x.Items[i], depth+1) })
	case *Dict:
		j.dict(x, depth)
	case undefined:
		fail("%s", x.problem)
	default:
		fail("a %s cannot be written as JSON", typeName(v))
	}
}

func (j *encoder) dict(d *Dict, depth int) {
	j.m.spend(valueCost * len(d.keys))
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
		slices.SortStableFunc(order, func(a, b int) int {
			j.m.spend(stepCost + min(len(keys[a]), len(keys[b])))
			return strings.Compare(keys[a], keys[b])
		})
	}
	j.block('{', '}', len(keys), depth, func(i int) {
		j.text(keys[order[i]])
		j.write(j.colon, 1)
		j.value(d.values[order[i]], depth+1)
	})
}

func (j *encoder) block(open, closing byte, n, depth int, element func(i int)) {
	j.out.WriteByte(open)
	for i := range n {
		if i > 0 {
			j.write(j.between, 1)
		}
		j.newLine(depth + 1)
		element(i)
	}
	if n > 0 {
		j.newLine(depth)
	}
	j.out.WriteByte(closing)
}

func (j *encoder) newLine(depth int) {
	if j.lines {
		j.out.WriteByte('\n')
		j.write(j.indent, depth)
	}
}

// write writes a text so many times.
func (j *encoder) write(s string, times int) {
	j.m.spendTimes(times, 2*len(s))
	for range times {
		j.out.WriteString(s)
	}
}

func (j *encoder) text(s string) {
	j.m.spend(2 * len(s))
	j.out.WriteByte('"')
	for _, r := range s {
		if r < ' ' || r == '"' || r == '\\' || j.ascii && r >= utf8.RuneSelf-1 {
			j.m.spend(2 * len(`\u0000`))
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
}
