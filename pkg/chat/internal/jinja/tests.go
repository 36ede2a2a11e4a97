package jinja

import (
	"strings"
	"unicode"
)

type test func(m *machine, v any, args []any) bool

var tests = map[string]test{
	"defined":   simple(func(v any) bool { _, ok := v.(undefined); return !ok }),
	"undefined": simple(func(v any) bool { _, ok := v.(undefined); return ok }),
	"none":      simple(func(v any) bool { return v == nil }),
	"string":    simple(func(v any) bool { _, ok := v.(string); return ok }),
	"boolean":   simple(func(v any) bool { _, ok := v.(bool); return ok }),
	"true":      simple(func(v any) bool { return v == true }),
	"false":     simple(func(v any) bool { return v == false }),
	"integer":   simple(func(v any) bool { _, ok := v.(int64); return ok || isBig(v) }),
	"float":     simple(func(v any) bool { _, ok := v.(float64); return ok }),
	"number":    simple(func(v any) bool { _, _, _, ok := number(v); return ok || isBig(v) }),
	"mapping":   simple(func(v any) bool { _, ok := v.(*Dict); return ok }),
	"iterable": simple(func(v any) bool {
		switch v.(type) {
		case string, *List, *Dict, undefined, *loop:
			return true
		}
		return false
	}),
	"sequence": simple(func(v any) bool {
		switch v.(type) {
		case string, *List, *Dict, undefined:
			return true
		}
		return false
	}),
	"callable": simple(func(v any) bool {
		switch v.(type) {
		case *function, *loop, undefined:
			return true
		}
		return false
	}),
	"escaped":     simple(func(any) bool { return false }),
	"lower":       casing(unicode.IsUpper, unicode.IsLower),
	"upper":       casing(unicode.IsLower, unicode.IsUpper),
	"odd":         remainder(func(_ int64) int64 { return 2 }, 1),
	"even":        remainder(func(_ int64) int64 { return 2 }, 0),
	"divisibleby": remainder(func(n int64) int64 { return n }, 0),
	"eq":          compared("=="), "equalto": compared("=="), "==": compared("=="),
	"ne": compared("!="), "!=": compared("!="),
	"lt": compared("<"), "lessthan": compared("<"), "<": compared("<"), "le": compared("<="), "<=": compared("<="),
	"gt": compared(">"), "greaterthan": compared(">"), ">": compared(">"), "ge": compared(">="), ">=": compared(">="),
	"in": compared("in"),
	"sameas": func(m *machine, v any, args []any) bool {
		if len(args) != 1 {
			failWith(errNoItems)
		}
		m.weigh(v)
		return typeName(v) == typeName(args[0]) && equal(v, args[0])
	},
}

// testOf looks a test up; those that look up others are not in the table.
func testOf(name string) test {
	switch name {
	case "filter":
		return known(func(name string) bool { return filterOf(name) != nil })
	case "test":
		return known(func(name string) bool { return testOf(name) != nil })
	}
	return tests[name]
}

func simple(t func(v any) bool) test {
	return func(_ *machine, v any, _ []any) bool { return t(v) }
}

// known reports whether something is called by a name.
func known(is func(name string) bool) test {
	return func(m *machine, v any, _ []any) bool {
		m.hash(v)
		name, _ := v.(string)
		return is(name)
	}
}

// casing reports whether a text has letters of one case, and none of the other.
func casing(not, want func(rune) bool) test {
	return func(m *machine, v any, _ []any) bool {
		t := m.text(v)
		m.spendTimes(len(t), 2*runeCost)
		return cased(t, not, want)
	}
}

// compared is an operator as a test.
func compared(op string) test {
	return func(m *machine, v any, args []any) bool {
		if len(args) != 1 {
			failWith(errNoItems)
		}
		return m.compared(op, v, args[0])
	}
}

// cased reports whether a text has letters of one case, and none of the other.
func cased(s string, not, want func(rune) bool) bool {
	return strings.ContainsFunc(s, want) && !strings.ContainsFunc(s, not)
}

func remainder(of func(argument int64) int64, want int64) test {
	return func(_ *machine, v any, args []any) bool {
		by := int64(0)
		if len(args) == 1 {
			by, _, _, _ = number(args[0])
		}
		n, _, isFloat, ok := number(v)
		if !ok || isFloat {
			unsupported("%", v, v)
		}
		by = of(by)
		if by == 0 {
			fail("division by zero")
		}
		return by == -1 && want == 0 || by != -1 && ((n%by)+by)%by == want
	}
}
