package chunk

import (
	"bytes"
	"encoding/json"
	"reflect"
	"unicode/utf8"
)

// Parser parses the chunks of one stream. Token chunks differ only in their text, so it
// remembers the bytes before and after the text and recognizes the next chunk by
// comparing them, about ten times faster than parsing. Others are parsed. The zero value
// is ready. Not for concurrent use.
type Parser struct {
	// before and after are the chunk's bytes around its quoted text; empty: none known.
	// like is the chunk without its text.
	before, after []byte
	like          Chunk
	reasoning     bool
	// misses counts patterns that matched no later chunk.
	misses int
}

// maxMisses is the number of such patterns after which no more are learned.
const maxMisses = 4

// Reset prepares the Parser for another stream and keeps its buffers.
func (p *Parser) Reset() { *p = Parser{before: p.before[:0], after: p.after[:0]} }

// Parse is like the function Parse, but unless text is set, Text and Reasoning only tell
// empty from nonempty. TokenIDs and Usage must not be changed.
func (p *Parser) Parse(data []byte, text bool) (Chunk, error) {
	if c, ok := p.same(data, text); ok {
		p.misses = 0
		return c, nil
	}
	c, err := Parse(data)
	if err == nil && p.misses < maxMisses {
		p.learn(data, &c)
	}
	return c, err
}

// same parses a chunk that matches the learned pattern.
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
	// Include the quotes.
	value, ok := unquote(data[len(p.before)-1 : len(data)-len(p.after)+1])
	p.put(&c, value)
	return c, ok
}

// unquote decodes a JSON string.
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

// probe is a text no server sends.
const probe = "\u2402 tandem \u2403"

// learn takes the bytes around a chunk's text as the pattern. To confirm that it found
// the text, it checks that the same bytes around another string parse to the same chunk
// with that string as its text. By JSON's grammar this then holds for any string.
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
	p.misses++
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

// valueAfter is where the string value of the last occurrence of key begins.
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

// stringEnd is the length of text that can be inside a JSON string: up to a quote or an
// invalid byte.
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

// escape is the length of the escape at the start of text, 0 if there is none.
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
