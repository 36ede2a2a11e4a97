package tokenizer

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Stream turns the ids of one sequence into text as they come. It belongs to one
// goroutine.
type Stream struct {
	t           *Tokenizer
	skipSpecial bool
	shown       []int32 // special tokens that are not skipped
	open        []byte // the beginning of a character, at most three bytes
	prompt      int    // how many of them are of the prompt
	scratch     []byte
	states      []stepState // of the decoder's steps, where there is more than bytes
	out         []byte
	// whole makes runs of byte tokens wait for their end, as Decode has to.
	whole  bool
	within bool // what is fed now is a part of a token
}

// stepState is what a step of the decoder remembers.
type stepState struct {
	begun  bool   // Metaspace: there was a token. Strip: the start is done.
	cut    int    // Strip: what it has taken away at the start
	held   int    // Strip: what it may have to take away at the end
	run    []byte // ByteFallback: the bytes of a run that wait
	prompt int    // of them, those that are of the prompt
	whole  int    // of them, those that are whole characters, where runs wait for their end
	given  bool   // characters of the run have been given on
	bad    bool   // the run is no text: each of its bytes is U+FFFD
}

// NewStream starts the decoding of one sequence. skipSpecial leaves special tokens out.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{t: t, skipSpecial: skipSpecial}
	if !t.decoder.bytes {
		s.states = make([]stepState, len(t.decoder.steps))
	}
	return s
}

// NewStreamAfter starts the decoding of a sequence that continues prompt, in time
// linear in the prompt's length. What the stream says is what Decode says of prompt
// and sequence together, without what it says of prompt alone: a space that a decoder
// takes away at the start of a text stays at the start of a continuation. A prompt
// of which nothing is left, such as a start token that skipSpecial leaves out, is
// no text to continue. A character that the prompt begins and the sequence completes
// is given whole; if it is never completed, its U+FFFD is the prompt's. Where a stream
// waits for the end of a run of bytes (see the package), a run ends with the prompt.
func (t *Tokenizer) NewStreamAfter(prompt []int32, skipSpecial bool) *Stream {
	s := t.NewStream(skipSpecial)
	if t.decoder.bytes {
		// Of bytes only those count that may begin a character.
		from, n := len(prompt), 0
		for from > 0 && n < utf8.UTFMax {
			from--
			if !s.skips(prompt[from]) {
				n += len(t.pieces.get(prompt[from]))
			}
		}
		prompt = prompt[from:]
	}
	for _, id := range prompt {
		if t.decoder.bytes {
			s.nextBytes(id)
			continue
		}
		s.next(id)
		s.out = s.out[:0]
	}
	s.prompt = len(s.open)
	for number := range s.states {
		if t.decoder.steps[number].waits {
			s.endRun(number)
		}
		s.states[number].prompt = len(s.states[number].run)
	}
	s.out = s.out[:0]
	return s
}

// Next takes one more id and returns the text that became certain by it, which is
// often empty: bytes that may be the beginning of a character wait for the rest of
// it, at most three; those that cannot become one are U+FFFD at once. What all calls
// of Next and the one of Flush return is, put together, what Decode returns for all
// ids, with one exception: where the file's decoder has ByteFallback, a run of byte
// tokens is text only as a whole, and a Stream does not wait for its end. Of a run
// that turns out not to be UTF-8, Decode makes U+FFFD of each byte; here the
// characters before that place have been given, and only the bytes from there to the
// end of the run are U+FFFD.
func (s *Stream) Next(id int32) string {
	if s.t.decoder.bytes {
		return s.nextBytes(id)
	}
	s.next(id)
	text := string(s.out)
	s.out = s.out[:0]
	return text
}

// Show has special tokens in the text that would be left out. It is for the time before Next.
func (s *Stream) Show(ids []int32) { s.shown = ids }

func (s *Stream) skips(id int32) bool {
	return s.skipSpecial && s.t.special[id] && !slices.Contains(s.shown, id)
}

func (s *Stream) nextBytes(id int32) string {
	if s.skips(id) {
		return ""
	}
	piece := s.t.pieces.get(id)
	if len(s.open) == 0 && utf8.ValidString(piece) {
		return piece
	}
	text, lost := s.join(piece)
	if lost {
		text = text[len(replacementChar):]
	}
	return string(text)
}

// replacementChar stands for bytes that are no text.
const replacementChar = string(utf8.RuneError)

// join returns what is certain when piece follows the bytes that are open, until the
// next call. lost says that it begins with the U+FFFD of bytes of the prompt.
func (s *Stream) join(piece string) (text []byte, lost bool) {
	s.open = append(s.open, piece...)
	var open []byte
	s.scratch, open = appendText(s.scratch[:0], s.open)
	if s.prompt > 0 && len(s.scratch) > 0 {
		_, size := utf8.DecodeRune(s.open)
		lost = size == 1
		s.prompt = 0
	}
	s.open = append(s.open[:0], open...)
	return s.scratch, lost
}

// Flush ends the sequence: a character that was begun and never ended is U+FFFD.
// The Stream may then be used for another sequence, one without a prompt.
func (s *Stream) Flush() string {
	if s.t.decoder.bytes {
		open, prompt := len(s.open), s.prompt
		s.open, s.prompt = s.open[:0], 0
		if open == 0 || prompt > 0 {
			return ""
		}
		return replacementChar
	}
	s.end()
	text := string(s.out)
	s.out = s.out[:0]
	return text
}

// next is Next, appending to s.out.
func (s *Stream) next(id int32) {
	if s.skips(id) || !s.t.pieces.has(id) {
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
			text, lost := s.join(token)
			token = string(text)
			if lost {
				s.discard(number)
				token = token[len(replacementChar):]
			}
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
			with = ""
			state.begun = !s.within // a part of a token is not yet the whole of the first
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
			switch {
			case len(s.open) == 0:
			case s.prompt > 0:
				s.discard(number)
			default:
				s.feed(number+1, replacementChar)
			}
			s.open, s.prompt = s.open[:0], 0
		case stepFallback:
			s.endRun(number)
		}
		s.states[number] = stepState{run: s.states[number].run[:0]}
	}
}
