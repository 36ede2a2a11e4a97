package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// normalizer rewrites text before it is cut.
type normalizer struct {
	steps []normalizerStep
	// shrink is how many bytes of text may become one, at the most; 0: any number.
	shrink int
	growth growth
	// cutsStart names the first component that may take away the text's beginning.
	cutsStart string
}

// normalizerStep asks stop now and then; its error ends the work.
type normalizerStep func(text string, stop func() error) (string, error)

func (n *normalizer) apply(text string, stop func() error) (string, error) {
	for i, step := range n.steps {
		if i > 0 {
			if err := stop(); err != nil {
				return "", err
			}
		}
		var err error
		if text, err = step(text, stop); err != nil {
			return "", err
		}
	}
	return text, nil
}

func (n *normalizer) add(shrink int, step normalizerStep) {
	n.steps = append(n.steps, step)
	n.shrink *= shrink
}

// cuts says that the component at path may take away the beginning of a text.
func (n *normalizer) cuts(path, kind string) {
	if n.cutsStart == "" {
		n.cutsStart = path + ": " + kind
	}
}

// How many bytes may become one in a normal form: three jamo of three bytes compose
// to a syllable of three, K, the sign for kelvin, has three bytes; a mathematical A,
// which has four, is A in the compatibility forms.
const (
	formShrink          = 3
	compatibilityShrink = 4
)

func (t *Tokenizer) parseNormalizer(data json.RawMessage) error {
	t.normalizer.shrink = 1
	if isNull(data) {
		return nil
	}
	return t.normalizer.component("normalizer", data, 0)
}

func (n *normalizer) component(path string, data json.RawMessage, depth int) error {
	kind := typeOf(data)
	switch kind {
	case "Sequence":
		var s struct {
			Type        string            `json:"type"`
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		return sequence(path, "normalizers", data, depth, &s, &s.Normalizers, n.component)
	case "Strip":
		return n.strip(path, data)
	case "Prepend":
		return n.prepend(path, data)
	case "Replace":
		return n.replace(path, data)
	case "NFC", "NFD":
		n.add(formShrink, newUnicodeForm(kind).apply)
	case "NFKC", "NFKD":
		n.add(compatibilityShrink, newUnicodeForm(kind).apply)
	case "Lowercase":
		n.add(3, lowercase) // K, the sign for kelvin, has three bytes, k has one
	case "StripAccents":
		n.cuts(path, kind)
		n.add(0, func(s string, stop func() error) (string, error) {
			return mapText(s, stop, func(b []byte, r rune) []byte {
				if unicode.Is(unicode.M, r) {
					return b
				}
				return utf8.AppendRune(b, r)
			})
		})
	default:
		return fmt.Errorf("%s: %s is not supported: only Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend and Replace are", path, kind)
	}
	return onlyType(path, data)
}

func (n *normalizer) strip(path string, data json.RawMessage) error {
	var c struct {
		Type  string `json:"type"`
		Left  bool   `json:"strip_left"`
		Right bool   `json:"strip_right"`
	}
	if err := decodeComponent(data, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if c.Left {
		n.cuts(path, "Strip of the left")
	}
	n.add(0, func(s string, _ func() error) (string, error) {
		if c.Left {
			s = strings.TrimLeftFunc(s, unicode.IsSpace)
		}
		if c.Right {
			s = strings.TrimRightFunc(s, unicode.IsSpace)
		}
		return s, nil
	})
	return nil
}

func (n *normalizer) prepend(path string, data json.RawMessage) error {
	var c struct {
		Type    string `json:"type"`
		Prepend string `json:"prepend"`
	}
	if err := decodeComponent(data, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if len(c.Prepend) > maxPrepend {
		return fmt.Errorf("%s: prepends %d bytes: the limit is %d", path, len(c.Prepend), maxPrepend)
	}
	n.add(1, func(s string, _ func() error) (string, error) {
		if s == "" {
			return s, nil
		}
		return c.Prepend + s, nil
	})
	return nil
}

func (n *normalizer) replace(path string, data json.RawMessage) error {
	var c struct {
		Type    string  `json:"type"`
		Pattern pattern `json:"pattern"`
		Content string  `json:"content"`
	}
	if err := decodeComponent(data, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	replace, err := c.Pattern.replacer(c.Content)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	shrink, least := 0, 1
	if c.Pattern.String != nil {
		least = len(*c.Pattern.String)
	}
	if err := n.growth.replace(path, least, len(c.Content)); err != nil {
		return err
	}
	if c.Pattern.String != nil && len(c.Content) >= len(*c.Pattern.String) {
		shrink = 1
	}
	// In place of one character, what replaces it begins where that began.
	if c.Content == "" || c.Pattern.String == nil || utf8.RuneCountInString(*c.Pattern.String) > 1 {
		n.cuts(path, "Replace of several characters, or by nothing")
	}
	n.add(shrink, replace)
	return nil
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
func (p pattern) replacer(content string) (normalizerStep, error) {
	switch {
	case p.String != nil && p.Regex == nil && *p.String != "":
		return func(s string, stop func() error) (string, error) { return replaceAll(s, *p.String, content, stop) }, nil
	case p.Regex == nil || p.String != nil:
		return nil, fmt.Errorf("want the pattern to be a String that is not empty, or a Regex")
	}
	if strings.Contains(content, "$") || strings.Contains(content, `\`) {
		return nil, fmt.Errorf("content %q, which may refer to groups of the pattern, is not supported", content)
	}
	switch *p.Regex {
	case patternSpaces:
		return func(s string, stop func() error) (string, error) {
			return replaceRuns(s, content, 2, func(r rune) bool { return r == ' ' }, stop)
		}, nil
	case patternWhiteSpace:
		return func(s string, stop func() error) (string, error) {
			return replaceRuns(s, content, 1, unicode.IsSpace, stop)
		}, nil
	}
	return nil, fmt.Errorf("unknown pattern %q: only %q and %q are known", *p.Regex, patternSpaces, patternWhiteSpace)
}
