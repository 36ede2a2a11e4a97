package chat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tandem-serving/tandem/pkg/chat/internal/jinja"
)

// Template makes prompts of conversations. It may be used by several at once.
type Template interface {
	// Render is the prompt. The template itself adds the start token if there is to
	// be one. An error of the template is an *Error.
	Render(ctx context.Context, c Conversation) (string, error)
}

// AnswerForm is what a Template may know of answers beside the prompt that it makes.
type AnswerForm interface {
	// EndToken is the text of the token that ends an answer, eos_token of the
	// tokenizer's configuration; empty: there is none. config.json may name another
	// one, which only ends a text.
	EndToken() string
	// ToolSource is the source of the template that conversations with tools are rendered by, in
	// which one can see how it writes calls.
	ToolSource() string
}

// Error is a template that cannot be used, or that refuses a conversation.
type Error struct {
	// File and Name say which template: Name is empty where the file holds one.
	File, Name string
	// Line of the template, from 1; 0 if it is not known.
	Line int
	// Message says what, and names the construct.
	Message string
	// Raised: the template itself refused the conversation.
	Raised bool
}

func (e *Error) Error() string {
	where := e.File
	if e.Name != "" {
		where += fmt.Sprintf(" (template %q)", e.Name)
	}
	if e.Line > 0 {
		where += fmt.Sprintf(" line %d", e.Line)
	}
	return fmt.Sprintf("chat template %s: %s", where, e.Message)
}

// Parse reads a template; tokens are the special tokens that it may name, such as
// bos_token. file is what errors call it.
func Parse(file, source string, tokens map[string]string) (Template, error) {
	s := &set{file: file, tokens: jinja.NewDict()}
	for _, key := range sortedKeys(tokens) {
		s.tokens.Set(key, tokens[key])
	}
	err := s.add("", source)
	return s, err
}

// set is the templates of a model: one, or one for tools beside it.
type set struct {
	file           string
	tokens         *jinja.Dict
	options        jinja.Options // of renderings; zero but in tests
	usual, forTool *named
}

// EndToken implements AnswerForm.
func (s *set) EndToken() string {
	token, _ := s.tokens.Get("eos_token")
	text, _ := token.(string)
	return text
}

// ToolSource implements AnswerForm.
func (s *set) ToolSource() string { return cmp.Or(s.forTool, s.usual).source }

type named struct {
	name     string
	file     string
	source   string
	template *jinja.Template
}

// add parses a template. Those of other names than "default" and "tool_use" are
// for other purposes.
func (s *set) add(name, source string) error {
	return s.addFrom(s.file, name, source)
}

func (s *set) addFrom(file, name, source string) error {
	if name != "" && name != "default" && name != "tool_use" {
		return nil
	}
	t, err := jinja.Parse(source)
	n := &named{name, file, source, t}
	if err != nil {
		return n.failed(err)
	}
	if name == "tool_use" {
		s.forTool = n
	} else {
		s.usual = n
	}
	return nil
}

// failed is an error of the template with its name.
func (n *named) failed(err error) error {
	var problem *jinja.Error
	if !errors.As(err, &problem) {
		return err
	}
	return &Error{File: n.file, Name: n.name, Line: problem.Line, Message: problem.Message, Raised: problem.Raised}
}

// continueMark stands at the end of a message that is to be continued while the
// template renders. The space behind it shows whether the template trims.
const continueMark = "CONTINUE_FINAL_MESSAGE_TAG "

// Render implements Template.
func (s *set) Render(ctx context.Context, c Conversation) (string, error) {
	n := s.usual
	if len(c.Tools) > 0 && s.forTool != nil || n == nil {
		n = s.forTool
	}
	if len(c.Messages) == 0 {
		return "", errors.New("messages: give at least one")
	}
	variables, err := s.variables(n, c)
	if err != nil {
		return "", err
	}
	prompt, err := n.template.Render(ctx, variables, s.options)
	if err != nil {
		return "", n.failed(err)
	}
	if !c.ContinueLast {
		return prompt, nil
	}
	mark := strings.TrimSpace(continueMark)
	at := strings.LastIndex(prompt, mark)
	if at < 0 {
		return "", &Error{File: n.file, Name: n.name, Message: "the last message cannot be continued: the template does not print it unchanged"}
	}
	if strings.HasPrefix(prompt[at:], continueMark) {
		return prompt[:at], nil
	}
	return strings.TrimRight(prompt[:at], " \t\n\r\v\f"), nil
}

// variables are what a template sees. One that knows of no calls would print no content as the word
// None, or fail: it gets an empty text.
func (s *set) variables(n *named, c Conversation) (*jinja.Dict, error) {
	knowsCalls := strings.Contains(n.source, "tool_calls")
	out := jinja.NewDict()
	for _, key := range s.tokens.Keys() {
		v, _ := s.tokens.Get(key)
		out.Set(key, v)
	}
	out.Set("documents", nil)
	for _, key := range orderedKeys(c.Arguments) {
		switch key {
		case "messages", "tools", "add_generation_prompt":
			return nil, fmt.Errorf("template_arguments.%s: use the request's own field for it", key)
		}
		v, err := valueOf(c.Arguments[key], 0)
		if err != nil {
			return nil, fmt.Errorf("template_arguments.%s: %w", key, err)
		}
		out.Set(key, v)
	}
	messages := make([]any, len(c.Messages))
	for i, m := range c.Messages {
		if c.ContinueLast && i == len(c.Messages)-1 {
			m.Content, m.NoContent = m.Content+continueMark, false
		}
		m.NoContent = m.NoContent && knowsCalls
		v, err := m.value()
		if err != nil {
			return nil, fmt.Errorf("messages[%d].%w", i, err)
		}
		messages[i] = v
	}
	out.Set("messages", &jinja.List{Items: messages})
	out.Set("tools", nil)
	if len(c.Tools) > 0 {
		tools, err := valueOf(c.Tools, 0)
		if err != nil {
			return nil, fmt.Errorf("tools: %w", err)
		}
		out.Set("tools", tools)
	}
	out.Set("add_generation_prompt", !c.ContinueLast)
	return out, nil
}
