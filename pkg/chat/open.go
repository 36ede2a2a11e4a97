package chat

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/pkg/boundedfile"
	"github.com/tandem-serving/tandem/pkg/chat/internal/jinja"
)

// ErrNone says that a model came without a chat template.
var ErrNone = errors.New("the model has no chat template: pass one with --chat-template FILE")

// maxConfigBytes bounds the files around a template.
const maxConfigBytes = 64 << 20

// Open finds the chat template of the model in dir, in the places that transformers
// looks in: chat_template.jinja, with additional_chat_templates beside it, then
// chat_template.json, then chat_template of tokenizer_config.json. A template in file,
// unless that is empty, comes before all of them. The error is ErrNone, an *Error, or of
// a file that cannot be read.
func Open(dir, file string) (Template, error) {
	s := &set{tokens: jinja.NewDict()}
	config, err := readConfig(filepath.Join(dir, "tokenizer_config.json"))
	if err != nil {
		return nil, err
	}
	if err := s.specialTokens(dir, config); err != nil {
		return nil, err
	}
	if file != "" {
		return s.given(file)
	}
	found, err := s.jinjaFiles(dir)
	if err != nil || found {
		return s, err
	}
	s.file = filepath.Join(dir, "chat_template.json")
	legacy, err := readConfig(s.file)
	if err != nil {
		return nil, err
	}
	if len(legacy["chat_template"]) > 0 {
		return s.ready(s.addJSON(legacy["chat_template"]))
	}
	s.file = filepath.Join(dir, "tokenizer_config.json")
	return s.ready(s.addJSON(config["chat_template"]))
}

// ready is the set, if it has a template.
func (s *set) ready(err error) (Template, error) {
	switch {
	case err != nil:
		return nil, err
	case s.usual == nil && s.forTool == nil:
		return nil, ErrNone
	}
	return s, nil
}

// given is a file that was asked for: a template, or JSON that holds one.
func (s *set) given(file string) (Template, error) {
	s.file = file
	if strings.EqualFold(filepath.Ext(file), ".json") {
		config, err := readConfig(file)
		if err != nil {
			return nil, err
		}
		if len(config["chat_template"]) == 0 {
			return nil, fmt.Errorf("%s: no chat_template in it", file)
		}
		return s.ready(s.addJSON(config["chat_template"]))
	}
	source, err := readFile(file, jinja.MaxSourceBytes)
	if err != nil {
		return nil, err
	}
	return s.ready(s.add("", string(source)))
}

func (s *set) jinjaFiles(dir string) (bool, error) {
	s.file = filepath.Join(dir, "chat_template.jinja")
	source, err := readFile(s.file, jinja.MaxSourceBytes)
	switch {
	case boundedfile.Absent(s.file):
		return false, nil
	case err != nil:
		return false, err
	}
	if err := s.add("", string(source)); err != nil {
		return false, err
	}
	folder := filepath.Join(dir, "additional_chat_templates")
	file := filepath.Join(folder, "tool_use.jinja")
	source, err = readFile(file, jinja.MaxSourceBytes)
	_, folderErr := os.Stat(folder)
	switch {
	case boundedfile.Absent(folder), folderErr == nil && boundedfile.Absent(file):
		return true, nil
	case err != nil:
		return false, err
	}
	return true, s.addFrom(file, "tool_use", string(source))
}

// addJSON takes a template as JSON holds it: text, or a list of named ones.
func (s *set) addJSON(raw json.RawMessage) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	var source string
	if json.Unmarshal(raw, &source) == nil {
		return s.add("", source)
	}
	var list []struct{ Name, Template string }
	if err := json.Unmarshal(raw, &list); err != nil {
		return &Error{File: s.file, Message: "chat_template is neither text nor a list of {name, template}"}
	}
	for _, t := range list {
		if err := s.add(t.Name, t.Template); err != nil {
			return err
		}
	}
	return nil
}

// specialTokens takes bos_token and its like: text, or an object with its content.
func (s *set) specialTokens(dir string, config map[string]json.RawMessage) error {
	others, err := readConfig(filepath.Join(dir, "special_tokens_map.json"))
	if err != nil {
		return err
	}
	for _, from := range []map[string]json.RawMessage{others, config} {
		for _, key := range sortedKeys(from) {
			if !strings.HasSuffix(key, "_token") {
				continue
			}
			if text, ok := tokenText(from[key]); ok {
				s.tokens.Set(key, text)
			}
		}
		var extra []json.RawMessage
		if json.Unmarshal(from["additional_special_tokens"], &extra) == nil && len(extra) > 0 {
			list := &jinja.List{}
			for _, raw := range extra {
				if text, ok := tokenText(raw); ok {
					list.Items = append(list.Items, text)
				}
			}
			s.tokens.Set("additional_special_tokens", list)
		}
	}
	return nil
}

func tokenText(raw json.RawMessage) (string, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		return text, true
	}
	var object struct{ Content *string }
	if json.Unmarshal(raw, &object) == nil && object.Content != nil {
		return *object.Content, true
	}
	return "", false
}

// readConfig reads a JSON object. A file that is not there is an empty one.
func readConfig(file string) (map[string]json.RawMessage, error) {
	data, err := readFile(file, maxConfigBytes)
	if boundedfile.Absent(file) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out map[string]json.RawMessage
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("%s is not the JSON that it should be (%w): fetch it again", file, err)
	}
	return out, nil
}

func readFile(file string, limit int64) ([]byte, error) {
	data, err := boundedfile.Read(file, limit)
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	return data, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
