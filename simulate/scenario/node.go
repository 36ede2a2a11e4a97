package scenario

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/spelling"
)

// maxFileBytes bounds a scenario: a larger one is a mistake.
const maxFileBytes = 1 << 20

// document is a file that is read.
type document struct {
	file string
	// modelDir is the model's; empty: it has none.
	modelDir string
	// lines of flags that the file sets, by name.
	lines map[string]int
}

// errorf is an error at a line.
func (d *document) errorf(line int, format string, args ...any) error {
	return fmt.Errorf("%s:%d: %w", d.file, line, fmt.Errorf(format, args...))
}

// path is a file that the document names, from the document's own folder.
func (d *document) path(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(d.file), name)
}

func readText(file string) ([]byte, error) {
	text, err := boundedfile.Read(file, maxFileBytes)
	if _, long := errors.AsType[*boundedfile.TooLongError](err); long {
		return nil, fmt.Errorf("scenario %s is %w: is it the right file?", file, errors.Unwrap(err))
	}
	if path, is := errors.AsType[*os.PathError](err); is {
		return nil, fmt.Errorf("read scenario %s: %w: name a file that can be read", file, path.Err)
	}
	return text, err
}

// top is the mapping that the document consists of.
func (d *document) top(text []byte) (*section, error) {
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	var node yaml.Node
	if err := decoder.Decode(&node); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: not YAML: %s", d.file, strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: "))
	}
	if len(node.Content) == 0 || node.Content[0].Tag == "!!null" {
		return nil, d.errorf(1, "the scenario is empty: it needs model, pools and traffic")
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: more than one document: keep one, without a second ---", d.file)
	}
	return d.section(node.Content[0], "")
}

// section is a mapping. Its keys are taken one after the other; those that are left at its
// end are unknown.
type section struct {
	doc   *document
	name  string // with a dot after it; empty: the document
	line  int
	keys  map[string]*yaml.Node
	at    map[string]int // lines of the keys
	order []string
	asked []string // keys that may be there
}

func (d *document) section(node *yaml.Node, name string) (*section, error) {
	if node.Kind != yaml.MappingNode {
		return nil, d.errorf(node.Line, "%s must have keys and values, such as \"count: 8\"", cmp.Or(name, "a scenario"))
	}
	s := &section{doc: d, line: node.Line, keys: map[string]*yaml.Node{}, at: map[string]int{}}
	if name != "" {
		s.name = name + "."
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!null" || key.Tag == "!!merge" || key.Value == "":
			return nil, d.errorf(key.Line, "a key must be a plain name")
		case s.keys[key.Value] != nil:
			return nil, d.errorf(key.Line, "%q is set a second time, line %d sets it already: keep one", s.name+key.Value, s.at[key.Value])
		case value.Kind == yaml.AliasNode:
			return nil, d.errorf(key.Line, "%q refers to another value: write it out", s.name+key.Value)
		case value.Tag == "!!null":
			return nil, d.errorf(key.Line, "%q has no value: give it one or take the line out", s.name+key.Value)
		}
		s.keys[key.Value], s.at[key.Value] = value, key.Line
		s.order = append(s.order, key.Value)
	}
	return s, nil
}

// take is the value of a key, nil if it is not there. It is known from now on.
func (s *section) take(key string) *yaml.Node {
	s.asked = append(s.asked, key)
	node := s.keys[key]
	delete(s.keys, key)
	return node
}

// end refuses what was not taken.
func (s *section) end() error {
	for _, key := range s.order {
		if s.keys[key] != nil {
			return s.unknown(key, slices.Values(s.asked))
		}
	}
	return nil
}

// misspelt refuses a key that may stand for one that is missing.
func (s *section) misspelt(missing string) error {
	for _, key := range s.order {
		if _, near := spelling.Nearest(key, slices.Values([]string{missing})); near && s.keys[key] != nil {
			return s.unknown(key, slices.Values([]string{missing}))
		}
	}
	return nil
}

func (s *section) unknown(key string, known iter.Seq[string]) error {
	nearest, near := spelling.Nearest(key, known)
	if near {
		return s.doc.errorf(s.at[key], "unknown key %q: did you mean %q?", s.name+key, s.name+nearest)
	}
	return s.doc.errorf(s.at[key], "unknown key %q: the keys here are %s", s.name+key, strings.Join(slices.Sorted(known), ", "))
}

// sub is the mapping of a key, nil if it is not there.
func (s *section) sub(key string) (*section, error) {
	node := s.take(key)
	if node == nil {
		return nil, nil
	}
	return s.doc.section(node, s.name+key)
}

// errorf is an error at a key, or where the section begins if the key is not there.
func (s *section) errorf(key, format string, args ...any) error {
	return s.doc.errorf(cmp.Or(s.at[key], s.line), format, args...)
}

// text is a scalar; empty if the key is not there.
func (s *section) text(key string) (string, error) {
	node := s.take(key)
	if node == nil {
		return "", nil
	}
	return s.scalar(key, node)
}

func (s *section) scalar(key string, node *yaml.Node) (string, error) {
	if node.Kind != yaml.ScalarNode || node.Value == "" {
		return "", s.doc.errorf(node.Line, "%q takes one value", s.name+key)
	}
	return node.Value, nil
}

// texts is a scalar or a list of them.
func (s *section) texts(key string) ([]string, error) {
	node := s.take(key)
	if node == nil {
		return nil, nil
	}
	return s.list(key, node)
}

func (s *section) list(key string, node *yaml.Node) ([]string, error) {
	if node.Kind != yaml.SequenceNode {
		text, err := s.scalar(key, node)
		return []string{text}, err
	}
	if len(node.Content) == 0 {
		return nil, s.doc.errorf(node.Line, "%q is empty: name at least one", s.name+key)
	}
	var all []string
	for _, item := range node.Content {
		text, err := s.scalar(key, item)
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}

// number reads a number within bounds into a variable, which stays as it is if the key is not there;
// is says that it is.
func (s *section) number(key string, least, most float64, into *float64) (is bool, err error) {
	text, err := s.text(key)
	if err != nil || text == "" {
		return false, err
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value >= least && value <= most) {
		return false, s.errorf(key, "%q is %s: want a number from %v to %v", s.name+key, text, least, most)
	}
	*into = value
	return true, nil
}

// boolean is false if the key is not there.
func (s *section) boolean(key string) (value bool, err error) {
	text, err := s.text(key)
	if err != nil || text == "" {
		return false, err
	}
	if value, err = strconv.ParseBool(text); err != nil {
		return false, s.errorf(key, "%q is %s: want true or false", s.name+key, text)
	}
	return value, nil
}

// integer is number without a fraction.
func (s *section) integer(key string, least, most int, into *int) (is bool, err error) {
	text, err := s.text(key)
	if err != nil || text == "" {
		return false, err
	}
	value, err := strconv.Atoi(text)
	if err != nil || value < least || value > most {
		return false, s.errorf(key, "%q is %s: want a whole number from %d to %d", s.name+key, text, least, most)
	}
	*into = value
	return true, nil
}

// duration is number for a time.
func (s *section) duration(key string, least, most time.Duration, into *time.Duration) (is bool, err error) {
	text, err := s.text(key)
	if err != nil || text == "" {
		return false, err
	}
	value, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return false, s.errorf(key, "%w", notDuration(s.name+key, text))
	case value < least || value > most:
		return false, s.errorf(key, "%q is %s: want a time from %v to %v", s.name+key, text, least, most)
	}
	*into = value
	return true, nil
}

// digits are those of a number.
var digits = regexp.MustCompile(`[0-9]+`)

// notDuration says why a text is none.
func notDuration(key, text string) error {
	if _, err := time.ParseDuration(digits.ReplaceAllString(text, "1")); err == nil {
		return fmt.Errorf("%q is %s, which is too long: write a shorter time", key, text)
	}
	return fmt.Errorf("%q is %s: write a number and a unit, such as 30s, 1m30s or 50us", key, text)
}

// rate is a bandwidth; 0 if the key is not there.
func (s *section) rate(key string) (float64, error) {
	text, err := s.text(key)
	if err != nil || text == "" {
		return 0, err
	}
	value, err := bytesize.ParseRate(text)
	if err != nil {
		return 0, s.errorf(key, "%q: %w", s.name+key, err)
	}
	return value, nil
}

// repeated are flags that are set once for each item of a list. Lists of others are written
// with commas.
var repeated = []string{"class", "class-slo", "surge"}

// files are flags that name files.
var files = []string{"trace", "text-file"}

// flags sets the flags that the rest of the section names, but those that keep says.
func (s *section) flags(fs *pflag.FlagSet, keep func(name string) bool) error {
	for _, key := range s.order {
		node := s.keys[key]
		if node == nil {
			continue
		}
		flag := fs.Lookup(key)
		if flag == nil {
			known := map[string]bool{}
			fs.VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
			for _, asked := range s.asked {
				known[asked] = true
			}
			return s.unknown(key, maps.Keys(known))
		}
		values, err := s.list(key, node)
		if err != nil {
			return err
		}
		if keep != nil && keep(key) {
			continue
		}
		switch {
		case slices.Contains(files, key):
			values[0] = s.doc.path(values[0])
		case !slices.Contains(repeated, key):
			values = []string{strings.Join(values, ",")}
		}
		for _, value := range values {
			if err := fs.Set(key, value); err != nil {
				return s.doc.errorf(node.Line, "%w", wrong(s.name+key, value, flag, err))
			}
		}
		s.doc.lines[key] = node.Line
	}
	return nil
}

// wrong says why a value is none of a flag's.
func wrong(key, value string, flag *pflag.Flag, err error) error {
	switch flag.Value.Type() {
	case "duration":
		return notDuration(key, value)
	case "int", "int32", "uint64":
		return fmt.Errorf("%q is %s: want a whole number", key, value)
	case "float64", "float32":
		return fmt.Errorf("%q is %s: want a number", key, value)
	case "bool":
		return fmt.Errorf("%q is %s: want true or false", key, value)
	}
	// pflag begins with the flag's name.
	text := err.Error()
	if _, why, found := strings.Cut(text, "flag: "); found {
		text = why
	}
	return fmt.Errorf("%q: %s", key, text)
}

// place puts before an error where in the file the first flag stands that it speaks of, and
// otherwise the given line.
func (d *document) place(err error, line int) error {
	text, _, _ := strings.Cut(err.Error(), "\n") // one fault at a time
	first := len(text)
	for _, name := range slices.Sorted(maps.Keys(d.lines)) {
		for _, form := range []string{"--" + name, name + " is ", name + ":"} {
			at := strings.Index(text, form)
			if at < 0 || at > first || at > 0 && form[0] != '-' || form[0] == '-' && continues(text[at+len(form):]) {
				continue
			}
			if at < first {
				first, line = at, d.lines[name]
			}
		}
	}
	return d.errorf(line, "%s", text)
}

// continues reports whether text goes on with the name of a flag.
func continues(text string) bool {
	return text != "" && (text[0] == '-' || text[0] >= 'a' && text[0] <= 'z')
}
