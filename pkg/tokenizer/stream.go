package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Stream turns the ids of one sequence into text as they come. It belongs to one
// goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	open        []byte // the beginning of a character, at most three bytes
	scratch     []byte
	states      []stepState // of the decoder's steps, where there is more than bytes
	out         []byte
}

// stepState is what a step of the decoder remembers.
type stepState struct {
	begun bool   // Metaspace: there was a token. Strip: the start is done.
	cut   int    // Strip: what it has taken away at the start
	held  int    // Strip: what it may have to take away at the end
	run   []byte // ByteFallback: the bytes of a run that may be text
	whole int    // of them, those that are whole characters
	bad   bool   // the run is no text: each of its bytes is U+FFFD
}

// NewStream starts the decoding of one sequence. skipSpecial leaves special tokens out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial}
	if !t.decoder.bytes {
		s.states = make([]stepState, len(t.decoder.steps))
	}
	return s
}

// Next takes one more id and returns the text that became certain by it, which is
// often empty: bytes that may be the beginning of a character wait for the rest of
// it; those that cannot become one are U+FFFD at once. Where the file's decoder has
// ByteFallback, a run of byte tokens is text only as a whole, and waits for the
// token behind it. What all calls of Next and the one of Flush return is, put
// together, what Decode returns for all ids.
func (s *Stream) Next(id int32) string {
	if s.t.decoder.bytes {
		return s.nextBytes(id)
	}
	s.next(id)
	text := string(s.out)
	s.out = s.out[:0]
	return text
}

func (s *Stream) nextBytes(id int32) string {
	if s.skipSpecial && s.t.special[id] {
		return ""
	}
	piece := s.t.pieces.get(id)
	if len(s.open) == 0 && utf8.ValidString(piece) {
		return piece
	}
	s.scratch = s.join(s.scratch[:0], piece)
	return string(s.scratch)
}

// join appends to text what is certain when piece follows the bytes that are open.
func (s *Stream) join(text []byte, piece string) []byte {
	s.open = append(s.open, piece...)
	text, open := appendText(text, s.open)
	s.open = append(s.open[:0], open...)
	return text
}

// Flush ends the sequence: a character that was begun and never ended is U+FFFD.
// The Stream may then be used for another sequence.
func (s *Stream) Flush() string {
	if s.t.decoder.bytes {
		if len(s.open) == 0 {
			return ""
		}
		s.open = s.open[:0]
		return string(utf8.RuneError)
	}
	s.end()
	text := string(s.out)
	s.out = s.out[:0]
	return text
}

// next is Next, appending to s.out.
func (s *Stream) next(id int32) {
	if s.skipSpecial && s.t.special[id] || !s.t.pieces.has(id) {
		return
	}
	s.feed(0, s.t.pieces.get(id))
}

// feed gives a token, or where all tokens are one a part of it, to a step.
func (s *Stream) feed(number int, token string) {
	if number == len(s.states) {
		s.out = append(s.out, token...)
		return
	}
	step, state := &s.t.decoder.steps[number], &s.states[number]
	switch step.kind {
	case stepBytes:
		if len(s.open) > 0 || !utf8.ValidString(token) {
			s.scratch = s.join(s.scratch[:0], token)
			token = string(s.scratch)
		}
	case stepFallback:
		if b, ok := byteOf(token); ok {
			s.fallback(number, b)
			return
		}
		s.endRun(number)
	case stepReplace:
		token = strings.ReplaceAll(token, step.content, step.with)
	case stepMetaspace:
		with := " "
		if !state.begun {
			state.begun, with = true, ""
		}
		token = strings.ReplaceAll(token, step.content, with)
	case stepStrip:
		if !step.fused {
			token = step.stripped(token)
		} else {
			token = state.strip(step, token)
		}
	}
	if token != "" || !step.fused {
		s.feed(number+1, token)
	}
}

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

// fallback adds a byte to the run. As soon as the run can be no text any more, each
// of its bytes is U+FFFD, whole characters among them too.
func (s *Stream) fallback(number int, b byte) {
	state := &s.states[number]
	if state.bad {
		s.feed(number+1, "\ufffd")
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
}

// replaceRun gives up on the run.
func (s *Stream) replaceRun(number int) {
	state := &s.states[number]
	n := len(state.run)
	state.run, state.whole, state.bad = state.run[:0], 0, true
	for range n {
		s.feed(number+1, "\ufffd")
	}
}

// endRun ends a run of byte tokens, if there is one.
func (s *Stream) endRun(number int) {
	state := &s.states[number]
	switch {
	case state.bad || len(state.run) == 0:
	case state.whole < len(state.run):
		s.replaceRun(number)
	default:
		text := string(state.run)
		state.run, state.whole = state.run[:0], 0
		s.feed(number+1, text)
	}
	state.bad = false
}

// strip takes away what step strips from a token that comes in parts: what may turn
// out to be its end is held back.
func (state *stepState) strip(step *decodeStep, part string) string {
	for !state.begun && part != "" {
		rest, ok := strings.CutPrefix(part, step.content)
		if !ok || state.cut == step.start {
			state.begun = true
			break
		}
		part = rest
		state.cut++
	}
	if step.stop == 0 || part == "" {
		return part
	}
	text := strings.TrimRight(part, step.content)
	tail := (len(part) - len(text)) / len(step.content)
	before := 0 // of those held, how many turn out not to be at the end
	if text != "" {
		before, state.held = state.held, 0
	}
	text = strings.Repeat(step.content, before) + text
	state.held += tail
	if state.held > step.stop {
		text += strings.Repeat(step.content, state.held-step.stop)
		state.held = step.stop
	}
	return text
}

// end ends the sequence: each step gives what it still holds to those behind it.
func (s *Stream) end() {
	for number := range s.states {
		switch s.t.decoder.steps[number].kind {
		case stepBytes:
			if len(s.open) > 0 {
				s.open = s.open[:0]
				s.feed(number+1, "\ufffd")
			}
		case stepFallback:
			s.endRun(number)
		}
		s.states[number] = stepState{run: s.states[number].run[:0]}
	}
}
