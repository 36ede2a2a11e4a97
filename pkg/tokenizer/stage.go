package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// stage is one step of cutting text into the pieces that merges stay inside of: it
// may rewrite the text first, then it cuts it by scan or by find, or not at all.
type stage struct {
	// replacement stands for a space from here on; "": a space stands for itself.
	replacement string
	// prefix is put before what does not begin with it.
	prefix    string
	prefixing prefixing
	// scan returns the end of the piece that starts at i.
	scan scanner
	// find returns the first match at or after i; start is -1 if there is none.
	find     func(s string, i int) (start, end int)
	behavior behavior
	invert   bool
}

// prefixing says which texts get the prefix.
type prefixing uint8

const (
	never prefixing = iota
	always
	onlyFirst // only the one at the start of the whole text
)

// behavior is what becomes of a match.
type behavior uint8

const (
	isolated           behavior = iota // a piece of its own
	removed                            // nothing
	mergedWithPrevious                 // it ends the piece before it
	mergedWithNext                     // it begins the piece behind it
	contiguous                         // matches side by side are one piece
)

var behaviors = map[string]behavior{
	"Isolated": isolated, "Removed": removed, "MergedWithPrevious": mergedWithPrevious,
	"MergedWithNext": mergedWithNext, "Contiguous": contiguous,
}

func (s *stage) rewrite(text string, first bool, stop func() error) (string, error) {
	if s.replacement != "" {
		var err error
		if text, err = replaceAll(text, " ", s.replacement, stop); err != nil {
			return "", err
		}
	}
	if (s.prefixing == always || s.prefixing == onlyFirst && first) && !strings.HasPrefix(text, s.prefix) {
		text = s.prefix + text
	}
	return text, nil
}

// cut calls emit for each piece of text, in order; text is not empty.
func (s *stage) cut(text string, emit func(start, end int) error) error {
	c := cutter{behavior: s.behavior, emit: emit}
	for i := 0; i < len(text); {
		start, end := s.find(text, i)
		if start < 0 {
			start, end = len(text), len(text)
		}
		if start > i {
			if err := c.item(i, start, s.invert); err != nil {
				return err
			}
		}
		if end > start {
			if err := c.item(start, end, !s.invert); err != nil {
				return err
			}
		}
		i = end
	}
	return c.flush()
}

// cutter makes pieces of matches and what lies between. It holds one piece back, for
// what comes next may belong to it.
type cutter struct {
	behavior   behavior
	emit       func(start, end int) error
	start, end int // the piece that is held; none where they are equal
	matched    bool
}

func (c *cutter) item(start, end int, match bool) error {
	holds := c.end > c.start
	before := c.matched
	c.matched = match
	joins := false
	switch c.behavior {
	case removed:
		if match {
			return nil
		}
	case contiguous:
		joins = holds && match == before
	case mergedWithPrevious:
		joins = holds && match && !before
	case mergedWithNext:
		joins = holds && !match && before
	}
	if joins {
		c.end = end
		return nil
	}
	if err := c.flush(); err != nil {
		return err
	}
	c.start, c.end = start, end
	return nil
}

func (c *cutter) flush() error {
	start, end := c.start, c.end
	c.start = c.end
	if end > start {
		return c.emit(start, end)
	}
	return nil
}

// finding turns a scanner, whose matches cover the text, into a finder.
func finding(scan scanner) func(s string, i int) (int, int) {
	return func(s string, i int) (int, int) { return i, scan(s, i) }
}

// findText finds text as it is.
func findText(text string) func(s string, i int) (int, int) {
	return func(s string, i int) (int, int) {
		at := strings.Index(s[i:], text)
		if at < 0 {
			return -1, -1
		}
		return i + at, i + at + len(text)
	}
}

// findNumber finds one character of \p{N}.
func (c *classes) findNumber(s string, i int) (int, int) {
	for i < len(s) {
		k, size := c.at(s, i)
		if k == number {
			return i, i + size
		}
		i += size
	}
	return -1, -1
}

// scanWords is the cutting of Metaspace: before each replacement.
func scanWords(replacement string) scanner {
	return func(s string, i int) int {
		_, size := utf8.DecodeRuneInString(s[i:])
		if at := strings.Index(s[i+size:], replacement); at >= 0 {
			return i + size + at
		}
		return len(s)
	}
}
