package grammar

import "math"

// stringText is the lexeme of JSON strings with some number of characters. Its states count
// them instead of standing for each place: a bound of a million costs nothing.
type stringText struct {
	low, high int // characters; high is unbounded for none
	lexeme    *lexeme
	lexemes   *lexemes
	states    map[stringState]*state
	units     *characterText
}

// characterText is the automaton of one character, the same for all strings of a grammar.
type characterText struct {
	*lexeme
	// places numbers its states, but the last, alike in each grammar.
	places map[*state]int
}

type stringState struct {
	within     *state
	characters int
}

// unbounded is a string's high if there is none.
const unbounded = math.MaxInt

// character is one character of a JSON string, in any of its spellings, but for halves of pairs.
const character = `[^"\\\x00-\x1f]|\\["\\/bfnrt]` +
	`|\\u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2})` +
	`|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`

// Places in a string that are none within a character.
const (
	beforeString = -1 // before the first quotation mark
	afterString  = -2 // behind the last
)

// characters makes the automaton of one character, once, and all of it, so that its states have the
// same numbers in each grammar.
func (l *lexemes) characters() *characterText {
	if l.character != nil {
		return l.character
	}
	unit := l.known(character)
	places := map[*state]int{unit.first: 0}
	for left := []*state{unit.first}; len(left) > 0; left = left[1:] {
		for b := range 256 {
			if to := left[0].next(byte(b)); to != nil && !to.final {
				if _, is := places[to]; !is {
					places[to] = len(places)
					left = append(left, to)
				}
			}
		}
	}
	l.character = &characterText{unit, places}
	return l.character
}

// jsonString makes the lexeme of JSON strings of low to high characters, once.
func (l *lexemes) jsonString(low, high int) *lexeme {
	if made := l.strings[[2]int{low, high}]; made != nil {
		return made
	}
	t := &stringText{low: low, high: high, lexemes: l, lexeme: new(lexeme), states: make(map[stringState]*state), units: l.characters()}
	t.lexeme.text, t.lexeme.step, t.lexeme.leads, t.lexeme.byteClass = t, t.step, t.leads, t.units.byteClass
	t.lexeme.first = t.state(stringState{nil, beforeString})
	if l.strings == nil {
		l.strings = make(map[[2]int]*lexeme)
	}
	l.strings[[2]int{low, high}] = t.lexeme
	return t.lexeme
}

func (t *stringText) state(at stringState) *state {
	if at.characters > t.low && t.high == unbounded {
		at.characters = t.low // more of them make no difference
	}
	if made := t.states[at]; made != nil {
		return made
	}
	made := t.lexemes.state(t.lexeme)
	made.within, made.characters = at.within, at.characters
	made.final = at.characters == afterString
	made.ends = made.final
	if len(t.states) >= maxLexemeStates {
		forget(t.lexemes, t.lexeme, t.states)
	}
	t.states[at] = made
	return made
}

func (t *stringText) step(from *state, b byte) *state {
	switch {
	case from.characters == afterString:
		return nil
	case from.characters == beforeString:
		if b != '"' {
			return nil
		}
		return t.state(stringState{t.units.first, 0})
	case from.within == t.units.first && b == '"':
		if from.characters < t.low {
			return nil
		}
		return t.state(stringState{nil, afterString})
	case from.characters >= t.high:
		return nil
	}
	within := from.within.next(b)
	switch {
	case within == nil:
		return nil
	case within.final:
		return t.state(stringState{t.units.first, from.characters + 1})
	}
	return t.state(stringState{within, from.characters})
}

func (t *stringText) leads(from *state) (out byteSet) {
	if from.characters == afterString {
		return out
	}
	if from.within != nil {
		out = *from.within.leads()
	}
	out.add('"')
	return out
}

// inside says at which place of a string's text a state is; false: at none.
func (t *stringText) inside(s *state) (place int, is bool) {
	if s.within == nil {
		return 0, false
	}
	return t.units.places[s.within], true
}
