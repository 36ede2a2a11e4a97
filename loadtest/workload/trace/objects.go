package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxObject bounds one object.
const maxObject = 16 << 20

// objects splits a JSON array, or a sequence of objects, into its top-level objects and
// tracks the position. It looks only at brackets and quotes. json.Decoder would not bound
// an object's size and does not report lines.
type objects struct {
	in   *bufio.Reader
	name string
	// line and column of the next byte, from 1.
	line, column int
	// array: the trace is an array; ended: its ']' was read.
	array, ended bool
	began        bool
	count        int
	object       []byte
}

// object is one object with its position.
type object struct {
	text         []byte
	line, column int
}

// next returns the next object, valid until the next call; io.EOF at the end.
func (o *objects) next() (object, error) {
	comma := false
	for {
		c, err := o.in.ReadByte()
		if errors.Is(err, io.EOF) {
			if o.array && !o.ended {
				return object{}, o.fail("the file ends inside the array: expected ']' or an object")
			}
			if !o.began {
				return object{}, o.fail("the file is empty: expected an array of objects")
			}
			return object{}, io.EOF
		}
		if err != nil {
			return object{}, fmt.Errorf("read %s: %w", o.name, err)
		}
		switch {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
		case o.ended:
			return object{}, o.fail("%q after the array: expected nothing", c)
		case c == '[' && !o.began:
			o.array, o.began = true, true
		case c == ']' && o.array && !comma:
			o.ended = true
		case c == ',' && o.array && !comma && o.count > 0:
			comma = true
		case c == '{' && (!o.array || comma || o.count == 0):
			o.began = true
			o.count++
			return o.rest()
		default:
			return object{}, o.fail("%q where %s", c, o.expected(comma))
		}
		o.pass(c)
	}
}

func (o *objects) expected(comma bool) string {
	switch {
	case !o.began:
		return "an array of objects was expected"
	case o.array && !comma && o.count > 0:
		return "',' or ']' was expected"
	default:
		return "an object was expected"
	}
}

// rest reads an object after its '{'.
func (o *objects) rest() (object, error) {
	found := object{line: o.line, column: o.column}
	o.object = append(o.object[:0], '{')
	o.pass('{')
	depth, quotes, escaped := 1, false, false
	for {
		// Scan whatever is buffered: reading byte by byte costs three times as much.
		if _, err := o.in.Peek(1); errors.Is(err, io.EOF) {
			return object{}, &SyntaxError{o.name, found.line, found.column, "the object has no end: expected '}'"}
		} else if err != nil {
			return object{}, fmt.Errorf("read %s: %w", o.name, err)
		}
		chunk, _ := o.in.Peek(o.in.Buffered())
		taken := 0
		for taken < len(chunk) && depth > 0 {
			c := chunk[taken]
			taken++
			switch {
			case escaped:
				escaped = false
			case quotes:
				quotes, escaped = c != '"', c == '\\'
			case c == '"':
				quotes = true
			case c == '{' || c == '[':
				depth++
			case c == '}' || c == ']':
				depth--
			}
		}
		if len(o.object)+taken > maxObject {
			return object{}, &SyntaxError{o.name, found.line, found.column, "the object is longer than 16 MiB: expected one conversation"}
		}
		o.object = append(o.object, chunk[:taken]...)
		o.line, o.column = after(o.line, o.column, chunk[:taken])
		_, _ = o.in.Discard(taken) // already peeked
		if depth == 0 {
			found.text = o.object
			return found, nil
		}
	}
}

func (o *objects) pass(c byte) { o.line, o.column = after(o.line, o.column, []byte{c}) }

// after is the position after text that begins at a line and column.
func after(line, column int, text []byte) (int, int) {
	if breaks := bytes.Count(text, []byte("\n")); breaks > 0 {
		return line + breaks, len(text) - bytes.LastIndexByte(text, '\n')
	}
	return line, column + len(text)
}

func (o *objects) fail(format string, args ...any) error {
	return &SyntaxError{o.name, o.line, o.column, fmt.Sprintf(format, args...)}
}

// failIn returns an error at a byte, from 1, of an object.
func (o *objects) failIn(in object, offset int, format string, args ...any) error {
	line, column := after(in.line, in.column, in.text[:min(max(offset-1, 0), len(in.text))])
	return &SyntaxError{o.name, line, column, fmt.Sprintf(format, args...)}
}
