package jinja

import (
	"errors"
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

func rangeOf(m *machine, args []any, _ *Dict) (any, error) {
	bounds := []int64{0, 0, 1}
	p := parameters{args: args}
	for i := range args {
		n, err := p.number(i, "range", 0)
		if err != nil {
			return nil, err
		}
		switch {
		case len(args) == 1:
			bounds[1] = n
		case i < 3:
			bounds[i] = n
		}
	}
	start, stop, step := bounds[0], bounds[1], bounds[2]
	if len(args) < 1 || len(args) > 3 || step == 0 {
		return nil, errors.New("range takes 1 to 3 numbers, and a step that is not 0")
	}
	// Exact enough: what floats cannot count is far too many.
	count := math.Ceil((float64(stop) - float64(start)) / float64(step))
	if count > maxRange {
		return nil, fmt.Errorf("range gives more than %d numbers", maxRange)
	}
	n := int(max(count, 0))
	if err := m.spendTimes(n, 2*elementCost); err != nil {
		return nil, err
	}
	out := make([]any, n)
	for i := range out {
		out[i] = start + int64(i)*step
	}
	return list(out), nil
}

func dictOf(m *machine, args []any, named *Dict) (any, error) {
	out := NewDict()
	if err := m.spend(entryCost * (len(named.keys) + 1)); err != nil {
		return nil, err
	}
	if len(args) > 0 {
		of, ok := args[0].(*Dict)
		if !ok {
			return nil, fmt.Errorf("dict takes a mapping, not a %s", typeName(args[0]))
		}
		for i, key := range of.keys {
			if err := m.spend(entryCost); err != nil {
				return nil, err
			}
			if err := m.hash(key); err != nil {
				return nil, err
			}
			out.Set(key, of.values[i])
		}
	}
	for i, key := range named.keys {
		out.Set(key, named.values[i])
	}
	return out, nil
}

func namespaceOf(m *machine, args []any, named *Dict) (any, error) {
	d, err := dictOf(m, args, named)
	if err != nil {
		return nil, err
	}
	variables, ok := d.(*Dict)
	if !ok {
		return nil, fmt.Errorf("a %s is no namespace", typeName(d))
	}
	return &namespace{variables}, nil
}

func joinerOf(_ *machine, args []any, named *Dict) (any, error) {
	p := parameters{args: args, named: named}
	separator, err := p.text(0, "sep", ", ")
	used := false
	return &function{"joiner", func(*machine, []any, *Dict) (any, error) {
		if !used {
			used = true
			return "", nil
		}
		return separator, nil
	}}, err
}

func raise(m *machine, args []any, _ *Dict) (any, error) {
	message := "the template refuses the conversation"
	if len(args) > 0 {
		given, err := m.text(args[0])
		if err != nil {
			return nil, err
		}
		message = cut(given, maxMessageBytes)
	}
	return nil, &Error{Line: m.line, Message: message, Raised: true}
}

// directiveCost is what a part of a date takes to be written.
const directiveCost = 256

func strftimeNow(m *machine, args []any, _ *Dict) (any, error) {
	format, err := parameters{args: args}.text(0, "format", "")
	if err != nil {
		return nil, err
	}
	if err := m.spend(2 * len(format)); err != nil {
		return nil, err
	}
	if err := m.spendTimes(strings.Count(format, "%"), directiveCost); err != nil {
		return nil, err
	}
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
			return nil, fmt.Errorf("strftime_now does not know %q", "%"+format[i:i+1])
		}
		if unpadded {
			if part = strings.TrimLeft(part, "0 "); part == "" {
				part = "0"
			}
		}
		out.WriteString(part)
	}
	return out.String(), nil
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
