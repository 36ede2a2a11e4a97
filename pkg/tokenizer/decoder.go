package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// decoder turns tokens into text: what can be done to each token by itself is done
// when the file is read, steps is the rest.
type decoder struct {
	each  []func(string) string
	steps []decodeStep
	// bytes says that the one step is to put bytes together, whose tokens have been
	// spelled out already.
	bytes  bool
	growth growth
}

// decodeStep is one component that needs to see tokens in their order.
type decodeStep struct {
	kind        stepKind
	content     string // what Strip takes away, the replacement of Metaspace
	with        string // what Replace puts in its place
	start, stop int    // how much of it Strip takes away
	fused       bool   // all tokens are one here
	waits       bool   // a run of bytes has to be whole, even in a stream
}

type stepKind uint8

const (
	stepBytes     stepKind = iota // ByteLevel behind what the file's tokens are
	stepFallback                  // ByteFallback
	stepFuse                      // Fuse
	stepStrip                     // Strip
	stepReplace                   // Replace
	stepMetaspace                 // Metaspace
)

func (t *Tokenizer) parseDecoder(data json.RawMessage) error {
	d := &t.decoder
	if isNull(data) {
		return fmt.Errorf("decoder: null is not supported: want a decoder")
	}
	if err := d.component("decoder", data, 0); err != nil {
		return err
	}
	d.markWaiting()
	// Bytes first: spell the tokens out once and for all.
	spell := len(d.steps) > 0 && d.steps[0].kind == stepBytes
	d.bytes = spell && len(d.steps) == 1
	alphabet := newAlphabet()
	for id, token := range t.pieces.pieces {
		for _, change := range d.each {
			token = change(token)
		}
		if spell {
			raw, _ := alphabet.appendBytes(nil, token)
			token = string(raw)
		}
		t.pieces.pieces[id] = token
	}
	return nil
}

// markWaiting says which ByteFallbacks have to wait for the end of a run of bytes:
// those with a step behind them for which the parts of a token are not the token.
func (d *decoder) markWaiting() {
	for i := range d.steps {
		if d.steps[i].kind != stepFallback {
			continue
		}
		for _, behind := range d.steps[i+1:] {
			if behind.kind == stepFuse || behind.fused {
				break
			}
			switch behind.kind {
			case stepReplace:
				d.steps[i].waits = d.steps[i].waits || utf8.RuneCountInString(behind.content) > 1
			case stepStrip, stepFallback:
				d.steps[i].waits = true
			}
		}
	}
}

func (d *decoder) component(path string, data json.RawMessage, depth int) error {
	fused := false
	for _, s := range d.steps {
		fused = fused || s.kind == stepFuse || s.kind == stepBytes
	}
	kind := typeOf(data)
	switch kind {
	case "Sequence":
		var s struct {
			Type     string            `json:"type"`
			Decoders []json.RawMessage `json:"decoders"`
		}
		return sequence(path, "decoders", data, depth, &s, &s.Decoders, d.component)
	case "Fuse":
		d.steps = append(d.steps, decodeStep{kind: stepFuse, fused: fused})
		return onlyType(path, data)
	case "Replace":
		return d.replace(path, data, fused)
	case "Strip":
		return d.strip(path, data, fused)
	}
	if fused {
		return fmt.Errorf("%s: %s after Fuse or ByteFallback is not supported", path, kind)
	}
	switch kind {
	case "ByteLevel":
		if _, err := parseByteLevel(path, data); err != nil {
			return err
		}
		if len(d.steps) > 0 {
			return fmt.Errorf("%s: ByteLevel after a decoder other than Replace and Strip is not supported", path)
		}
		d.steps = append(d.steps, decodeStep{kind: stepBytes})
		return nil
	case "ByteFallback":
		d.steps = append(d.steps, decodeStep{kind: stepFallback})
		return onlyType(path, data)
	case "Metaspace":
		m, scheme, err := parseMetaspace(path, data)
		if err != nil {
			return err
		}
		if scheme == never {
			d.perToken(func(s string) string { return strings.ReplaceAll(s, m.Replacement, " ") },
				decodeStep{kind: stepReplace, content: m.Replacement, with: " "})
			return nil
		}
		d.steps = append(d.steps, decodeStep{kind: stepMetaspace, content: m.Replacement})
		return nil
	}
	return fmt.Errorf("%s: %s is not supported: only Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace and Metaspace are", path, kind)
}

func onlyType(path string, data json.RawMessage) error {
	var c struct {
		Type string `json:"type"`
	}
	if err := decodeComponent(data, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// perToken adds what is done to each token by itself: when the file is read as long
// as nothing that sees the tokens in order stands before it.
func (d *decoder) perToken(each func(string) string, step decodeStep) {
	if len(d.steps) == 0 {
		d.each = append(d.each, each)
		return
	}
	d.steps = append(d.steps, step)
}

func (d *decoder) replace(path string, data json.RawMessage, fused bool) error {
	var r struct {
		Type    string  `json:"type"`
		Pattern pattern `json:"pattern"`
		Content string  `json:"content"`
	}
	if err := decodeComponent(data, &r); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if r.Pattern.String == nil || r.Pattern.Regex != nil || *r.Pattern.String == "" {
		return fmt.Errorf("%s: the pattern must be a String that is not empty", path)
	}
	text := *r.Pattern.String
	if fused && utf8.RuneCountInString(text) > 1 {
		return fmt.Errorf("%s: a pattern of several characters after Fuse or ByteFallback is not supported", path)
	}
	if err := d.growth.replace(path, len(text), len(r.Content)); err != nil {
		return err
	}
	d.perToken(func(s string) string { return strings.ReplaceAll(s, text, r.Content) },
		decodeStep{kind: stepReplace, content: text, with: r.Content, fused: fused})
	return nil
}

func (d *decoder) strip(path string, data json.RawMessage, fused bool) error {
	var s struct {
		Type    string `json:"type"`
		Content string `json:"content"`
		Start   int    `json:"start"`
		Stop    int    `json:"stop"`
	}
	if err := decodeComponent(data, &s); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if utf8.RuneCountInString(s.Content) != 1 || s.Start < 0 || s.Stop < 0 || s.Start > maxStrip || s.Stop > maxStrip {
		return fmt.Errorf("%s: want content of one character, and start and stop from 0 to %d", path, maxStrip)
	}
	step := decodeStep{kind: stepStrip, content: s.Content, start: s.Start, stop: s.Stop, fused: fused}
	d.perToken(step.stripped, step)
	return nil
}

// maxStrip bounds what a Stream may have to hold back.
const maxStrip = 1 << 10

// stripped is token without up to start times content at its start, and up to stop
// times at the end of the rest.
func (s *decodeStep) stripped(token string) string {
	for range s.start {
		rest, ok := strings.CutPrefix(token, s.content)
		if !ok {
			break
		}
		token = rest
	}
	for range s.stop {
		rest, ok := strings.CutSuffix(token, s.content)
		if !ok {
			break
		}
		token = rest
	}
	return token
}
