package openai

import (
	"encoding/json"
	"fmt"
)

// measured is what JSON holds, counted before anything is made of it: values take
// many times the memory of their text.
type measured struct {
	// members of objects, nests (arrays and objects) and values of all kinds.
	members, nests, values int
	// at is where the first bound was exceeded, and what says which; "": none.
	at   int
	what string
}

// measure counts what JSON holds, up to where it exceeds a bound. What is no JSON
// gets any count.
func measure(body []byte) (m measured) {
	exceeds := func(at, count, most int, what string) bool {
		if count <= most {
			return false
		}
		m.at, m.what = at, fmt.Sprintf("%d %s", most, what)
		return true
	}
	depth, quoted := 0, false
	m.values = 1
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			m.nests++
			m.values++ // what follows the last comma, if there is something
			if exceeds(i, depth, maxDepth, "arrays and objects in one another") || exceeds(i, m.nests, maxNests, "arrays and objects") {
				return m
			}
		case c == '}' || c == ']':
			depth--
		case c == ',':
			m.values++
		case c == ':':
			m.members++
			if exceeds(i, m.members, maxMembers, "members") {
				return m
			}
		}
	}
	return m
}

// elements is how many elements an array has, and the first byte of the first.
func elements(array json.RawMessage) (count int, first byte) {
	depth, quoted := 0, false
	for i := 0; i < len(array); i++ {
		c := array[i]
		if depth == 1 && first == 0 && c > ' ' && c != ']' {
			first, count = c, 1
		}
		switch {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		case c == ',' && depth == 1:
			count++
		}
	}
	return count, first
}

// nullIn is the path of the first null in an array that otherwise has numbers and
// arrays of them, such as "[2]" or "[0][1]"; "" if there is none.
func nullIn(array json.RawMessage) string {
	var indexes []int
	for _, c := range array {
		switch c {
		case '[':
			indexes = append(indexes, 0)
		case ']':
			indexes = indexes[:len(indexes)-1]
		case ',':
			indexes[len(indexes)-1]++
		case 'n':
			path := ""
			for _, i := range indexes {
				path += fmt.Sprintf("[%d]", i)
			}
			return path
		}
	}
	return ""
}
