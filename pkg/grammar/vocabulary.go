package grammar

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// maxTokenBytes is the longest token that is ever allowed.
const maxTokenBytes = 1 << 10

// Vocabulary is the texts of a model's tokens.
type Vocabulary struct {
	size  int
	texts [][]byte // by id; nil of tokens that are no text
	all   *trie
	rests *rests // of all

	// special are the texts of special tokens in grammars, by their names: see specialText.
	special map[string]int32
	// joined is all texts behind one another, text id from joins[id] on.
	joined []byte
	joins  []int32

	// inStrings is what tokens do at the places within the text of a JSON string, which is the
	// same in every grammar.
	inStrings []*inString

	classMu        sync.Mutex
	classTries     map[[256]byte]*classTrie // by lexeme.byteClass
	classUses      int                      // how often one was asked for
	mostClassBytes int64
}

// NewVocabulary makes a vocabulary of size tokens. text gives what each stands for within a
// text, nil if it stands for none, as special tokens do: such are allowed only in free text, and
// where they end the output. So is a token with the byte 0xFF, which grammars mark special tokens with.
func NewVocabulary(size int, text func(id int32) []byte) (*Vocabulary, error) {
	if size <= 0 {
		return nil, fmt.Errorf("a vocabulary of %d tokens", size)
	}
	v := &Vocabulary{
		size: size, texts: make([][]byte, size), special: make(map[string]int32),
		classTries: make(map[[256]byte]*classTrie), mostClassBytes: maxClassBytes,
	}
	var texts []spelled
	for id := range int32(size) {
		if t := text(id); len(t) > 0 && len(t) <= maxTokenBytes && bytes.IndexByte(t, specialByte) < 0 {
			v.texts[id] = t
			texts = append(texts, spelled{t, id})
		}
	}
	if len(texts) == 0 {
		return nil, errors.New("no token of the vocabulary has a text")
	}
	v.join()
	v.all = newTrie(texts)
	v.rests = restsOf(v.all)
	unit := new(lexemes).characters()
	v.inStrings = make([]*inString, len(unit.places))
	for from, place := range unit.places {
		v.inStrings[place] = v.walkString(unit.lexeme, from)
	}
	return v, nil
}

// NameSpecial names a token that is no text, so that grammars can have it. It is for the time
// before the vocabulary is used.
func (v *Vocabulary) NameSpecial(id int32, name string) {
	if id >= 0 && int(id) < v.size && v.texts[id] == nil {
		v.special[name] = id
	}
}

// Size is the number of tokens.
func (v *Vocabulary) Size() int { return v.size }

// words is the length of a mask.
func (v *Vocabulary) words() int { return (v.size + 63) / 64 }

// inString is what becomes of tokens at a place within the text of a JSON string.
type inString struct {
	// stay is the tokens that do not get out of it, however many characters it may have.
	stay []uint64
	// needs is those of them by how many characters they have, one that is begun counted.
	needs [][]int32
	// within is those that need no more than 0, 1 and so on characters. Few need more than the last.
	within [][]uint64
	// leave is the rests of the tokens that get out of it, behind the quotation mark; nil: none does.
	// leaveAfter is the same by how many characters they have before it.
	leave      *rests
	leaveAfter []*rests
}

// walkString finds what tokens do from a state of a character on.
func (v *Vocabulary) walkString(unit *lexeme, from *state) *inString {
	out := &inString{stay: make([]uint64, v.words())}
	var leave []spelled
	var after [][]spelled
	var behind func(node int32, at *state, depth, characters int)
	behind = func(node int32, at *state, depth, characters int) {
		first, end := v.all.behind(node)
		for child := first; child < end; child++ {
			b := v.all.bytes[child]
			if b == '"' && at == unit.first {
				for _, id := range v.all.below(child, nil) {
					rest := spelled{v.texts[id][depth+1:], id}
					leave = append(leave, rest)
					for len(after) <= characters {
						after = append(after, nil)
					}
					after[characters] = append(after[characters], rest)
				}
				continue
			}
			to := at.next(b)
			if to == nil {
				continue
			}
			need := characters + 1
			for _, id := range v.all.of(child) {
				set(out.stay, id)
				for len(out.needs) <= need {
					out.needs = append(out.needs, nil)
				}
				out.needs[need] = append(out.needs[need], id)
			}
			if to.final {
				behind(child, unit.first, depth+1, characters+1)
			} else {
				behind(child, to, depth+1, characters)
			}
		}
	}
	behind(0, from, 0, 0)
	out.leave = restsOf(newTrie(leave))
	for _, rests := range after {
		out.leaveAfter = append(out.leaveAfter, restsOf(newTrie(rests)))
	}
	more := 0 // how many need more
	for _, ids := range out.needs {
		more += len(ids)
	}
	mask := make([]uint64, v.words())
	for _, ids := range out.needs {
		if more <= len(mask) {
			break
		}
		for _, id := range ids {
			set(mask, id)
		}
		more -= len(ids)
		out.within = append(out.within, slices.Clone(mask))
	}
	return out
}

// addStaying adds the tokens that stay in a string with at most so many more characters.
func (s *inString) addStaying(out []uint64, characters int) {
	known := len(s.within)
	switch {
	case characters < 0:
	case characters >= len(s.needs)-1:
		or(out, s.stay)
	case characters < known:
		or(out, s.within[characters])
	default:
		if known > 0 {
			or(out, s.within[known-1])
		}
		for _, ids := range s.needs[known : characters+1] {
			for _, id := range ids {
				set(out, id)
			}
		}
	}
}

// text is what a token stands for within a text; nil: nothing.
func (v *Vocabulary) text(id int32) []byte {
	if id < 0 || int(id) >= v.size {
		return nil
	}
	return v.texts[id]
}
