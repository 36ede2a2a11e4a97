package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/tandem-serving/tandem/services/router/clienterr"
)

// generic is a member that is an object and goes to the template as it is; nil if it
// is not given. Its numbers are those of structpb.Struct, which are float64: a whole
// number that is none is refused rather than changed.
func (f *fields) generic(name string) *structpb.Struct {
	raw, given := f.raw(name)
	if !given || !f.count(name, raw) {
		return nil
	}
	var members map[string]any
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	if decoder.Decode(&members) != nil || members == nil {
		f.wrong(wrongType(f.at+name, "an object"))
		return nil
	}
	if number := unfit(members); number != "" {
		f.wrong(invalid(f.at+name, fmt.Sprintf("%s is beyond what a number can hold exactly, 2^53: pass it as a string", clienterr.Shorten(number))))
		return nil
	}
	out, err := structpb.NewStruct(members)
	if err != nil {
		f.wrong(invalid(f.at+name, err.Error()))
		return nil
	}
	return out
}

// count reports whether JSON that goes to the template is within the bounds, together
// with what the request has of it elsewhere.
func (f *fields) count(name string, text []byte) bool {
	m := measure(text)
	if m.what != "" {
		f.wrong(invalid(f.at+name, "has more than "+m.what))
		return false
	}
	if f.verbatim += m.values; f.verbatim > maxValues {
		f.wrong(invalid(f.at+name, fmt.Sprintf("makes more than %d values for the chat template in one request", maxValues)))
		return false
	}
	return true
}

// unfit is a number in a value that float64 does not hold, if there is one.
func unfit(value any) string {
	switch v := value.(type) {
	case json.Number:
		if !fits(v.String()) {
			return v.String()
		}
	case []any:
		for _, e := range v {
			if number := unfit(e); number != "" {
				return number
			}
		}
	case map[string]any:
		for _, e := range v {
			if number := unfit(e); number != "" {
				return number
			}
		}
	}
	return ""
}

// fits reports whether float64 holds a number: one that is written as a whole one
// exactly, others about.
func fits(number string) bool {
	if !strings.ContainsAny(number, ".eE") {
		n, err := strconv.ParseInt(number, 10, 64)
		return err == nil && -1<<53 <= n && n <= 1<<53
	}
	_, err := strconv.ParseFloat(number, 64)
	return err == nil
}

// arguments reads the arguments of a call, as a text or as an object, and returns them as a text.
// pkg/chat makes an object of it for the template, with its numbers as they are written. A text that
// is none, of a call that was cut, stays text.
func (f *fields) arguments() string {
	raw, given := f.raw("arguments")
	if !given {
		return "{}"
	}
	text := string(raw)
	switch raw[0] {
	case '"':
		if text = f.text("arguments"); text == "" {
			return "{}"
		}
	case '{':
	default:
		f.wrong(wrongType(f.at+"arguments", "a string or an object"))
		return ""
	}
	if !f.count("arguments", []byte(text)) {
		return ""
	}
	return text
}
