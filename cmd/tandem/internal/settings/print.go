package settings

import (
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// Value is one setting in force.
type Value struct {
	Name string `json:"name"`
	// Value is a bool, an int64, a uint64, a float64, a string or a []string.
	Value any `json:"value"`
	// Source is where it came from, as of Source.
	Source string `json:"source"`
}

// Values are the settings of fs that a file may set, by name.
func Values(fs *pflag.FlagSet) []Value {
	var values []Value
	fs.VisitAll(func(f *pflag.Flag) {
		if !commandLineOnly(f) && !f.Hidden {
			values = append(values, Value{Name: f.Name, Value: typed(f), Source: Source(f)})
		}
	})
	return values
}

// Print writes the settings of fs as a file that sets them to the same values,
// with where each came from as a comment, and what 0 means where it is no number.
func Print(w io.Writer, fs *pflag.FlagSet) error {
	for _, v := range Values(fs) {
		node := new(yaml.Node)
		if err := node.Encode(v.Value); err != nil {
			return fmt.Errorf("print %s: %w", v.Name, err)
		}
		node.Style |= yaml.FlowStyle
		text, err := yaml.Marshal(node)
		if err != nil {
			return fmt.Errorf("print %s: %w", v.Name, err)
		}
		if _, err := fmt.Fprintf(w, "%s: %s  # %s%s\n", v.Name, strings.TrimSpace(string(text)), v.Source, ofZero(fs.Lookup(v.Name))); err != nil {
			return fmt.Errorf("print %s: %w", v.Name, err)
		}
	}
	return nil
}

// zeroMeans finds what a flag's usage says of 0, or of a default that is not shown.
var zeroMeans = regexp.MustCompile(`(?:; 0: |\(default: )([^;()]+)`)

// ofZero is what 0 means to a flag that has this value, if its usage says so.
func ofZero(f *pflag.Flag) string {
	if value := f.Value.String(); value != "0" && value != "0s" {
		return ""
	}
	if means := zeroMeans.FindStringSubmatch(f.Usage); means != nil {
		return "; 0: " + strings.TrimSpace(means[1])
	}
	return ""
}

// typed is a flag's value as YAML and JSON know it; a duration is a string.
func typed(f *pflag.Flag) any {
	if list, ok := f.Value.(pflag.SliceValue); ok {
		return append([]string{}, list.GetSlice()...)
	}
	text := f.Value.String()
	switch kind := f.Value.Type(); {
	case kind == "bool":
		if b, err := strconv.ParseBool(text); err == nil {
			return b
		}
	case strings.HasPrefix(kind, "int"):
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return i
		}
	case strings.HasPrefix(kind, "uint"):
		if u, err := strconv.ParseUint(text, 10, 64); err == nil {
			return u
		}
	case strings.HasPrefix(kind, "float"):
		if x, err := strconv.ParseFloat(text, 64); err == nil {
			return x
		}
	}
	return text
}
