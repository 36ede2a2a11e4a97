package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

// normalizer rewrites text before it is cut.
type normalizer struct {
	steps []func(string) string
	// shrink is how many bytes of text may become one, at the most; 0: any number.
	shrink int
}

func (n *normalizer) apply(text string) string {
	for _, step := range n.steps {
		text = step(text)
	}
	return text
}

func (n *normalizer) add(shrink int, step func(string) string) {
	n.steps = append(n.steps, step)
	n.shrink *= shrink
}

// formShrink: three characters of three bytes may compose to one of three bytes.
const formShrink = 3

func (t *Tokenizer) parseNormalizer(data json.RawMessage) error {
	t.normalizer.shrink = 1
	if isNull(data) {
		return nil
	}
	return t.normalizer.component("normalizer", data, 0)
}

func (n *normalizer) component(path string, data json.RawMessage, depth int) error {
	var c struct {
		Type        string            `json:"type"`
		Normalizers []json.RawMessage `json:"normalizers"`
		Prepend     string            `json:"prepend"`
		Pattern     pattern           `json:"pattern"`
		Content     string            `json:"content"`
		StripLeft   bool              `json:"strip_left"`
		StripRight  bool              `json:"strip_right"`
	}
	kind := typeOf(data)
	fields, known := normalizerFields[kind]
	if !known {
		return fmt.Errorf("%s: %s is not supported: only Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend and Replace are", path, kind)
	}
	if err := decodeFields(data, &c, fields); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	switch kind {
	case "Sequence":
		if depth == maxDepth {
			return fmt.Errorf("%s: Sequences are nested more than %d deep", path, maxDepth)
		}
		for i, part := range c.Normalizers {
			if err := n.component(fmt.Sprintf("%s.normalizers[%d]", path, i), part, depth+1); err != nil {
				return err
			}
		}
	case "NFC", "NFD", "NFKC", "NFKD":
		n.add(formShrink, newUnicodeForm(kind).apply)
	case "Lowercase":
		n.add(3, lowercase) // K, the sign for kelvin, has three bytes, k has one
	case "StripAccents":
		n.add(0, func(s string) string {
			return mapText(s, func(r rune) rune {
				if unicode.Is(unicode.M, r) {
					return -1
				}
				return r
			})
		})
	case "Strip":
		n.add(0, func(s string) string {
			if c.StripLeft {
				s = strings.TrimLeftFunc(s, unicode.IsSpace)
			}
			if c.StripRight {
				s = strings.TrimRightFunc(s, unicode.IsSpace)
			}
			return s
		})
	case "Prepend":
		n.add(1, func(s string) string {
			if s == "" {
				return s
			}
			return c.Prepend + s
		})
	case "Replace":
		replace, err := c.Pattern.replacer(c.Content)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		shrink := 0
		if c.Pattern.String != nil && len(c.Content) >= len(*c.Pattern.String) {
			shrink = 1
		}
		n.add(shrink, replace)
	}
	return nil
}

// normalizerFields are the fields that each kind has beside its type.
var normalizerFields = map[string][]string{
	"Sequence": {"normalizers"}, "Prepend": {"prepend"}, "Replace": {"pattern", "content"}, "Strip": {"strip_left", "strip_right"},
	"NFC": {}, "NFD": {}, "NFKC": {}, "NFKD": {}, "Lowercase": {}, "StripAccents": {},
}

// pattern is what a Replace or a Split looks for.
type pattern struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

// The regular expressions that Replace knows, by their exact text.
const (
	patternSpaces     = ` {2,}`
	patternWhiteSpace = `\s+`
)

// replacer puts content in place of each match.
func (p pattern) replacer(content string) (func(string) string, error) {
	switch {
	case p.String != nil && p.Regex == nil && *p.String != "":
		return func(s string) string { return strings.ReplaceAll(s, *p.String, content) }, nil
	case p.Regex == nil || p.String != nil:
		return nil, fmt.Errorf("want the pattern to be a String that is not empty, or a Regex")
	}
	if strings.Contains(content, "$") || strings.Contains(content, `\`) {
		return nil, fmt.Errorf("content %q, which may refer to groups of the pattern, is not supported", content)
	}
	switch *p.Regex {
	case patternSpaces:
		return func(s string) string {
			return replaceRuns(s, content, 2, func(r rune) bool { return r == ' ' })
		}, nil
	case patternWhiteSpace:
		return func(s string) string { return replaceRuns(s, content, 1, unicode.IsSpace) }, nil
	}
	return nil, fmt.Errorf("unknown pattern %q: only %q and %q are known", *p.Regex, patternSpaces, patternWhiteSpace)
}

// replaceRuns puts content in place of each run of at least so many characters.
func replaceRuns(s, content string, atLeast int, in func(rune) bool) string {
	var b strings.Builder
	for s != "" {
		start := strings.IndexFunc(s, in)
		if start < 0 {
			break
		}
		end := start + strings.IndexFunc(s[start:], func(r rune) bool { return !in(r) })
		if end < start {
			end = len(s)
		}
		b.WriteString(s[:start])
		if run := s[start:end]; len([]rune(run)) >= atLeast {
			b.WriteString(content)
		} else {
			b.WriteString(run)
		}
		s = s[end:]
	}
	b.WriteString(s)
	return b.String()
}

// mapText is strings.Map that leaves bytes alone that are in no character.
func mapText(s string, change func(rune) rune) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		r, size := decode(s, i)
		if r < 0 {
			b = append(b, s[i])
		} else if r = change(r); r >= 0 {
			b = append(b, string(r)...)
		}
		i += size
	}
	return string(b)
}

// lowercase is the full mapping of each character by itself; İ alone becomes two.
func lowercase(s string) string {
	const dotted = "İ"
	if !strings.Contains(s, dotted) {
		return mapText(s, unicode.ToLower)
	}
	parts := strings.Split(s, dotted)
	for i, part := range parts {
		parts[i] = mapText(part, unicode.ToLower)
	}
	return strings.Join(parts, "i\u0307")
}
