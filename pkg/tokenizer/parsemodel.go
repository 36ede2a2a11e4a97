package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

func (t *Tokenizer) parseModel(data json.RawMessage) error {
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
		// Without effect, because parseVocab asks for a symbol for every byte.
		UnkToken     *string `json:"unk_token"`
		FuseUnk      *bool   `json:"fuse_unk"`
		ByteFallback *bool   `json:"byte_fallback"`
	}
	if kind := typeOf(data); kind != "BPE" && kind != untyped {
		return fmt.Errorf("model: type %q is not supported: only BPE is", kind)
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
	if err := t.parseVocab(m.Vocab, m.IgnoreMerges); err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	if err := t.parseMerges(m.Merges); err != nil {
		return fmt.Errorf("model.merges%w", err)
	}
	return nil
}

// parseVocab goes through the object token by token, because a map would hide a
// key that is there twice.
func (t *Tokenizer) parseVocab(data json.RawMessage, wholeTokens bool) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return fmt.Errorf("want an object of tokens and ids")
	}
	alphabet := newAlphabet()
	t.ids = make(map[string]int32)
	if wholeTokens {
		t.model.whole = make(map[string]int32)
	}
	var piece []byte
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
		var spelled bool
		piece, spelled = alphabet.appendBytes(piece[:0], content)
		t.pieces.set(int32(id), string(piece))
		t.longestToken = max(t.longestToken, len(piece))
		if spelled && wholeTokens {
			t.model.whole[string(piece)] = int32(id)
		}
	}
	for b := range 256 {
		symbol := alphabet.symbol(byte(b))
		id, ok := t.ids[symbol]
		if !ok {
			return fmt.Errorf("no token %q for the byte 0x%02X: only vocabularies with all 256 bytes are supported", symbol, b)
		}
		t.model.symbol[b] = id
	}
	return nil
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
	}
	return nil
}
