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
	s, ok := v.(string)
	if !ok || base < 2 || base > 36 {
		return otherwise
	}
	m.spendTimes(len(s), runeCost)
	s = strings.ReplaceAll(strings.TrimFunc(s, isSpace), "_", "")
	if n, err := strconv.ParseInt(s, int(base), 64); err == nil {
		return n
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
		return int64(f)
	}
	return otherwise
}

func toFloat(m *machine, v any, p parameters) any {
	if _, f, _, ok := number(v); ok {
		return f
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
		if !isFloat && digits >= 0 {
			return whole
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
