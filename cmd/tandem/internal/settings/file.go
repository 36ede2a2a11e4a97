package settings

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
	"github.com/tandem-serving/tandem/pkg/spelling"
)

// maxFileBytes bounds a configuration file: one larger is a mistake.
const maxFileBytes = 1 << 20

// entry is one key of a file with its value: a scalar has one, a list any number.
type entry struct {
	file, key string
	line      int
	values    []string
	list      bool
}

// Validate checks a configuration file against the flags of fs, values included.
// It sets flags of fs: pass a set of its own.
func Validate(fs *pflag.FlagSet, file string) error {
	entries, err := readFile(fs, file, false)
	if err != nil {
		return err
	}
	return apply(fs, entries, nil)
}

// Known is how many keys of a file are flags of fs. Its error is of a file that is no
// configuration of anything.
func Known(fs *pflag.FlagSet, file string) (int, error) {
	entries, err := readFile(fs, file, true)
	return len(entries), err
}

// readFile reads a YAML file into entries by flag name; lenient: it passes over keys that are no flags.
func readFile(fs *pflag.FlagSet, file string, lenient bool) (map[string]entry, error) {
	text, err := readText(file)
	if err != nil {
		return nil, err
	}
	p := newParser(fs, file)
	p.lenient = lenient
	return p.entries, p.parse(text)
}

func readText(file string) ([]byte, error) {
	text, err := boundedfile.Read(file, maxFileBytes)
	if _, long := errors.AsType[*boundedfile.TooLongError](err); long {
		return nil, fmt.Errorf("configuration file %s is %w: is it the right file?", file, errors.Unwrap(err))
	}
	if path, is := errors.AsType[*os.PathError](err); is {
		return nil, fmt.Errorf("read configuration file %s: %w: name a file that exists", file, path.Err)
	}
	return text, err
}

// parser turns a document into entries; its tables are by name.
type parser struct {
	file string
	// flags are the names of flags by their joined form.
	flags   map[string]string
	entries map[string]entry
	lenient bool // keys that are no flags are passed over
}

func newParser(fs *pflag.FlagSet, file string) *parser {
	p := &parser{file: file, flags: map[string]string{}, entries: map[string]entry{}}
	fs.VisitAll(func(f *pflag.Flag) {
		if !commandLineOnly(f) {
			p.flags[joined(f.Name)] = f.Name
		}
	})
	return p
}

func (p *parser) parse(text []byte) error {
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil && slices.ContainsFunc(strings.Split(string(text), "\n"), beginsWithTab):
		return fmt.Errorf("%s: not YAML: %s: a line begins with a tab: indent with spaces", p.file, yamlProblem(err))
	case err != nil:
		return fmt.Errorf("%s: not YAML: %s", p.file, yamlProblem(err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one document: keep one, without a second ---", p.file)
	}
	if len(document.Content) == 0 {
		return nil
	}
	top := document.Content[0]
	if top.Kind == yaml.ScalarNode && top.Tag == "!!null" {
		return nil
	}
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d: want keys and values, such as \"listen: 127.0.0.1:7070\"", p.file, top.Line)
	}
	return p.mapping(top, "")
}

func beginsWithTab(line string) bool {
	return strings.HasPrefix(strings.TrimLeft(line, " "), "\t")
}

// yamlProblem is what a YAML decoder says, in one line.
func yamlProblem(err error) string {
	return strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", " "), "yaml: ")
}

// joined is the form in which keys and flags are compared.
func joined(name string) string { return strings.ReplaceAll(name, ".", "-") }

func (p *parser) mapping(node *yaml.Node, prefix string) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			return fmt.Errorf("%s:%d: a key must be a plain name", p.file, key.Line)
		}
		path := key.Value
		if prefix != "" {
			path = prefix + "." + path
		}
		var err error
		if value.Kind == yaml.MappingNode && p.flags[joined(path)] == "" {
			err = p.mapping(value, path)
		} else {
			err = p.leaf(path, key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) leaf(path string, key, value *yaml.Node) error {
	flag, ok := p.flags[joined(path)]
	if !ok && p.lenient {
		return nil
	}
	if !ok {
		return p.unknown(path, key.Line)
	}
	if first, ok := p.entries[flag]; ok {
		return fmt.Errorf("%s:%d: %q is set a second time, line %d sets it already: keep one", p.file, key.Line, path, first.line)
	}
	e := entry{file: p.file, key: path, line: key.Line}
	switch value.Kind {
	case yaml.ScalarNode:
		if value.Tag == "!!null" {
			return fmt.Errorf("%s:%d: %q has no value: give it one or take the line out", p.file, key.Line, path)
		}
		e.values = []string{value.Value}
	case yaml.SequenceNode:
		e.list = true
		for _, item := range value.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return fmt.Errorf("%s:%d: %q: an item of a list must be a plain value", p.file, item.Line, path)
			}
			e.values = append(e.values, item.Value)
		}
	case yaml.AliasNode:
		return fmt.Errorf("%s:%d: %q refers to another value: write it out", p.file, key.Line, path)
	default:
		return fmt.Errorf("%s:%d: %q takes a value, not keys of its own", p.file, key.Line, path)
	}
	p.entries[flag] = e
	return nil
}

func (p *parser) unknown(path string, line int) error {
	form, near := spelling.Nearest(joined(path), maps.Keys(p.flags))
	nearest := p.flags[form]
	if !near {
		return &UnknownKey{File: p.file, Line: line, Key: path}
	}
	// In the form that the user writes: budget.queue beside budget.bogus.
	if dot := strings.LastIndexByte(path, '.'); dot >= 0 && strings.HasPrefix(joined(nearest), joined(path[:dot+1])) {
		nearest = path[:dot+1] + nearest[dot+1:]
	}
	return &UnknownKey{File: p.file, Line: line, Key: path, Nearest: nearest}
}

func (e entry) set(fs *pflag.FlagSet, f *pflag.Flag) error {
	wrong := func(err error) error {
		return fmt.Errorf("%s:%d: %s: %s", e.file, e.line, e.key, Problem(f, strings.Join(e.values, ","), err))
	}
	if !e.list {
		if err := fs.Set(f.Name, e.values[0]); err != nil {
			return wrong(err)
		}
		return nil
	}
	list, ok := f.Value.(pflag.SliceValue)
	if !ok {
		return fmt.Errorf("%s:%d: %s: takes one value, not a list", e.file, e.line, e.key)
	}
	if err := list.Replace(e.values); err != nil {
		return wrong(err)
	}
	f.Changed = true
	return nil
}
