package chunk

import (
	"bytes"
	"encoding/json"
	"reflect"
	"unicode/utf8"
)

// Parser parses the chunks of one stream. Those with a token are alike but for
// their text, so it remembers one as what stands before and after the text, and
// knows the next by comparing bytes, about ten times faster than it can be parsed.
// What is not alike is parsed. The zero value is ready; one goroutine uses it.
type Parser struct {
	// before and after are the chunk around the text, which is between two quotes;
	// empty: none is known. like is the chunk but for its text.
	before, after []byte
	like          Chunk
	reasoning     bool
	// vain counts patterns that no chunk was like; a stream where every chunk is
	// another stops the attempts.
	vain int
}

// maxVain is how many patterns may be vain before no other is tried.
const maxVain = 4

// Reset makes the Parser that of another stream; it keeps its buffers.
func (p *Parser) Reset() { *p = Parser{before: p.before[:0], after: p.after[:0]} }

// Parse gives what the function Parse gives, but for Text and Reasoning: unless
// text is set, they may be any text that is empty or not as the true one is.
// TokenIDs and Usage are the reader's to look at, not to change.
func (p *Parser) Parse(data []byte, text bool) (Chunk, error) {
	if c, ok := p.same(data, text); ok {
		p.vain = 0
		return c, nil
	}
	c, err := Parse(data)
	if err == nil && p.vain < maxVain {
		p.learn(data, &c)
	}
	return c, err
}

// same reads a chunk that is like the last one that was learned.
func (p *Parser) same(data []byte, text bool) (Chunk, bool) {
	if len(p.before) == 0 || len(data) < len(p.before)+len(p.after) ||
		!bytes.HasPrefix(data, p.before) || !bytes.HasSuffix(data, p.after) {
		return Chunk{}, false
	}
	body := data[len(p.before) : len(data)-len(p.after)]
	if len(body) == 0 || stringEnd(body) != len(body) {
		return Chunk{}, false
	}
	c := p.like
	if !text {
		p.put(&c, "…")
		return c, true
	}
	// The quotes stand around it.
	value, ok := unquote(data[len(p.before)-1 : len(data)-len(p.after)+1])
	p.put(&c, value)
	return c, ok
}

// unquote is the value of a JSON string.
func unquote(quoted []byte) (value string, ok bool) {
	if bytes.IndexByte(quoted, '\\') < 0 && utf8.Valid(quoted) {
		return string(quoted[1 : len(quoted)-1]), true
	}
	err := json.Unmarshal(quoted, &value)
	return value, err == nil
}

func (p *Parser) put(c *Chunk, value string) {
	if p.reasoning {
		c.Reasoning = value
	} else {
		c.Text = value
	}
}

// probe is a text that no server sends.
const probe = "\u2402 tandem \u2403"

// learn looks for the text in a chunk and takes what is around it as the pattern.
// Whether it is the text is tried: the same bytes around another string must parse
// to the same chunk with that string as its text. JSON's grammar then gives it for
// any string, since what is around a string does not depend on what is in it.
func (p *Parser) learn(data []byte, c *Chunk) {
	p.before, p.after = p.before[:0], p.after[:0]
	if c.Text == "" && c.Reasoning == "" {
		return
	}
	p.reasoning = c.Text == ""
	keys := []string{`"content"`, `"text"`}
	if p.reasoning {
		keys = []string{`"reasoning_content"`, `"reasoning"`}
	}
	p.vain++
	for _, key := range keys {
		from, ok := valueAfter(data, key)
		if !ok {
			continue
		}
		end := from + stringEnd(data[from:])
		tried, err := Parse(append(append(append(make([]byte, 0, len(data)+len(probe)), data[:from]...), probe...), data[end:]...))
		want := *c
		p.put(&want, probe)
		if err != nil || !reflect.DeepEqual(tried, want) {
			continue
		}
		p.like = *c
		p.before, p.after = append(p.before, data[:from]...), append(p.after, data[end:]...)
		return
	}
}

// valueAfter is where the inside of the string begins that follows key, at its
// last place in data.
func valueAfter(data []byte, key string) (int, bool) {
	at := bytes.LastIndex(data, []byte(key))
	if at < 0 {
		return 0, false
	}
	at += len(key)
	for _, want := range []byte{':', '"'} {
		for at < len(data) && data[at] == ' ' {
			at++
		}
		if at == len(data) || data[at] != want {
			return 0, false
		}
		at++
	}
	return at, true
}

// stringEnd is how much of text can be the inside of a JSON string: up to a quote
// or something that may not be in one.
func stringEnd(text []byte) int {
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' || c < ' ':
			return i
		case c == '\\':
			if n := escape(text[i:]); n > 0 {
				i += n - 1
			} else {
				return i
			}
		}
	}
	return len(text)
}

// escape is the length of the escape that text begins with, 0 if it is none.
func escape(text []byte) int {
	if len(text) < 2 {
		return 0
	}
	switch text[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if len(text) < 6 {
			return 0
		}
		for _, c := range text[2:6] {
			if !('0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F') {
				return 0
			}
		}
		return 6
	}
	return 0
}
