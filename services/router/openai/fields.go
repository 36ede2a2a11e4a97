package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math"
	"strconv"
	"unicode/utf8"
)

// Bounds of a request's JSON, which its length alone does not give.
const (
	maxDepth    = 64      // arrays and objects in one another
	maxMembers  = 1 << 17 // of all objects together
	maxNests    = 1 << 17 // arrays and objects
	maxElements = 1 << 16 // of an array, but for token ids
	maxValues   = 1 << 14 // in what goes to a template as it is
)

// fields reads the members of one JSON object. Its methods return the value of a
// member, or the zero value where it is absent or null; the first that is of
// another type is kept in bad, and nothing of the request is read any more.
type fields struct {
	*reading
	at      string          // where the object stands, such as "messages[1]."; "" at the top
	source  json.RawMessage // as it was written; nil at the top
	members map[string]json.RawMessage
	// read collects the names that are looked for; nil: nobody wants to know.
	read map[string]bool
}

// reading is what all objects of a request have in common.
type reading struct {
	bad      error // the first problem
	verbatim int   // values that go to a template as they are
	ignored  ignored
}

// parse reads the body of a request.
func parse(body []byte) (*fields, error) {
	switch {
	case len(bytes.TrimSpace(body)) == 0:
		return nil, malformed("the body is empty: it has to be a JSON object")
	case !utf8.Valid(body):
		return nil, malformed("the body is not valid UTF-8")
	}
	if m := measure(body); m.what != "" {
		return nil, malformed(fmt.Sprintf("the body has more than %s, at %s", m.what, position(body, int64(m.at))))
	}
	f := &fields{reading: new(reading)}
	err := json.Unmarshal(body, &f.members)
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input":
		return nil, malformed("the body ends in the middle of its JSON")
	case errors.As(err, &syntax):
		return nil, malformed(fmt.Sprintf("the body is not valid JSON: %s at %s", syntax, position(body, syntax.Offset-1)))
	case err != nil || f.members == nil:
		return nil, malformed("the body is not a JSON object")
	}
	return f, nil
}

// position is a place in a body as editors say it.
func position(body []byte, offset int64) string {
	before := body[:min(max(offset, 0), int64(len(body)))]
	line := bytes.Count(before, []byte{'\n'}) + 1
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:]) + 1
	return fmt.Sprintf("line %d, column %d", line, column)
}

// has reports whether a member is there and not null.
func (f *fields) has(name string) bool {
	if f.read != nil {
		f.read[name] = true
	}
	raw, ok := f.members[name]
	return ok && string(raw) != "null"
}

// wrong keeps the first problem.
func (r *reading) wrong(err error) {
	if r.bad == nil {
		r.bad = err
	}
}

// raw is a member, if it is there, not null, and nothing went wrong before.
func (f *fields) raw(name string) (json.RawMessage, bool) {
	if !f.has(name) || f.bad != nil {
		return nil, false
	}
	return f.members[name], true
}

// decode reads a member into out and reports whether it did.
func (f *fields) decode(name string, out any, want string) bool {
	raw, ok := f.raw(name)
	if !ok {
		return false
	}
	if err := json.Unmarshal(raw, out); err != nil {
		f.wrong(wrongType(f.at+name, want))
		return false
	}
	return true
}

func (f *fields) text(name string) (out string) {
	f.decode(name, &out, "a string")
	return out
}

func (f *fields) boolean(name string) (out, given bool) {
	given = f.decode(name, &out, "true or false")
	return out, given
}

// number is a number that a float32 can hold; nil if it is not given.
func (f *fields) number(name string) *float32 {
	var out float64
	if !f.decode(name, &out, "a number") {
		return nil
	}
	if math.Abs(out) > math.MaxFloat32 {
		f.wrong(invalid(f.at+name, "is too large"))
		return nil
	}
	return new(float32(out))
}

// integer is a whole number of 64 bits, however it is written; nil if it is not
// given.
func (f *fields) integer(name string) *int64 {
	var out json.Number
	raw, ok := f.raw(name)
	if !ok {
		return nil
	}
	if raw[0] == '"' || json.Unmarshal(raw, &out) != nil {
		f.wrong(wrongType(f.at+name, "a whole number"))
		return nil
	}
	n, ok := whole(out.String())
	if !ok {
		f.wrong(wrongType(f.at+name, "a whole number of 64 bits"))
		return nil
	}
	return &n
}

// seed is any whole number of 64 bits: a negative one is the unsigned one of the
// same bits, and what answers report is unsigned. But -1 is none, as in vLLM.
func (f *fields) seed(name string) *uint64 {
	if raw, ok := f.raw(name); ok {
		if n, err := strconv.ParseUint(string(raw), 10, 64); err == nil {
			return &n
		}
	}
	n := f.integer(name)
	if n == nil || *n == -1 {
		return nil
	}
	return new(uint64(*n))
}

// integerIn is integer, within bounds.
func (f *fields) integerIn(name string, low, high int64) *int64 {
	n := f.integer(name)
	if n != nil && (*n < low || *n > high) {
		f.wrong(invalid(f.at+name, fmt.Sprintf("%d is outside %d to %d", *n, low, high)))
		return nil
	}
	return n
}

// whole reads a whole number, also one written like 10.0 or 1e3.
func whole(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	x, err := strconv.ParseFloat(text, 64)
	// Above 2^53 such a number may not be the one that was meant.
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
		return 0, false
	}
	return int64(x), true
}

// list is the elements of an array.
func (f *fields) list(name string) []json.RawMessage {
	raw, ok := f.raw(name)
	if !ok {
		return nil
	}
	if !f.within(name, raw, maxElements) {
		return nil
	}
	var out []json.RawMessage
	f.decode(name, &out, "an array")
	return out
}

// within reports whether the array called name has at most so many elements.
func (f *fields) within(name string, array json.RawMessage, most int) bool {
	n, _ := elements(array)
	if n > most && array[0] == '[' {
		f.wrong(invalid(f.at+name, fmt.Sprintf("has %d elements, more than %d", n, most)))
		return false
	}
	return true
}

// object is a member that is an object; nil if it is not given.
func (f *fields) object(name string) *fields {
	raw, ok := f.raw(name)
	if !ok {
		return nil
	}
	return f.element(raw, name)
}

// objects are the elements of an array of objects, with their indexes, up to the first problem.
func (f *fields) objects(name string) iter.Seq2[int, *fields] {
	return func(yield func(int, *fields) bool) {
		for i, raw := range f.list(name) {
			if o := f.element(raw, fmt.Sprintf("%s[%d]", name, i)); f.bad != nil || !yield(i, o) {
				return
			}
		}
	}
}

// element is a value inside the member called name as an object; one without members if it is
// none, which is then kept.
func (f *fields) element(raw json.RawMessage, name string) *fields {
	out := &fields{reading: f.reading, at: f.at + name + ".", source: raw, read: make(map[string]bool)}
	if err := json.Unmarshal(raw, &out.members); err != nil || out.members == nil {
		f.wrong(wrongType(f.at+name, "an object"))
	}
	return out
}
