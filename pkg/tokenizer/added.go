package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is an entry of added_tokens: text that becomes one id before any
// pre-tokenizer sees it, special or not.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // swallows the white space before it
	RStrip     bool   `json:"rstrip"`      // swallows the white space behind it
	Normalized bool   `json:"normalized"`  // looked for after normalization, so after the others
	Special    bool   `json:"special"`     // left out by decoding that skips special tokens
}

// addedSet finds a set of added tokens in text: matches do not overlap, the
// leftmost wins, and the longest of those that start at one place.
type addedSet struct {
	tokens []addedToken
	starts [256]bool       // bytes that a token starts with
	only   int             // that byte where all start alike, otherwise -1
	trie   map[uint64]node // by parent number << 8 | byte
}

type node struct {
	number uint64
	token  int // index of the token that ends here, or -1
}

func newAddedSet(tokens []addedToken) *addedSet {
	a := &addedSet{tokens: tokens, only: -1, trie: make(map[uint64]node)}
	distinct := 0
	for i, token := range tokens {
		if first := token.Content[0]; !a.starts[first] {
			a.starts[first] = true
			a.only = int(first)
			distinct++
		}
		at := uint64(0)
		for j := range len(token.Content) {
			key := at<<8 | uint64(token.Content[j])
			n, ok := a.trie[key]
			if !ok {
				n = node{number: uint64(len(a.trie) + 1), token: -1}
			}
			if j == len(token.Content)-1 && n.token < 0 { // of two alike the first stands
				n.token = i
			}
			a.trie[key] = n
			at = n.number
		}
	}
	if distinct != 1 {
		a.only = -1
	}
	return a
}

// next finds the first match at or after from.
func (a *addedSet) next(s string, from int) (token *addedToken, start, end int) {
	for i := from; i < len(s); i++ {
		if a.only >= 0 {
			skip := strings.IndexByte(s[i:], byte(a.only))
			if skip < 0 {
				break
			}
			i += skip
		} else if !a.starts[s[i]] {
			continue
		}
		at := uint64(0)
		for j := i; j < len(s); j++ {
			n, ok := a.trie[at<<8|uint64(s[j])]
			if !ok {
				break
			}
			if n.token >= 0 {
				token, end = &a.tokens[n.token], j+1
			}
			at = n.number
		}
		if token != nil {
			return token, i, end
		}
	}
	return nil, 0, 0
}

// split calls text for each stretch of s that is no added token (first: at the start
// of s) and token for each one that is, in order. A match that single_word rejects is passed over whole: no
// shorter token is looked for inside it. White space that a token swallows belongs
// to nobody else, except to a token that begins inside it.
func (a *addedSet) split(s string, text func(text string, first bool) error, token func(id int32) error) error {
	done := 0     // s[:done] has been handed on
	spaceEnd := 0 // end of the run of white space that was last swallowed to the right
	if len(a.tokens) > 0 {
		for from := 0; ; {
			match, start, end := a.next(s, from)
			if match == nil {
				break
			}
			from = end
			if match.SingleWord && !aloneIn(s, start, end) {
				continue
			}
			if match.LStrip {
				for start > done {
					r, size := utf8.DecodeLastRuneInString(s[:start])
					if !unicode.IsSpace(r) || start-size < done {
						break
					}
					start -= size
				}
				start = max(start, done)
			}
			if match.RStrip {
				// A run is measured once, even if each of its characters is a token.
				if end >= spaceEnd {
					for spaceEnd = end; spaceEnd < len(s); {
						r, size := utf8.DecodeRuneInString(s[spaceEnd:])
						if !unicode.IsSpace(r) {
							break
						}
						spaceEnd += size
					}
				}
				end = spaceEnd
			}
			if done < start {
				if err := text(s[done:start], done == 0); err != nil {
					return err
				}
			}
			if err := token(match.ID); err != nil {
				return err
			}
			done = end
		}
	}
	if done < len(s) {
		return text(s[done:], done == 0)
	}
	return nil
}

// aloneIn says whether s[start:end] touches no word character of s.
func aloneIn(s string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:start])
	after, _ := utf8.DecodeRuneInString(s[end:])
	return (start == 0 || !isWord(before)) && (end == len(s) || !isWord(after))
}

// isWord is \w as Unicode TS 18 defines it: alphabetic, marks, decimal digits,
// connector punctuation and the two joiners.
func isWord(r rune) bool {
	return unicode.In(r, unicode.Letter, unicode.Mark, unicode.Nd, unicode.Nl, unicode.Pc,
		unicode.Other_Alphabetic, unicode.Other_Lowercase, unicode.Other_Uppercase, unicode.Join_Control)
}
