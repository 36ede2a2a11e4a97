package jinja

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// text is str() of a value.
func text(v any) string {
	switch x := v.(type) {
	case string:
		return x
	case BigInt:
		return string(x)
	case undefined:
		return ""
	}
	var out strings.Builder
	represent(&out, v)
	return out.String()
}

// represent writes repr() of a value.
func represent(out *strings.Builder, v any) {
	if out.Len() > 4*defaultOutputBytes {
		fail("a value is too large to write out")
	}
	switch x := v.(type) {
	case nil:
		out.WriteString("None")
	case bool:
		if x {
			out.WriteString("True")
		} else {
			out.WriteString("False")
		}
	case int64:
		out.WriteString(strconv.FormatInt(x, 10))
	case BigInt:
		out.WriteString(string(x))
	case float64:
		out.WriteString(floatText(x))
	case string:
		quote(out, x)
	case *List:
		open, closing := "[", "]"
		if x.tuple {
			open, closing = "(", ")"
		}
		out.WriteString(open)
		for i, e := range x.Items {
			if i > 0 {
				out.WriteString(", ")
			}
			represent(out, e)
		}
		if x.tuple && len(x.Items) == 1 {
			out.WriteString(",")
		}
		out.WriteString(closing)
	case *Dict:
		out.WriteString("{")
		for i, key := range x.keys {
			if i > 0 {
				out.WriteString(", ")
			}
			represent(out, key)
			out.WriteString(": ")
			represent(out, x.values[i])
		}
		out.WriteString("}")
	case undefined:
		out.WriteString("Undefined")
	default:
		fmt.Fprintf(out, "<%s>", typeName(v))
	}
}

// quote writes a string as Python's repr() does.
func quote(out *strings.Builder, s string) {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	out.WriteByte(q)
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			out.WriteByte('\\')
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\r':
			out.WriteString(`\r`)
		case r == '\t':
			out.WriteString(`\t`)
		case r < 0x20 || r == 0x7f:
			hex(out, 'x', 2, r)
		case r < 0x7f || unicode.IsPrint(r):
			out.WriteRune(r)
		case r < 0x100:
			hex(out, 'x', 2, r)
		case r < 0x10000:
			hex(out, 'u', 4, r)
		default:
			hex(out, 'U', 8, r)
		}
	}
	out.WriteByte(q)
}

// hex writes a character as an escape of so many digits.
func hex(out *strings.Builder, letter byte, digits int, r rune) {
	out.WriteByte('\\')
	out.WriteByte(letter)
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		out.WriteByte("0123456789abcdef"[r>>shift&15])
	}
}

// floatText is repr() of a float: the shortest text that reads back as the same.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponent, _ := strings.Cut(s, "e")
	e, _ := strconv.Atoi(exponent)
	if e >= -4 && e < 16 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	return fmt.Sprintf("%se%+03d", mantissa, e)
}
