package jinja

import (
	"math"
	"strconv"
	"strings"
)

func toInt(m *machine, v any, p parameters) any {
	otherwise, ok := p.get(0, "default")
	if !ok {
		otherwise = int64(0)
	}
	base := p.number(1, "base", 10)
	if i, f, isFloat, ok := number(v); ok {
		if !isFloat {
			return i
		}
		if math.Abs(f) < 1<<62 {
			return int64(f)
		}
		return otherwise
	}
	if isBig(v) {
		return v
	}
	s, ok := v.(string)
	if !ok {
		return otherwise
	}
	m.spendTimes(len(s), runeCost)
	s = strings.TrimFunc(s, isSpace)
	if n, err := parseInt(s, int(base)); err == nil {
		return n
	}
	s = withoutUnderscores(s)
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
		return int64(f)
	}
	return otherwise
}

// parseInt is int() of a text, which may have the prefix of its base. Base 0 is that of the prefix.
func parseInt(s string, base int) (int64, error) {
	sign := "+"
	if strings.HasPrefix(s, "+") || strings.HasPrefix(s, "-") {
		sign, s = s[:1], s[1:]
	}
	if len(s) > 1 && s[0] == '0' {
		of := map[byte]int{'b': 2, 'o': 8, 'x': 16}[s[1]|0x20]
		if of != 0 && (base == of || base == 0) {
			base, s = of, strings.TrimPrefix(s[2:], "_")
		}
	}
	s = withoutUnderscores(s)
	if base == 0 {
		if base = 10; strings.HasPrefix(s, "0") && strings.Trim(s, "0") != "" {
			return 0, strconv.ErrSyntax // as it may be meant to be octal
		}
	}
	return strconv.ParseInt(sign+s, base, 64)
}

// withoutUnderscores is a number's text without those between digits. Elsewhere Python has none, and
// the text stays what no number is.
func withoutUnderscores(s string) string {
	if strings.HasPrefix(strings.TrimLeft(s, "+-"), "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return s
	}
	return strings.ReplaceAll(s, "_", "")
}

func toFloat(m *machine, v any, p parameters) any {
	if _, f, _, ok := number(v); ok {
		return f
	}
	if isBig(v) {
		return unsupported("float", v, v)
	}
	if s, ok := v.(string); ok {
		m.spendTimes(len(s), runeCost)
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil {
			return f
		}
	}
	if otherwise, ok := p.get(0, "default"); ok {
		return otherwise
	}
	return 0.0
}

func round(m *machine, v any, p parameters) any {
	whole, f, isFloat, ok := number(v)
	if !ok {
		return unsupported("round", v, v)
	}
	digits := p.number(0, "precision", 0)
	method := p.text(1, "method", "common")
	m.spend(int(min(max(digits, 0), 300)) * runeCost)
	scale := math.Pow(10, float64(min(max(digits, -300), 300)))
	switch method {
	case "common":
		if !isFloat {
			return roundInt(whole, digits)
		}
		if digits >= 0 && digits <= 300 { // the nearest decimal, as Python rounds
			out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
			return out
		}
		return math.RoundToEven(f*scale) / scale
	case "ceil":
		return math.Ceil(f*scale) / scale
	case "floor":
		return math.Floor(f*scale) / scale
	}
	return fail("method has to be common, ceil or floor")
}

// roundInt rounds to a multiple of a power of ten, halves to the even one.
func roundInt(n, digits int64) any {
	if digits >= 0 {
		return n
	}
	if digits < -19 { // no 64 bits are half of such a power
		return int64(0)
	}
	unit, size, most := uint64(1), uint64(n), uint64(math.MaxInt64)
	if n < 0 {
		size, most = -size, most+1
	}
	for range -digits {
		unit *= 10
	}
	count, rest := size/unit, size%unit
	if rest > unit/2 || rest == unit/2 && count%2 == 1 {
		count++
	}
	if size = count * unit; size > most {
		return failWith(errOverflow)
	}
	if n < 0 {
		size = -size
	}
	return int64(size)
}

func absolute(_ *machine, v any, _ parameters) any {
	i, f, isFloat, ok := number(v)
	switch {
	case !ok:
		return unsupported("abs", v, v)
	case isFloat && f < 0:
		return -f
	case isFloat:
		return f
	case i == math.MinInt64:
		return failWith(errOverflow)
	case i < 0:
		return -i
	}
	return i
}
