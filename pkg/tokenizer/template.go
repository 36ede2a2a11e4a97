package tokenizer

import (
	"encoding/json"
	"fmt"
)

// template is what the post-processor puts around the ids of one text.
type template struct {
	before, after []int32
}

func (t *Tokenizer) parsePostProcessor(data json.RawMessage) error {
	if isNull(data) {
		return nil
	}
	return t.postProcessor("post_processor", data, 0)
}

func (t *Tokenizer) postProcessor(path string, data json.RawMessage, depth int) error {
	switch kind := typeOf(data); kind {
	case "ByteLevel":
		// Changes offsets only, and those are not computed here.
		_, err := parseByteLevel(path, data)
		return err
	case "Sequence":
		var s struct {
			Type       string            `json:"type"`
			Processors []json.RawMessage `json:"processors"`
		}
		return sequence(path, "processors", data, depth, &s, &s.Processors, t.postProcessor)
	case "TemplateProcessing":
		return t.templateProcessing(path, data)
	default:
		return fmt.Errorf("%s: %s is not supported: only TemplateProcessing, ByteLevel and Sequence are", path, kind)
	}
}

func (t *Tokenizer) templateProcessing(path string, data json.RawMessage) error {
	type reference struct {
		ID     string `json:"id"`
		TypeID int64  `json:"type_id"` // segment numbers, which no model here reads
	}
	var p struct {
		Type   string `json:"type"`
		Single []struct {
			SpecialToken *reference `json:"SpecialToken"`
			Sequence     *reference `json:"Sequence"`
		} `json:"single"`
		Pair          json.RawMessage `json:"pair"` // two texts at once are never encoded here
		SpecialTokens map[string]struct {
			ID     string   `json:"id"`
			IDs    []int32  `json:"ids"`
			Tokens []string `json:"tokens"`
		} `json:"special_tokens"`
		// Left over from a ByteLevel in published files (Cohere's): the library reads none
		// of them here.
		AddPrefixSpace json.RawMessage `json:"add_prefix_space"`
		TrimOffsets    json.RawMessage `json:"trim_offsets"`
		UseRegex       json.RawMessage `json:"use_regex"`
	}
	if err := decodeComponent(data, &p); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	var before, after []int32
	texts := 0
	for i, piece := range p.Single {
		at := fmt.Sprintf("%s.single[%d]", path, i)
		switch {
		case piece.Sequence != nil && piece.SpecialToken == nil:
			if piece.Sequence.ID != "A" {
				return fmt.Errorf("%s: Sequence %q is not supported: only A is", at, piece.Sequence.ID)
			}
			texts++
		case piece.SpecialToken != nil && piece.Sequence == nil:
			token, ok := p.SpecialTokens[piece.SpecialToken.ID]
			if !ok {
				return fmt.Errorf("%s: %q is not in special_tokens", at, piece.SpecialToken.ID)
			}
			for _, id := range token.IDs {
				if !t.pieces.has(id) {
					return fmt.Errorf("%s: %q stands for id %d, which no token has", at, piece.SpecialToken.ID, id)
				}
			}
			if texts == 0 {
				before = append(before, token.IDs...)
			} else {
				after = append(after, token.IDs...)
			}
		default:
			return fmt.Errorf("%s: want a SpecialToken or a Sequence", at)
		}
	}
	if texts != 1 {
		return fmt.Errorf("%s.single: contains the Sequence A %d times: only once is supported", path, texts)
	}
	// In a Sequence each template goes around what the one before made.
	t.template.before = append(before, t.template.before...)
	t.template.after = append(t.template.after, after...)
	return nil
}
