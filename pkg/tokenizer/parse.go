package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxIDs bounds the vocabulary: ids are 0 to maxIDs-1.
const maxIDs = 4 << 20

// maxDepth bounds how deep Sequences may nest.
const maxDepth = 8

// Parse makes a Tokenizer of the content of a tokenizer.json. It keeps no
// reference to data. Errors name the component, as in
// "pre_tokenizer.pretokenizers[0]: unknown pattern …"; JSON that is malformed is
// reported with its offset in bytes.
func Parse(data []byte) (*Tokenizer, error) {
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("not a tokenizer.json: not UTF-8 at offset %d", invalidAt(data))
	}
	var file struct {
		Version       *string         `json:"version"`
		Truncation    json.RawMessage `json:"truncation"` // not applied: see the package comment
		Padding       json.RawMessage `json:"padding"`    // not applied
		AddedTokens   json.RawMessage `json:"added_tokens"`
		Normalizer    json.RawMessage `json:"normalizer"`
		PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
		Model         json.RawMessage `json:"model"`
		PostProcessor json.RawMessage `json:"post_processor"`
		Decoder       json.RawMessage `json:"decoder"`
	}
	if err := decodeStrict(data, &file); err != nil {
		return nil, fmt.Errorf("cannot understand this tokenizer.json: %w", err)
	}
	if at := loneSurrogate(data); at >= 0 {
		return nil, fmt.Errorf("not a tokenizer.json: half a surrogate pair at offset %d", at)
	}
	if file.Version != nil && *file.Version != "1.0" {
		return nil, fmt.Errorf("version: %q is not supported: only 1.0 is", *file.Version)
	}
	if err := checkModelKind(file.Model); err != nil {
		return nil, err
	}
	t := new(Tokenizer)
	byteLevel, err := t.parsePreTokenizer(file.PreTokenizer)
	if err != nil {
		return nil, err
	}
	if err := t.parseModel(file.Model, byteLevel); err != nil {
		return nil, err
	}
	if err := t.parseNormalizer(file.Normalizer); err != nil {
		return nil, err
	}
	if err := t.checkFirst(); err != nil {
		return nil, err
	}
	if err := t.parseAddedTokens(file.AddedTokens); err != nil {
		return nil, err
	}
	if err := t.parsePostProcessor(file.PostProcessor); err != nil {
		return nil, err
	}
	if err := t.parseDecoder(file.Decoder); err != nil {
		return nil, err
	}
	return t, nil
}

// checkFirst refuses a Metaspace that asks whether a piece was at the start of the
// text before normalization, where that start may be gone: the library follows each
// byte through the normalizer, which is not done here.
func (t *Tokenizer) checkFirst() error {
	for _, s := range t.stages {
		if s.prefixing == onlyFirst && t.normalizer.cutsStart != "" {
			return fmt.Errorf("%s, which may remove the start of a text, is not supported before a Metaspace with prepend_scheme \"first\"", t.normalizer.cutsStart)
		}
	}
	return nil
}

func (t *Tokenizer) parseAddedTokens(data json.RawMessage) error {
	var tokens []addedToken
	if !isNull(data) {
		if err := decodeStrict(data, &tokens); err != nil {
			return fmt.Errorf("added_tokens: %w", err)
		}
	}
	t.special = make(map[int32]bool)
	seen := make(map[string]bool, len(tokens))
	var raw, late []addedToken
	for i, token := range tokens {
		switch id, known := t.ids[token.Content]; {
		case token.Content == "":
			return fmt.Errorf("added_tokens[%d]: empty content", i)
		case seen[token.Content]:
			return fmt.Errorf("added_tokens[%d]: %q is there twice", i, token.Content)
		case token.ID < 0 || token.ID >= maxIDs:
			return fmt.Errorf("added_tokens[%d]: %q: id %d is not in 0 to %d", i, token.Content, token.ID, maxIDs-1)
		case known && id != token.ID:
			return fmt.Errorf("added_tokens[%d]: %q has id %d here and %d in model.vocab", i, token.Content, token.ID, id)
		case !known && t.pieces.has(token.ID):
			return fmt.Errorf("added_tokens[%d]: %q: id %d belongs to another token", i, token.Content, token.ID)
		case !known:
			t.ids[token.Content] = token.ID
			// Decoding treats an added token like any other.
			t.pieces.set(token.ID, token.Content)
		}
		seen[token.Content] = true
		t.swallows = t.swallows || token.LStrip || token.RStrip
		if token.Special {
			t.special[token.ID] = true
		}
		t.longestToken = max(t.longestToken, len(token.Content))
		if !token.Normalized {
			raw = append(raw, token)
			continue
		}
		// It is looked for as the normalizer makes it.
		token.Content, _ = t.normalizer.apply(token.Content, carryOn)
		if token.Content == "" {
			return fmt.Errorf("added_tokens[%d]: the normalizer removes all of it", i)
		}
		t.longestToken = max(t.longestToken, len(token.Content))
		late = append(late, token)
	}
	// Of two that the normalizer makes alike the first stands, special ones first.
	slices.SortStableFunc(late, func(a, b addedToken) int {
		switch {
		case a.Special == b.Special:
			return 0
		case a.Special:
			return -1
		}
		return 1
	})
	t.raw, t.late = newAddedSet(raw), newAddedSet(late)
	return nil
}

// decodeComponent is decodeStrict for a component, a pointer to a struct. Keys that differ from those of its
// fields in case are others.
func decodeComponent(data []byte, into any) error {
	if err := decodeStrict(data, into); err != nil {
		return err
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(data, &keys); err != nil {
		return jsonError(err, len(data))
	}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(into).Elem()) {
		delete(keys, f.Tag.Get("json"))
	}
	for key := range keys {
		return fmt.Errorf("unknown field %q", key)
	}
	return nil
}

// decodeStrict decodes one JSON value and refuses keys that into has no field for:
// a key that is not understood may change what the file means.
func decodeStrict(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return jsonError(err, len(data))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("malformed JSON: unexpected data after the value at offset %d", d.InputOffset())
	}
	return nil
}

// sequence decodes a Sequence, whose parts are the list of that name, and hands each of
// them to component.
func sequence(path, list string, data []byte, depth int, into any, parts *[]json.RawMessage,
	component func(path string, data json.RawMessage, depth int) error,
) error {
	if depth == maxDepth {
		return fmt.Errorf("%s: Sequences are nested more than %d deep", path, maxDepth)
	}
	if err := decodeComponent(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for i, part := range *parts {
		if err := component(fmt.Sprintf("%s.%s[%d]", path, list, i), part, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// byteLevelFields are those of ByteLevel. Only a pre-tokenizer's have an effect.
type byteLevelFields struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"` // offsets are not computed here
	UseRegex       bool   `json:"use_regex"`
}

func parseByteLevel(path string, data json.RawMessage) (b byteLevelFields, err error) {
	b.UseRegex = true
	if err := decodeComponent(data, &b); err != nil {
		return b, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// jsonError says where JSON of so many bytes is malformed. Only the whole file's
// can be: its components come out of a value that has been read.
func jsonError(err error, length int) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("malformed JSON at offset %d: %w: the file is damaged: fetch it again", syntax.Offset, err)
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("unexpected %s in place of an object", kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%q: unexpected %s", kind.Field, kind.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("malformed JSON: ends too early, at offset %d: the file is incomplete: fetch it again", length)
	}
	return err
}

func isNull(data json.RawMessage) bool {
	return len(data) == 0 || string(data) == "null"
}

// untyped is what typeOf says of a component that has no type.
const untyped = "a component without a type"

// typeOf is a component's "type", to choose by and to name in errors.
func typeOf(data json.RawMessage) string {
	if isNull(data) {
		return "null"
	}
	var c struct {
		Type *string `json:"type"`
	}
	if json.Unmarshal(data, &c) != nil || c.Type == nil {
		return untyped
	}
	return *c.Type
}

// invalidAt is the offset of the first byte that is not UTF-8.
func invalidAt(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(data)
}

// loneSurrogate is the offset, in valid JSON, of the first \u escape that is half of
// a surrogate pair without the other half, or -1. The decoder would read it as
// U+FFFD: as another token.
func loneSurrogate(data []byte) int {
	escape := func(i int) (r rune, ok bool) {
		if i+6 > len(data) || data[i] != '\\' || data[i+1] != 'u' {
			return 0, false
		}
		v, err := strconv.ParseUint(string(data[i+2:i+6]), 16, 16)
		return rune(v), err == nil
	}
	for i := 0; i < len(data); i++ {
		if data[i] != '\\' {
			continue
		}
		r, ok := escape(i)
		switch {
		case !ok:
			i++ // an escape of two characters
		case !utf16.IsSurrogate(r):
			i += 5
		default:
			second, _ := escape(i + 6)
			if utf16.DecodeRune(r, second) == utf8.RuneError {
				return i
			}
			i += 11
		}
	}
	return -1
}
