package settings

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Problem is what is wrong with a value that a flag does not take, in words instead of
// Go's. err is of setting the flag to it.
func Problem(f *pflag.Flag, value string, err error) string {
	if invalid, is := errors.AsType[*pflag.InvalidValueError](err); is {
		err = invalid.Unwrap()
	}
	var problem string
	switch kind := f.Value.Type(); {
	case errors.Is(err, strconv.ErrRange):
		problem = "is too far from 0"
	case strings.HasPrefix(kind, "uint"):
		problem = "is not a whole number from 0"
	case strings.HasPrefix(kind, "int"):
		problem = "is not a whole number"
	case strings.HasPrefix(kind, "float"):
		problem = "is not a number"
	case strings.HasPrefix(kind, "duration"):
		problem = "is not a duration: write 500ms, 10s or 2m"
	case kind == "bool":
		problem = "is neither true nor false"
	default: // a type of ours, whose error says what it takes
		return err.Error()
	}
	return fmt.Sprintf("%q %s", value, problem)
}
