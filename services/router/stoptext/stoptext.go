// Package stoptext finds stop texts in a stream of text. It holds back what may
// be the start of one, so that no part of a stop text is ever given out.
//
// Only the router imports it. It starts no goroutines.
package stoptext

import "strings"

// Matcher looks for any of several stop texts. What it finds does not depend on
// how the text was cut into pieces: it is the stop text that is complete first,
// and of those that end at the same place the longest.
type Matcher struct {
	stops []string
	held  string
	early int // bytes of held in which no stop may end
}

// New returns a matcher for stops, none of them empty. Without stops it holds
// nothing back.
func New(stops []string) *Matcher { return &Matcher{stops: stops} }

// Push takes in more text and returns what is certain now. If a stop text is
// complete, stop is that text, out ends right before it, and nothing may be
// pushed afterwards.
func (m *Matcher) Push(text string) (out, stop string) {
	if len(m.stops) == 0 {
		return text, ""
	}
	all := m.held + text
	end := -1
	for _, s := range m.stops {
		from := min(max(m.early-len(s)+1, 0), len(all))
		i := strings.Index(all[from:], s)
		if i < 0 {
			continue
		}
		if e := from + i + len(s); end < 0 || e < end || e == end && len(s) > len(stop) {
			end, stop = e, s
		}
	}
	if end >= 0 {
		m.held = ""
		return all[:end-len(stop)], stop
	}
	return m.hold(all), ""
}

// Skip takes in more text, in which no stop text may end, and returns what is certain now.
func (m *Matcher) Skip(text string) (out string) {
	if len(m.stops) == 0 {
		return text
	}
	m.early = len(m.held) + len(text)
	return m.hold(m.held + text)
}

// hold keeps the end of text that may be the start of a stop text, and returns the rest.
func (m *Matcher) hold(text string) (out string) {
	cut := len(text) - m.start(text)
	m.held, m.early = text[cut:], max(m.early-cut, 0)
	return text[:cut]
}

// Flush returns what is held back: the text has ended, so it was no stop.
func (m *Matcher) Flush() string {
	out := m.held
	m.held = ""
	return out
}

// start is the length of the longest end of text that begins a stop text.
func (m *Matcher) start(text string) int {
	longest := 0
	for _, s := range m.stops {
		for n := min(len(s)-1, len(text)); n > longest; n-- {
			if strings.HasPrefix(s, text[len(text)-n:]) {
				longest = n
				break
			}
		}
	}
	return longest
}
