package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// replaceAll is strings.ReplaceAll, old not empty, that asks stop now and then.
func replaceAll(s, old, with string, stop func() error) (string, error) {
	if len(s) <= bytesPerCheck {
		return strings.ReplaceAll(s, old, with), nil
	}
	at := strings.Index(s, old)
	if at < 0 {
		return s, nil
	}
	b := make([]byte, 0, len(s)+len(s)/4)
	checks := newPace(stop)
	for done := 0; ; {
		b = append(b, s[done:done+at]...)
		b = append(b, with...)
		done += at + len(old)
		if err := checks.at(done); err != nil {
			return "", err
		}
		if at = strings.Index(s[done:], old); at < 0 {
			return string(append(b, s[done:]...)), nil
		}
	}
}

// replaceRuns puts content in place of each run of at least so many characters.
func replaceRuns(s, content string, atLeast int, in func(rune) bool, stop func() error) (string, error) {
	checks := newPace(stop)
	b := make([]byte, 0, len(s))
	for start := 0; start < len(s); {
		r, size := utf8.DecodeRuneInString(s[start:])
		end := start + size
		if !in(r) {
			b = append(b, s[start:end]...)
		} else {
			run := 1
			for ; end < len(s); run++ {
				r, size := utf8.DecodeRuneInString(s[end:])
				if !in(r) {
					break
				}
				end += size
			}
			if run >= atLeast {
				b = append(b, content...)
			} else {
				b = append(b, s[start:end]...)
			}
		}
		start = end
		if err := checks.at(start); err != nil {
			return "", err
		}
	}
	return string(b), nil
}

// mapText puts what change appends in place of each character; it leaves bytes alone
// that are in no character.
func mapText(s string, stop func() error, change func(b []byte, r rune) []byte) (string, error) {
	checks := newPace(stop)
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		r, size := decode(s, i)
		if r < 0 {
			b = append(b, s[i])
		} else {
			b = change(b, r)
		}
		i += size
		if err := checks.at(i); err != nil {
			return "", err
		}
	}
	return string(b), nil
}

// lowercase is the full mapping of each character by itself; İ alone becomes two.
func lowercase(s string, stop func() error) (string, error) {
	return mapText(s, stop, func(b []byte, r rune) []byte {
		if r == 'İ' {
			return append(b, "i\u0307"...)
		}
		return utf8.AppendRune(b, unicode.ToLower(r))
	})
}
