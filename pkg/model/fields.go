package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// fields reads a JSON object key by key. encoding/json would match struct fields
// whatever their case, and its errors would not name the file. It keeps the first
// error; what is read after it is a default, or the lowest that is allowed.
type fields struct {
	file string
	// prefix names the object that the keys are in, with a dot; empty: the file's.
	prefix string
	values map[string]json.RawMessage
	err    *error // shared by the file and the objects in it
}

func parseFields(file string, data []byte) (fields, error) {
	if bytes.HasPrefix(data, []byte(lfsPointer)) {
		return fields{}, &Error{File: file, Problem: problemLFS, Remedy: remedyLFS}
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(data, &values); err != nil {
		var syntax *json.SyntaxError
		problem := "not a JSON object"
		if errors.As(err, &syntax) {
			problem = fmt.Sprintf("not valid JSON at byte %d", syntax.Offset)
		}
		return fields{}, &Error{File: file, Problem: problem, Err: err, Remedy: remedyDownload}
	}
	if values == nil {
		return fields{}, &Error{File: file, Problem: "null, not a JSON object", Remedy: remedyDownload}
	}
	return fields{file: file, values: values, err: new(error)}, nil
}

// object reads an object in the file; empty if it is none.
func (f fields) object(key string) fields {
	group, err := parseFields(f.file, f.values[key])
	if err != nil {
		f.bad(key, f.shown(key)+" is not an object", "correct it")
	}
	return fields{file: f.file, prefix: key + ".", values: group.values, err: f.err}
}

// has tells whether a key is there and not null.
func (f fields) has(key string) bool {
	value, ok := f.values[key]
	return ok && string(value) != "null"
}

func (f fields) bad(key, problem, remedy string) { f.fail(f.prefix+key, problem, remedy) }

func (f fields) fail(field, problem, remedy string) {
	if *f.err == nil {
		*f.err = &Error{File: f.file, Field: field, Problem: problem, Remedy: remedy}
	}
}

func (f fields) missing(key string) {
	f.bad(key, "is missing", "take config.json from the same checkpoint as the weights")
}

// shown is a value for a message, in one line.
func (f fields) shown(key string) string {
	var compact bytes.Buffer
	_ = json.Compact(&compact, f.values[key]) // of what was parsed, or nothing
	value := compact.String()
	if len(value) > 80 {
		value = strings.ToValidUTF8(value[:80], "") + "..."
	}
	return value
}

// integer reads a number between lowest and highest; absent or null is missing.
func (f fields) integer(key string, lowest, highest int) int {
	if !f.has(key) {
		f.missing(key)
		return lowest
	}
	n, err := strconv.ParseInt(string(f.values[key]), 10, 64)
	switch {
	case err != nil:
		f.bad(key, f.shown(key)+" is not an integer", "correct it")
	case n < int64(lowest) || n > int64(highest):
		f.bad(key, fmt.Sprintf("%d is not between %d and %d", n, lowest, highest),
			"correct it, or use a model of a size that is supported")
	default:
		return int(n)
	}
	return lowest
}

// integerOr is integer with a default for absent or null.
func (f fields) integerOr(key string, otherwise, lowest, highest int) int {
	if !f.has(key) {
		return otherwise
	}
	return f.integer(key, lowest, highest)
}

// floatOr reads a finite number.
func (f fields) floatOr(key string, otherwise float64) float64 {
	if !f.has(key) {
		return otherwise
	}
	var x float64
	if err := json.Unmarshal(f.values[key], &x); err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
		f.bad(key, f.shown(key)+" is not a finite number", "correct it")
		return otherwise
	}
	return x
}

func (f fields) boolOr(key string, otherwise bool) bool {
	if !f.has(key) {
		return otherwise
	}
	var b bool
	if err := json.Unmarshal(f.values[key], &b); err != nil {
		f.bad(key, f.shown(key)+" is neither true nor false", "correct it")
	}
	return b
}

func (f fields) textOr(key, otherwise string) string {
	if !f.has(key) {
		return otherwise
	}
	var s string
	if err := json.Unmarshal(f.values[key], &s); err != nil {
		f.bad(key, f.shown(key)+" is not a string", "correct it")
	}
	return s
}

// tokens reads a token id, a list of them, or null, which is none.
func (f fields) tokens(key string, vocabulary int) []int32 {
	if !f.has(key) {
		return nil
	}
	raw := f.values[key]
	var list []json.RawMessage
	if raw[0] == '[' {
		if err := json.Unmarshal(raw, &list); err != nil {
			f.bad(key, f.shown(key)+" is not a list of token ids", "correct it")
		}
	} else {
		list = []json.RawMessage{raw}
	}
	const most = 1024
	if len(list) > most {
		f.bad(key, fmt.Sprintf("%d token ids, more than %d", len(list), most), "shorten it")
	}
	ids := make([]int32, 0, len(list))
	for _, item := range list {
		id, err := strconv.ParseInt(string(item), 10, 64)
		if err != nil {
			f.bad(key, f.shown(key)+" is neither a token id nor a list of them", "correct it")
		}
		if id < 0 || id >= int64(vocabulary) {
			f.bad(key, fmt.Sprintf("token id %d is not below vocab_size %d", id, vocabulary),
				"take all files from the same checkpoint")
		}
		ids = append(ids, int32(id))
	}
	return ids
}

// quote is strconv.Quote, in ASCII: names come out of files.
func quote(s string) string { return strconv.QuoteToASCII(s) }
