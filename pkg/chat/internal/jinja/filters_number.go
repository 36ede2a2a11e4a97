package jinja

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

func toInt(m *machine, v any, p parameters) (any, error) {
	otherwise, ok := p.get(0, "default")
	if !ok {
		otherwise = int64(0)
	}
	base, err := p.number(1, "base", 10)
	if err != nil {
		return nil, err
	}
	if i, f, isFloat, ok := number(v); ok {
		if !isFloat {
			return i, nil
		}
		if math.Abs(f) < 1<<62 {
			return int64(f), nil
		}
		return otherwise, nil
	}
	s, ok := v.(string)
	if !ok || base < 2 || base > 36 {
		return otherwise, nil
	}
	if err := m.spendTimes(len(s), runeCost); err != nil {
		return nil, err
	}
	s = strings.ReplaceAll(strings.TrimFunc(s, isSpace), "_", "")
	if n, err := strconv.ParseInt(s, int(base), 64); err == nil {
		return n, nil
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && math.Abs(f) < 1<<62 {
		return int64(f), nil
	}
	return otherwise, nil
}

func toFloat(m *machine, v any, p parameters) (any, error) {
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if err := m.spendTimes(len(s), runeCost); err != nil {
			return nil, err
		}
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, isSpace), 64); err == nil {
			return f, nil
		}
	}
	if otherwise, ok := p.get(0, "default"); ok {
		return otherwise, nil
	}
	return 0.0, nil
}

func round(m *machine, v any, p parameters) (any, error) {
	whole, f, isFloat, ok := number(v)
	if !ok {
		return nil, unsupported("round", v, v)
	}
	digits, err := p.number(0, "precision", 0)
	if err != nil {
		return nil, err
	}
	method, err := p.text(1, "method", "common")
	if err != nil {
		return nil, err
	}
	if err := m.spend(int(min(max(digits, 0), 300)) * runeCost); err != nil {
		return nil, err
	}
	scale := math.Pow(10, float64(min(max(digits, -300), 300)))
	switch method {
	case "common":
		if !isFloat && digits >= 0 {
			return whole, nil
		}
		if digits >= 0 && digits <= 300 { // the nearest decimal, as Python rounds
			out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64)
			return out, err
		}
		return math.RoundToEven(f*scale) / scale, nil
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return nil, errors.New("method has to be common, ceil or floor")
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
	case i == math.MinInt64:
		return nil, errOverflow
	case i < 0:
		return -i, nil
	}
	return i, nil
}
