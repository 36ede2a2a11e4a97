package tokenizer

import "unicode/utf8"

// byteOf reads a token like <0x0A>.
func byteOf(token string) (byte, bool) {
	if len(token) != 6 || token[:3] != "<0x" || token[5] != '>' {
		return 0, false
	}
	digit := func(c byte) (byte, bool) {
		switch {
		case c >= '0' && c <= '9':
			return c - '0', true
		case c >= 'A' && c <= 'F':
			return c - 'A' + 10, true
		case c >= 'a' && c <= 'f':
			return c - 'a' + 10, true
		}
		return 0, false
	}
	high, ok := digit(token[3])
	if token[3] == '+' { // the library's number parser takes a sign
		high, ok = 0, true
	}
	low, okLow := digit(token[4])
	return high<<4 | low, ok && okLow
}

// fallback adds a byte to the run. Where runs do not wait, a character is given as
// soon as it is complete. As soon as the run can be no text any more, each of its
// bytes is U+FFFD, whole characters among those that waited too.
func (s *Stream) fallback(number int, b byte) {
	state := &s.states[number]
	if state.bad {
		s.feed(number+1, replacementChar)
		return
	}
	state.run = append(state.run, b)
	for state.whole < len(state.run) {
		r, size := utf8.DecodeRune(state.run[state.whole:])
		if r != utf8.RuneError || size > 1 {
			state.whole += size
			continue
		}
		if _, more := beginning(state.run[state.whole:]); more {
			return
		}
		s.replaceRun(number)
		return
	}
	if !s.whole && !s.t.decoder.steps[number].waits {
		state.given, s.within = true, true
		s.giveRun(number)
		s.within = false
	}
}

// giveRun gives on a run that is whole characters.
func (s *Stream) giveRun(number int) {
	state := &s.states[number]
	text := string(state.run)
	state.run, state.whole, state.prompt = state.run[:0], 0, 0
	s.feed(number+1, text)
}

// replaceRun gives up on the run.
func (s *Stream) replaceRun(number int) {
	state := &s.states[number]
	n, prompt := len(state.run), state.prompt
	state.run, state.whole, state.prompt, state.bad = state.run[:0], 0, 0, true
	for i := range n {
		if i < prompt {
			s.discard(number)
		} else {
			s.feed(number+1, replacementChar)
		}
	}
}

// discard gives on a U+FFFD of the prompt's: the steps behind see it, nobody else.
func (s *Stream) discard(number int) {
	before := len(s.out)
	s.feed(number+1, replacementChar)
	s.out = s.out[:before]
}

// endRun ends a run of byte tokens, if there is one.
func (s *Stream) endRun(number int) {
	state := &s.states[number]
	switch {
	case state.bad || len(state.run) == 0:
	case state.whole < len(state.run):
		s.replaceRun(number)
	default:
		s.giveRun(number)
	}
	if state.given { // to the steps behind, the run was one token
		for i := number + 1; i < len(s.states); i++ {
			s.states[i].begun = s.states[i].begun || s.t.decoder.steps[i].kind == stepMetaspace
		}
	}
	state.bad, state.given = false, false
}
