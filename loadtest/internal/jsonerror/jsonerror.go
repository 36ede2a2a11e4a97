// Package jsonerror locates and explains JSON errors in terms of JSON rather than Go.
// Only loadtest imports it. It starts no goroutines.
package jsonerror

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"
)

// Explain returns the position of an encoding/json error, in bytes from 1, and what is
// wrong there; 0 if unknown.
func Explain(err error) (offset int64, problem string) {
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return syntax.Offset, syntax.Error()
	}
	mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return 0, err.Error()
	}
	problem = fmt.Sprintf("expected %s, not %s", expected(mismatch.Type), mismatch.Value)
	// The path includes names of embedded structs, which are not JSON keys.
	keys := slices.DeleteFunc(strings.Split(mismatch.Field, "."), func(key string) bool { return key == "" || unicode.IsUpper(rune(key[0])) })
	if len(keys) > 0 {
		problem = strings.Join(keys, ".") + ": " + problem
	}
	return mismatch.Offset, problem
}

func expected(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	}
	return "another type"
}
