package jinja

import (
	"fmt"
)

// parameters are what a filter or a function is given.
type parameters struct {
	args  []any
	named *Dict
}

// get is the i-th argument, or the one with a name.
func (p parameters) get(i int, name string) (any, bool) {
	if i < len(p.args) {
		return p.args[i], true
	}
	if p.named == nil {
		return nil, false
	}
	return p.named.Get(name)
}

func (p parameters) text(i int, name, otherwise string) string {
	return must(p.asText(i, name, otherwise))
}

func (p parameters) number(i int, name string, otherwise int64) int64 {
	return must(p.asNumber(i, name, otherwise))
}

// asText is text for those that say more about an error.
func (p parameters) asText(i int, name, otherwise string) (string, error) {
	v, ok := p.get(i, name)
	if !ok {
		return otherwise, nil
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%s is a %s, not a string", name, typeName(v))
	}
	return s, nil
}

// asNumber is number for those that say more about an error.
func (p parameters) asNumber(i int, name string, otherwise int64) (int64, error) {
	v, ok := p.get(i, name)
	if !ok {
		return otherwise, nil
	}
	n, _, isFloat, ok := number(v)
	if !ok || isFloat {
		return 0, fmt.Errorf("%s is a %s, not a whole number", name, typeName(v))
	}
	return n, nil
}

// bounds are where among n characters or items a method looks: from its i-th argument to the one after
// that, as in Python. False: one is behind the other, so that not even an empty text is there.
func (p parameters) bounds(i, n int) (start, end int, is bool) {
	start, end = p.bound(i, 0, n), min(p.bound(i+1, n, n), n)
	return start, end, start <= end
}

func (p parameters) bound(i, otherwise, n int) int {
	if i >= len(p.args) || p.args[i] == nil {
		return otherwise
	}
	at := p.number(i, "a bound", 0)
	if at < 0 {
		at += int64(n)
	}
	return int(min(max(at, 0), int64(n)+1))
}

func (p parameters) truth(i int, name string, otherwise bool) bool {
	if v, ok := p.get(i, name); ok {
		return truth(v)
	}
	return otherwise
}
