package grammar

import "bytes"

// forcedBytes bounds the text that Forced looks at, for each token that is asked for.
const forcedBytes = 16

// Forced is the beginning of the text that has to come after the tokens that were generated so far, each
// byte being the only one that may come: in at most so many tokens, each the longest that the rest of
// the text begins with. A model likely writes it so, and may divide it otherwise. open: the last
// token ends where the text does, so that a longer one may well stand there. Tokens that end an output
// are not among them.
func (c *Constraint) Forced(generated []int32, most int) (tokens []int32, open bool) {
	defer c.begin()()
	at := c.at(generated)
	if at == nil || c.waits(at, len(generated)) {
		return nil, false
	}
	m := &c.grammar.masks
	text, ends := m.forcedText(at, most*forcedBytes)
	for len(tokens) < most && len(text) > 0 {
		id, length := m.longest(text)
		if length == 0 {
			break
		}
		tokens, text = append(tokens, id), text[length:]
	}
	return tokens, len(tokens) > 0 && len(text) == 0 && !ends
}

// forcedText is what has to come at a place, at most so many bytes, and whether the output ends there.
func (m *masks) forcedText(at *place, most int) (text []byte, ends bool) {
	for len(text) < most && !at.complete && !m.exhausted() {
		b, to := m.onlyByte(at)
		if to == nil {
			return text, false
		}
		text, at = append(text, b), to
	}
	return text, at.complete && len(at.threads) == 0
}

// onlyByte is the one byte that leads on from a place, and where to; nil: several do, or none.
func (m *masks) onlyByte(at *place) (only byte, to *place) {
	for b := range at.leads().all {
		next := m.step(at, b)
		switch {
		case next == nil:
		case to != nil:
			return 0, nil
		default:
			only, to = b, next
		}
	}
	return only, to
}

// longest is the longest token that a text begins with, and its length; 0: none is.
func (m *masks) longest(text []byte) (id int32, length int) {
	if text[0] == specialByte {
		for id, name := range m.special {
			if bytes.HasPrefix(text, name) {
				return id, len(name)
			}
		}
		return 0, 0
	}
	all := m.vocabulary.all
	node := int32(0)
	for i, b := range text {
		first, end := all.behind(node)
		at := bytes.IndexByte(all.bytes[first:end], b)
		if at < 0 {
			break
		}
		node = first + int32(at)
		if ids := all.of(node); len(ids) > 0 {
			id, length = ids[0], i+1
		}
	}
	return id, length
}
