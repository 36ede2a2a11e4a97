package tokenizer

import (
	"encoding/json"
	"fmt"
)

// stage is one step of cutting text into the pieces that merges stay inside of.
type stage struct {
	prefixSpace bool    // put a space before what does not begin with one
	scan        scanner // nil: leave it whole
}

func (t *Tokenizer) parsePreTokenizer(data json.RawMessage) error {
	p := preTokenizerParser{classes: newClasses()}
	if err := p.component("pre_tokenizer", data, 0); err != nil {
		return err
	}
	if !p.byteLevel {
		return fmt.Errorf("pre_tokenizer: has no ByteLevel: only byte-level BPE is supported")
	}
	t.stages = p.stages
	return nil
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
		if depth == maxDepth {
			return fmt.Errorf("%s: Sequences are nested more than %d deep", path, maxDepth)
		}
		var s struct {
			Type          string            `json:"type"`
			Pretokenizers []json.RawMessage `json:"pretokenizers"`
		}
		if err := decodeStrict(data, &s); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		for i, c := range s.Pretokenizers {
			if err := p.component(fmt.Sprintf("%s.pretokenizers[%d]", path, i), c, depth+1); err != nil {
				return err
			}
		}
		return nil
	case "Split":
		return p.split(path, data)
	case "ByteLevel":
		b := struct {
			Type           string `json:"type"`
			AddPrefixSpace bool   `json:"add_prefix_space"`
			TrimOffsets    bool   `json:"trim_offsets"` // offsets are not computed here
			UseRegex       bool   `json:"use_regex"`
		}{UseRegex: true}
		if err := decodeStrict(data, &b); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		s := stage{prefixSpace: b.AddPrefixSpace}
		if b.UseRegex {
			s.scan = p.classes.scanGPT2
		}
		p.stages = append(p.stages, s)
		p.byteLevel = true
		return nil
	}
	return fmt.Errorf("%s: %s is not supported: only Sequence, Split and ByteLevel are", path, kind)
}

func (p *preTokenizerParser) split(path string, data json.RawMessage) error {
	var s struct {
		Type    string `json:"type"`
		Pattern struct {
			Regex  *string `json:"Regex"`
			String *string `json:"String"`
		} `json:"pattern"`
		Behavior string `json:"behavior"`
		Invert   bool   `json:"invert"`
	}
	if err := decodeStrict(data, &s); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if s.Pattern.String != nil || s.Pattern.Regex == nil {
		return fmt.Errorf("%s: a Split by something other than a Regex is not supported", path)
	}
	scan := scannerFor(*s.Pattern.Regex, p.classes)
	if scan == nil {
		return fmt.Errorf("%s: unknown pattern %q: only those of Llama 3, GPT-4, Qwen 2 and GPT-2 are known", path, *s.Pattern.Regex)
	}
	// The known patterns match everywhere, so that nothing lies between matches.
	// Then Isolated keeps each match as a piece, inverted or not, and so does
	// Removed inverted, which removes what no match covers.
	if s.Behavior != "Isolated" && (s.Behavior != "Removed" || !s.Invert) {
		return fmt.Errorf("%s: behavior %q with invert %t is not supported: only Isolated, and Removed with invert true, are", path, s.Behavior, s.Invert)
	}
	p.stages = append(p.stages, stage{scan: scan})
	return nil
}
