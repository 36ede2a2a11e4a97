package grammar

import (
	"context"
	"errors"
	"fmt"
	"regexp/syntax"
	"sync"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Bounds of a grammar's source.
const (
	// MaxSourceBytes bounds the text of a schema or a grammar.
	MaxSourceBytes = 256 << 10
	// MaxChoices is how many texts a choice has, and maxChoiceBytes how long they are together.
	MaxChoices     = 1024
	maxChoiceBytes = 64 << 10
)

// Error is what is wrong with the source of a grammar.
type Error struct {
	// Field is that of StructuredOutput.
	Field string
	// Problem says what is wrong, and where in the field.
	Problem string
}

// Error names the field and the problem.
func (e *Error) Error() string { return e.Field + ": " + e.Problem }

// Grammar is a form that outputs are held to.
type Grammar struct {
	mu    sync.Mutex
	masks masks
	size  int64 // bytes, about, after the last use
	// resized is told when size changes, under mu; nil: nobody is.
	resized func(bytes int64)

	ignored []string
}

// Ignored is the keywords of lenient schemas that outputs are not held to, sorted, and formats as
// format=NAME; of more than 32, some. Nobody changes it.
func (g *Grammar) Ignored() []string { return g.ignored }

// Compile makes a grammar. Without a vocabulary it can be checked, but no tokens masked by it.
// Its errors are *Error, or that of ctx if it ended before.
func Compile(ctx context.Context, source *inferencev1.StructuredOutput, v *Vocabulary) (*Grammar, error) {
	p := newProgram()
	p.ended = ctx.Err
	field, err := p.source(source)
	if err == nil {
		err = p.finish()
	}
	p.ended = nil
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, &Error{Field: field, Problem: err.Error()}
	}
	special, err := p.specialTokens(v)
	if err != nil {
		return nil, &Error{Field: "structural_tags.special_tokens", Problem: err.Error()}
	}
	m := newMachine(p)
	if m.first == nil {
		return nil, &Error{Field: field, Problem: fmt.Sprintf("an output can begin in more than %d ways: have fewer alternatives that begin alike", maxThreads)}
	}
	g := &Grammar{masks: masks{follower: follower{machine: m, vocabulary: v, known: make(map[follow]*followed)}, special: special}, ignored: p.ignored}
	g.size = g.masks.size()
	return g, nil
}

// specialTokens are the texts of the special tokens that a program has, by their ids.
func (p *program) specialTokens(v *Vocabulary) (map[int32][]byte, error) {
	if len(p.special) == 0 || v == nil {
		return nil, nil
	}
	out := make(map[int32][]byte, len(p.special))
	for _, name := range p.special {
		id, is := v.special[name]
		if !is {
			return nil, fmt.Errorf("the model has no special token %q", name)
		}
		out[id] = specialText(name)
	}
	return out, nil
}

// source makes a program of a source, whose field it says.
func (p *program) source(source *inferencev1.StructuredOutput) (field string, err error) {
	if tags := source.GetStructuralTags(); tags != nil {
		p.start, field, err = p.tags(tags)
		return "structural_tags." + field, err
	}
	p.start, field, err = p.form(source)
	return field, err
}

// form is what a source describes, but structural tags.
func (p *program) form(source *inferencev1.StructuredOutput) (start int32, field string, err error) {
	switch form := source.GetForm().(type) {
	case *inferencev1.StructuredOutput_JsonObject:
		if !form.JsonObject {
			return 0, "json_object", errors.New("is false: leave it out")
		}
		return p.call(p.anyJSON().object, end), "json_object", nil
	case *inferencev1.StructuredOutput_JsonSchema:
		start, err = p.schema(form.JsonSchema)
		return start, "json_schema", err
	case *inferencev1.StructuredOutput_Regex:
		start, err = p.regex(form.Regex)
		return start, "regex", err
	case *inferencev1.StructuredOutput_Choice:
		start, err = p.choice(form.Choice.GetTexts())
		return start, "choice.texts", err
	case *inferencev1.StructuredOutput_Grammar:
		start, err = p.gbnf(form.Grammar)
		return start, "grammar", err
	}
	return 0, "form", fmt.Errorf("is not set: give one of json_object, json_schema, regex, choice, grammar and structural_tags")
}

func (p *program) regex(text string) (int32, error) {
	re, err := parseExpression(text)
	if err != nil {
		return 0, err
	}
	lex, err := p.expression(anchored(re, false), false)
	return p.lexeme(lex, end), err
}

func (p *program) choice(texts []string) (int32, error) {
	if len(texts) == 0 || len(texts) > MaxChoices {
		return 0, fmt.Errorf("%d texts are outside 1 to %d", len(texts), MaxChoices)
	}
	total := 0
	for i, text := range texts {
		if text == "" {
			return 0, fmt.Errorf("text %d is empty", i)
		}
		total += len(text)
	}
	if total > maxChoiceBytes {
		return 0, fmt.Errorf("the texts have %d bytes, more than %d", total, maxChoiceBytes)
	}
	lex, err := p.oneOf(texts)
	return p.lexeme(lex, end), err
}

// search makes a lexeme of the JSON strings in which an expression is found.
func (l *lexemes) search(re *syntax.Regexp) (*lexeme, error) {
	n := l.nfa(true)
	last, err := n.literal(`"`, 0)
	if err != nil {
		return nil, err
	}
	inner, err := n.expression(anchored(re, true), last)
	if err != nil {
		return nil, err
	}
	if n.start, err = n.literal(`"`, inner); err != nil {
		return nil, err
	}
	return l.automaton(n), nil
}

// Accepts says whether text is all of something that the grammar allows.
func (g *Grammar) Accepts(text []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.masks.walkText(g.masks.first, text)
	return at != nil && at.complete
}
