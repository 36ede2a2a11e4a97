package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parseModel takes the model; byteLevel says that its symbols are bytes.
func (t *Tokenizer) parseModel(data json.RawMessage, byteLevel bool) error {
	if isNull(data) {
		return fmt.Errorf("model: missing")
	}
	var m struct {
		// Absent in files of before there was more than one kind with merges.
		Type                    *string         `json:"type"`
		Dropout                 *float64        `json:"dropout"`
		ContinuingSubwordPrefix *string         `json:"continuing_subword_prefix"`
		EndOfWordSuffix         *string         `json:"end_of_word_suffix"`
		IgnoreMerges            bool            `json:"ignore_merges"`
		Vocab                   json.RawMessage `json:"vocab"`
		Merges                  json.RawMessage `json:"merges"`
		UnkToken                *string         `json:"unk_token"`
		FuseUnk                 bool            `json:"fuse_unk"`
		ByteFallback            bool            `json:"byte_fallback"`
	}
	if err := decodeStrict(data, &m); err != nil {
		return fmt.Errorf("model: %w", err)
	}
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("model.dropout: %v is not supported: only null is", *m.Dropout)
	case m.ContinuingSubwordPrefix != nil && *m.ContinuingSubwordPrefix != "":
		return fmt.Errorf("model.continuing_subword_prefix: %q is not supported: only null is", *m.ContinuingSubwordPrefix)
	case m.EndOfWordSuffix != nil && *m.EndOfWordSuffix != "":
		return fmt.Errorf("model.end_of_word_suffix: %q is not supported: only null is", *m.EndOfWordSuffix)
	}
	if err := t.parseVocab(m.Vocab); err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	symbols := &t.model.symbols
	symbols.unknown, symbols.fuseUnknown = none, m.FuseUnk
	if byteLevel {
		if err := t.byteSymbols(m.IgnoreMerges, m.ByteFallback); err != nil {
			return fmt.Errorf("model.vocab: %w", err)
		}
	} else {
		t.charSymbols(m.IgnoreMerges, m.ByteFallback)
	}
	t.unbounded = !symbols.complete()
	if m.UnkToken != nil {
		switch id, ok := t.ids[*m.UnkToken]; {
		case ok:
			symbols.unknown = id
		case t.unbounded:
			return fmt.Errorf("model.unk_token: %q is not in the vocabulary", *m.UnkToken)
		}
	}
	if err := t.parseMerges(m.Merges); err != nil {
		return fmt.Errorf("model.merges%w", err)
	}
	return nil
}

// checkModelKind refuses a model that is not BPE by its kind, before anything else of the
// file is looked at. A file of before models had a type is told by its fields.
func checkModelKind(data json.RawMessage) error {
	kind := typeOf(data)
	if kind == untyped {
		kind = "BPE"
		var fields map[string]json.RawMessage
		_ = json.Unmarshal(data, &fields)
		switch {
		case fields["max_input_chars_per_word"] != nil:
			kind = "WordPiece"
		case bytes.HasPrefix(fields["vocab"], []byte("[[")), fields["unk_id"] != nil:
			kind = "Unigram"
		}
	}
	switch kind {
	case "BPE", "null":
		return nil
	case "WordPiece", "Unigram", "WordLevel":
		return fmt.Errorf("model: %s tokenizers (%s) are not supported: only BPE is", kind, modelsOf[kind])
	}
	return fmt.Errorf("model: type %q is not supported: only BPE is", kind)
}

// modelsOf names well-known models with each kind of tokenizer that is refused.
var modelsOf = map[string]string{"WordPiece": "as of BERT", "Unigram": "as of T5", "WordLevel": "a token for each word"}

// parseVocab goes through the object token by token, because a map would hide a
// key that is there twice.
func (t *Tokenizer) parseVocab(data json.RawMessage) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return fmt.Errorf("want an object of tokens and ids")
	}
	t.ids = make(map[string]int32)
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return jsonError(err, len(data))
		}
		value, err := d.Token()
		if err != nil {
			return jsonError(err, len(data))
		}
		content, _ := key.(string)
		digits, _ := value.(json.Number)
		id, err := strconv.ParseInt(string(digits), 10, 32)
		if err != nil || id < 0 || id >= maxIDs {
			return fmt.Errorf("%q: id %v is not in 0 to %d", content, value, maxIDs-1)
		}
		if _, twice := t.ids[content]; twice {
			return fmt.Errorf("%q is there twice", content)
		}
		if t.pieces.has(int32(id)) {
			return fmt.Errorf("%q: id %d belongs to another token", content, id)
		}
		t.ids[content] = int32(id)
		t.pieces.set(int32(id), content)
	}
	return nil
}

// byteSymbols makes the symbols of a model that sees bytes: the vocabulary is written
// in the byte alphabet.
func (t *Tokenizer) byteSymbols(wholeTokens, byteFallback bool) error {
	alphabet := newAlphabet()
	if wholeTokens {
		t.model.whole = make(map[string]int32, len(t.ids))
	}
	var piece []byte
	for content, id := range t.ids {
		var spelled bool
		piece, spelled = alphabet.appendBytes(piece[:0], content)
		t.longestToken = max(t.longestToken, len(piece))
		if spelled && wholeTokens {
			t.model.whole[string(piece)] = id
		}
	}
	for b := range 256 {
		symbol := alphabet.symbol(byte(b))
		id, ok := t.ids[symbol]
		switch {
		case !ok && assigned(byte(b)):
			return fmt.Errorf("no token %q for the byte 0x%02X: a vocabulary may lack only bytes that no assigned character has (C0, C1, F1, F2, F5 to FF)", symbol, b)
		case !ok && byteFallback:
			return fmt.Errorf("no token %q for the byte 0x%02X, with byte_fallback: a vocabulary of bytes with byte_fallback needs all 256", symbol, b)
		case !ok:
			id = none
		}
		t.model.symbols.bytes[b] = id
	}
	return nil
}

// assigned says whether the UTF-8 of any character that Unicode assigns or leaves to
// private use has the byte. C0, C1 and F5 to FF are never UTF-8; F1 and F2 begin the
// planes 4 to 11, which are empty. GPT-NeoX and StarCoder leave such bytes out.
func assigned(b byte) bool {
	return b != 0xC0 && b != 0xC1 && b != 0xF1 && b != 0xF2 && b < 0xF5
}

// charSymbols makes the symbols of a model that sees characters.
func (t *Tokenizer) charSymbols(wholeTokens, byteFallback bool) {
	s := &t.model.symbols
	s.chars = newCharTable()
	if wholeTokens {
		t.model.whole = make(map[string]int32, len(t.ids))
	}
	for content, id := range t.ids {
		t.longestToken = max(t.longestToken, len(content))
		if r, size := utf8.DecodeRuneInString(content); size == len(content) && size > 0 {
			s.chars.set(r, id)
		}
		if wholeTokens {
			t.model.whole[content] = id
		}
	}
	for b := range s.bytes {
		s.bytes[b] = none
		if id, ok := t.ids[byteToken(byte(b))]; ok && byteFallback {
			s.bytes[b] = id
		}
	}
}

// mergePair is "a b" or ["a", "b"]; skip marks a version line of a merges.txt.
type mergePair struct {
	a, b string
	skip bool
}

func (p *mergePair) UnmarshalJSON(data []byte) error {
	if data[0] == '[' {
		var parts []string
		if err := json.Unmarshal(data, &parts); err != nil || len(parts) != 2 {
			return fmt.Errorf("%.80s is not a pair of tokens", data)
		}
		p.a, p.b = parts[0], parts[1]
		return nil
	}
	var line string
	if err := json.Unmarshal(data, &line); err != nil {
		return fmt.Errorf("%.80s is not a pair of tokens", data)
	}
	if strings.HasPrefix(line, "#version") {
		p.skip = true
		return nil
	}
	var ok bool
	p.a, p.b, ok = strings.Cut(line, " ")
	if !ok || strings.Contains(p.b, " ") {
		return fmt.Errorf("%.80q is not two tokens with a space between", line)
	}
	return nil
}

func (t *Tokenizer) parseMerges(data json.RawMessage) error {
	if isNull(data) {
		return fmt.Errorf(": missing")
	}
	var pairs []mergePair
	if err := json.Unmarshal(data, &pairs); err != nil {
		return fmt.Errorf(": %w", err)
	}
	if len(pairs) > maxIDs {
		return fmt.Errorf(": %d merges are more than the %d supported", len(pairs), maxIDs)
	}
	t.model.merges = newMergeTable(len(pairs))
	cuts := t.newCuts()
	rank := uint32(0)
	for i, p := range pairs {
		if p.skip {
			continue
		}
		a, ok := t.ids[p.a]
		if !ok {
			return fmt.Errorf("[%d]: %q of the merge %q %q is not in the vocabulary", i, p.a, p.a, p.b)
		}
		b, ok := t.ids[p.b]
		if !ok {
			return fmt.Errorf("[%d]: %q of the merge %q %q is not in the vocabulary", i, p.b, p.a, p.b)
		}
		result, ok := t.ids[p.a+p.b]
		if !ok {
			return fmt.Errorf("[%d]: %q, the result of the merge %q %q, is not in the vocabulary", i, p.a+p.b, p.a, p.b)
		}
		t.model.merges.put(a, b, rank, result)
		rank++
		switch {
		case cuts == nil:
		case p.a == "" || p.b == "" || t.standsIn(a) || t.standsIn(b):
			cuts = nil
		default:
			cuts.merge(p.a, p.b)
		}
	}
	t.model.cuts = cuts
	return nil
}

// newCuts is nil for models that nothing is known to be cut for: those that see
// bytes, which a pre-tokenizer cuts, and those for which a character may vanish or
// become one with its neighbour without any merge.
func (t *Tokenizer) newCuts() *cutTable {
	if t.model.symbols.chars == nil || !t.model.symbols.complete() {
		return nil
	}
	return newCutTable()
}

// standsIn says whether id is a token that stands in for a byte or for the unknown.
func (t *Tokenizer) standsIn(id int32) bool {
	return id == t.model.symbols.unknown || slices.Contains(t.model.symbols.bytes[:], id)
}
