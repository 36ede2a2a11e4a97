package jinja

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Options bound one rendering and say what it gets.
type Options struct {
	// MaxOutputBytes bounds what is printed. 0: 16 MiB.
	MaxOutputBytes int
	// MaxWork bounds the work, in about bytes moved. 0: 64 Mi.
	MaxWork int
	// Now is the clock of strftime_now. Nil: time.Now.
	Now func() time.Time
}

// Render fills the template in with variables, whose values are those of this
// package. Its error is an *Error, or that of ctx.
func (t *Template) Render(ctx context.Context, variables *Dict, o Options) (out string, err error) {
	m := &machine{ctx: ctx, work: o.MaxWork, unwatched: watchInterval, outputLeft: o.MaxOutputBytes, now: o.Now, line: 1}
	if m.work <= 0 {
		m.work = defaultWork
	}
	if m.outputLeft <= 0 {
		m.outputLeft = defaultOutputBytes
	}
	if m.now == nil {
		m.now = time.Now
	}
	defer func() {
		if r := recover(); r != nil {
			out, err = "", &Error{Line: m.line, Message: cut(fmt.Sprintf("the template cannot be rendered: %v", r), maxMessageBytes)}
		}
	}()
	root := &scope{}
	for i, key := range variables.keys {
		if text, ok := key.(string); ok {
			if err := m.setIn(root, text, variables.values[i]); err != nil {
				return "", m.located(err)
			}
		}
	}
	var buffer strings.Builder
	m.out = &buffer
	if _, err := m.run(t.body, &scope{parent: root}); err != nil {
		return "", m.located(err)
	}
	return buffer.String(), nil
}

// machine renders one template once.
type machine struct {
	ctx        context.Context
	out        *strings.Builder
	outputLeft int // bytes that may still be printed, captured ones included
	depth      int
	line       int // of what is evaluated
	now        func() time.Time

	work      int // that may still be done
	unwatched int // work until the context is looked at
}

// located gives an error the line that it happened on.
func (m *machine) located(err error) error {
	var located *Error
	if errors.As(err, &located) || m.ctx.Err() != nil {
		return err
	}
	return &Error{Line: m.line, Message: cut(err.Error(), maxMessageBytes)}
}

func (m *machine) enter() error {
	if m.depth++; m.depth > maxDepth {
		return errors.New("the template is nested too deep: does a macro call itself?")
	}
	return m.spend(stepCost)
}

func (m *machine) print(s string) error {
	if m.outputLeft -= len(s); m.outputLeft < 0 {
		return errors.New("the template prints too much: it was stopped")
	}
	if err := m.spend(len(s)); err != nil {
		return err
	}
	m.out.WriteString(s)
	return nil
}

// printText prints a value's text.
func (m *machine) printText(v any) error {
	t, err := m.text(v)
	if err != nil {
		return err
	}
	return m.print(t)
}

// captured is what a part of the template prints.
func (m *machine) captured(run func() error) (string, error) {
	outside := m.out
	var buffer strings.Builder
	m.out = &buffer
	err := run()
	m.out = outside
	m.outputLeft += buffer.Len() // it is printed again, or not
	return buffer.String(), err
}

// capture runs statements and returns what they print.
func (m *machine) capture(body []statement, s *scope) (string, error) {
	return m.captured(func() error {
		_, err := m.run(body, s)
		return err
	})
}

// flow is how a body ended.
type flow int

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

// run carries statements out.
func (m *machine) run(body []statement, s *scope) (flow, error) {
	if err := m.enter(); err != nil {
		return flowOn, err
	}
	defer func() { m.depth-- }()
	for _, each := range body {
		f, err := m.execute(each, s)
		if err != nil || f != flowOn {
			return f, err
		}
	}
	return flowOn, nil
}

func (m *machine) execute(each statement, s *scope) (flow, error) {
	switch n := each.(type) {
	case data:
		return flowOn, m.print(n.text)
	case output:
		m.line = n.line
		v, err := m.eval(n.value, s)
		if err != nil {
			return flowOn, err
		}
		return flowOn, m.printText(v)
	case ifStatement:
		for _, b := range n.branches {
			m.line = b.line
			if b.test != nil {
				v, err := m.eval(b.test, s)
				if err != nil {
					return flowOn, err
				}
				if !truth(v) {
					continue
				}
			}
			return m.run(b.body, s)
		}
		return flowOn, nil
	case forStatement:
		m.line = n.line
		v, err := m.eval(n.over, s)
		if err != nil {
			return flowOn, err
		}
		return flowOn, m.loop(&n, v, s, 0)
	case setStatement:
		m.line = n.line
		return flowOn, m.set(n, s)
	case *macroStatement:
		return flowOn, m.setIn(s, n.name, m.macro(n, s))
	case callStatement:
		m.line = n.line
		caller := m.macro(n.caller, s)
		v, err := m.call(n.call, s, caller)
		if err != nil {
			return flowOn, err
		}
		return flowOn, m.printText(v)
	case withStatement:
		inner := &scope{parent: s}
		for i, to := range n.targets {
			m.line = n.line
			v, err := m.eval(n.values[i], s)
			if err != nil {
				return flowOn, err
			}
			if err := m.assign(to, v, inner); err != nil {
				return flowOn, err
			}
		}
		return m.run(n.body, inner)
	case filterStatement:
		printed, err := m.capture(n.body, &scope{parent: s})
		if err != nil {
			return flowOn, err
		}
		m.line = n.line
		v, err := m.evalOver(n.filter, printed, s)
		if err != nil {
			return flowOn, err
		}
		return flowOn, m.printText(v)
	case scopeStatement:
		return m.run(n.body, &scope{parent: s})
	case breakStatement:
		return flowBreak, nil
	case continueStatement:
		return flowContinue, nil
	}
	return flowOn, fmt.Errorf("unknown statement %T", each)
}

func (m *machine) set(n setStatement, s *scope) error {
	if n.value != nil {
		v, err := m.eval(n.value, s)
		if err != nil {
			return err
		}
		return m.assign(n.target, v, s)
	}
	printed, err := m.capture(n.body, &scope{parent: s})
	if err != nil {
		return err
	}
	v := any(printed)
	if n.filter != nil {
		m.line = n.line
		if v, err = m.evalOver(n.filter, printed, s); err != nil {
			return err
		}
	}
	return m.assign(n.target, v, s)
}

func (m *machine) assign(to target, v any, s *scope) error {
	switch {
	case to.several != nil:
		items, err := m.iterate(v)
		if err != nil {
			return err
		}
		if len(items) != len(to.several) {
			return fmt.Errorf("%d values cannot be unpacked into %d names", len(items), len(to.several))
		}
		for i, one := range to.several {
			if err := m.assign(one, items[i], s); err != nil {
				return err
			}
		}
	case to.attribute != "":
		of, _, err := m.get(s, to.name)
		if err != nil {
			return err
		}
		ns, ok := of.(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign attribute %q: %s is no namespace", to.attribute, to.name)
		}
		if _, known := ns.attributes.Get(to.attribute); !known {
			if err := m.spend(entryCost); err != nil {
				return err
			}
		}
		ns.attributes.Set(to.attribute, v)
	default:
		return m.setIn(s, to.name, v)
	}
	return nil
}

// iterate is the elements of a value.
func (m *machine) iterate(v any) ([]any, error) {
	switch x := v.(type) {
	case *List:
		return x.Items, m.spend(len(x.Items))
	case *Dict:
		return x.keys, m.spend(len(x.keys))
	case string:
		if err := m.spend(len(x)); err != nil {
			return nil, err
		}
		n := utf8.RuneCountInString(x)
		if err := m.spend(valueCost * n); err != nil {
			return nil, err
		}
		out := make([]any, 0, n)
		for _, r := range x {
			out = append(out, string(r))
		}
		return out, nil
	case undefined:
		return nil, nil
	}
	return nil, fmt.Errorf("%s is not iterable", quoted(typeName(v)))
}

func quoted(s string) string { return "'" + s + "'" }
