package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// parsePreTokenizer says whether the model will see bytes rather than characters.
func (t *Tokenizer) parsePreTokenizer(data json.RawMessage) (byteLevel bool, err error) {
	if isNull(data) {
		return false, nil
	}
	p := preTokenizerParser{classes: newClasses()}
	if err := p.component("pre_tokenizer", data, 0); err != nil {
		return false, err
	}
	t.stages = p.stages
	for _, s := range p.stages {
		t.swallows = t.swallows || s.find != nil && s.behavior == removed
	}
	return p.byteLevel, nil
}

type preTokenizerParser struct {
	classes   *classes
	stages    []stage
	byteLevel bool
}

func (p *preTokenizerParser) component(path string, data json.RawMessage, depth int) error {
	kind := typeOf(data)
	if p.byteLevel {
		// What follows would see the byte alphabet in place of the text.
		return fmt.Errorf("%s: %s after ByteLevel is not supported", path, kind)
	}
	switch kind {
	case "Sequence":
		var s struct {
			Type          string            `json:"type"`
			Pretokenizers []json.RawMessage `json:"pretokenizers"`
		}
		return sequence(path, "pretokenizers", data, depth, &s, &s.Pretokenizers, p.component)
	case "Split":
		return p.split(path, data)
	case "Metaspace":
		return p.metaspace(path, data)
	case "Digits":
		var d struct {
			Type       string `json:"type"`
			Individual bool   `json:"individual_digits"`
		}
		if err := decodeComponent(data, &d); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s := stage{find: p.classes.findNumber, behavior: contiguous}
		if d.Individual {
			s.behavior = isolated
		}
		p.stages = append(p.stages, s)
		return nil
	case "ByteLevel":
		b, err := parseByteLevel(path, data)
		if err != nil {
			return err
		}
		s := stage{prefix: " "}
		if b.AddPrefixSpace {
			s.prefixing = always
		}
		if b.UseRegex {
			s.scan = p.classes.scanGPT2
		}
		if b.AddPrefixSpace || b.UseRegex {
			p.stages = append(p.stages, s)
		}
		p.byteLevel = true
		return nil
	}
	return fmt.Errorf("%s: %s is not supported: only Sequence, Split, ByteLevel, Metaspace and Digits are", path, kind)
}

func (p *preTokenizerParser) split(path string, data json.RawMessage) error {
	var s struct {
		Type     string  `json:"type"`
		Pattern  pattern `json:"pattern"`
		Behavior string  `json:"behavior"`
		Invert   bool    `json:"invert"`
	}
	if err := decodeComponent(data, &s); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	behavior, ok := behaviors[s.Behavior]
	if !ok {
		return fmt.Errorf("%s: behavior %q is not supported: want Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous", path, s.Behavior)
	}
	st := stage{behavior: behavior, invert: s.Invert}
	switch {
	case s.Pattern.String != nil && s.Pattern.Regex == nil && *s.Pattern.String != "":
		st.find = findText(*s.Pattern.String)
	case s.Pattern.Regex == nil || s.Pattern.String != nil:
		return fmt.Errorf("%s: want the pattern to be a String that is not empty, or a Regex", path)
	default:
		scan := scannerFor(*s.Pattern.Regex, p.classes)
		if scan == nil {
			return fmt.Errorf("%s: unknown pattern %q: only those of Llama 3, GPT-4, GPT-4o, Mistral Nemo, Qwen 2 and GPT-2 are known", path, *s.Pattern.Regex)
		}
		// The known patterns match everywhere, so that nothing lies between matches.
		// Then Isolated keeps each match as a piece, inverted or not, and so does
		// Removed inverted, which removes what no match covers.
		if behavior == isolated || behavior == removed && s.Invert {
			st.scan = scan
		} else {
			st.find = finding(scan)
		}
	}
	p.stages = append(p.stages, st)
	return nil
}

// metaspaceFields are those of Metaspace, as a pre-tokenizer and as a decoder.
type metaspaceFields struct {
	Type           string  `json:"type"`
	Replacement    string  `json:"replacement"`
	PrependScheme  *string `json:"prepend_scheme"`
	AddPrefixSpace *bool   `json:"add_prefix_space"` // of before there was prepend_scheme
	Split          *bool   `json:"split"`
	StrRep         *string `json:"str_rep"` // the replacement again, in old files
}

func parseMetaspace(path string, data json.RawMessage) (m metaspaceFields, scheme prefixing, err error) {
	if err := decodeComponent(data, &m); err != nil {
		return m, never, fmt.Errorf("%s: %w", path, err)
	}
	if utf8.RuneCountInString(m.Replacement) != 1 || m.Replacement == " " {
		return m, never, fmt.Errorf("%s: replacement %q is not supported: want one character that is not a space", path, m.Replacement)
	}
	name := "always"
	switch {
	case m.PrependScheme != nil:
		name = *m.PrependScheme
	case m.AddPrefixSpace != nil && !*m.AddPrefixSpace:
		name = "never"
	}
	scheme, ok := map[string]prefixing{"always": always, "first": onlyFirst, "never": never}[name]
	if !ok {
		return m, never, fmt.Errorf("%s: prepend_scheme %q is not supported: want always, first or never", path, name)
	}
	if m.AddPrefixSpace != nil && !*m.AddPrefixSpace && scheme != never {
		return m, never, fmt.Errorf("%s: add_prefix_space false contradicts prepend_scheme %q", path, name)
	}
	return m, scheme, nil
}

func (p *preTokenizerParser) metaspace(path string, data json.RawMessage) error {
	m, scheme, err := parseMetaspace(path, data)
	if err != nil {
		return err
	}
	s := stage{replacement: m.Replacement, prefix: m.Replacement, prefixing: scheme}
	if m.Split == nil || *m.Split {
		s.scan = scanWords(m.Replacement)
	}
	p.stages = append(p.stages, s)
	return nil
}
