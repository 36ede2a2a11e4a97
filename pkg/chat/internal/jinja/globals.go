package jinja

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// globals are the functions that every template has.
var globals = map[string]*function{
	"range":           {"range", rangeOf},
	"dict":            {"dict", dictOf},
	"namespace":       {"namespace", namespaceOf},
	"joiner":          {"joiner", joinerOf},
	"raise_exception": {"raise_exception", raise},
	"strftime_now":    {"strftime_now", strftimeNow},
}

func rangeOf(m *machine, args []any, _ *Dict) any {
	bounds := []int64{0, 0, 1}
	p := parameters{args: args}
	for i := range args {
		n := p.number(i, "range", 0)
		switch {
		case len(args) == 1:
			bounds[1] = n
		case i < 3:
			bounds[i] = n
		}
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if len(args) < 1 || len(args) > 3 || step == 0 {
		return fail("range takes 1 to 3 numbers, and a step that is not 0")
	}
	// Exact enough: what floats cannot count is far too many.
	count := math.Ceil((float64(stop) - float64(start)) / float64(step))
	if count > maxRange {
		return fail("range gives more than %d numbers", maxRange)
	}
	n := int(max(count, 0))
	m.spendTimes(n, 2*elementCost)
	out := make([]any, n)
	for i := range out {
		out[i] = start + int64(i)*step
	}
	return list(out)
}

func dictOf(m *machine, args []any, named *Dict) any { return m.dict(args, named) }

func namespaceOf(m *machine, args []any, named *Dict) any { return &namespace{m.dict(args, named)} }

func (m *machine) dict(args []any, named *Dict) *Dict {
	out := NewDict()
	m.spend(entryCost * (len(named.keys) + 1))
	if len(args) > 0 {
		of, ok := args[0].(*Dict)
		if !ok {
			fail("dict takes a mapping, not a %s", typeName(args[0]))
		}
		for i, key := range of.keys {
			m.spend(entryCost)
			m.hash(key)
			out.Set(key, of.values[i])
		}
	}
	for i, key := range named.keys {
		out.Set(key, named.values[i])
	}
	return out
}

func joinerOf(_ *machine, args []any, named *Dict) any {
	p := parameters{args: args, named: named}
	separator := p.text(0, "sep", ", ")
	used := false
	return &function{"joiner", func(*machine, []any, *Dict) any {
		if !used {
			used = true
			return ""
		}
		return separator
	}}
}

func raise(m *machine, args []any, _ *Dict) any {
	message := "the template refuses the conversation"
	if len(args) > 0 {
		message = cut(m.text(args[0]), maxMessageBytes)
	}
	return failWith(&Error{Line: m.line, Message: message, Raised: true})
}

// directiveCost is what a part of a date takes to be written.
const directiveCost = 256

func strftimeNow(m *machine, args []any, _ *Dict) any {
	format := parameters{args: args}.text(0, "format", "")
	m.spend(2 * len(format))
	m.spendTimes(strings.Count(format, "%"), directiveCost)
	now := m.now()
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			out.WriteByte(format[i])
			continue
		}
		i++
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		part, ok := datePart(now, format[i])
		if !ok {
			return fail("strftime_now does not know %q", "%"+format[i:i+1])
		}
		if unpadded {
			if part = strings.TrimLeft(part, "0 "); part == "" {
				part = "0"
			}
		}
		out.WriteString(part)
	}
	return out.String()
}

var layouts = map[byte]string{
	'd': "02", 'm': "01", 'Y': "2006", 'y': "06", 'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'e': "_2", 'j': "002", 'Z': "", 'z': "", // a time without a zone, as Python's
	'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

func datePart(t time.Time, directive byte) (string, bool) {
	switch directive {
	case '%':
		return "%", true
	case 'n':
		return "\n", true
	case 't':
		return "\t", true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'w':
		return fmt.Sprint(int(t.Weekday())), true
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), true
	}
	layout, ok := layouts[directive]
	return t.Format(layout), ok
}
