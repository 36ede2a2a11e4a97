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
		switch r := recover().(type) {
		case nil:
		case failure:
			out, err = "", m.located(r.error)
		default:
			out, err = "", &Error{Line: m.line, Message: cut(fmt.Sprintf("the template cannot be rendered: %v", r), maxMessageBytes)}
		}
	}()
	root := &scope{}
	for i, key := range variables.keys {
		if text, ok := key.(string); ok {
			m.setIn(root, text, variables.values[i])
		}
	}
	var buffer strings.Builder
	m.out = &buffer
	m.run(t.body, &scope{parent: root})
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

func (m *machine) enter() {
	if m.depth++; m.depth > maxDepth {
		fail("the template is nested too deep: does a macro call itself?")
	}
	m.spend(stepCost)
}

func (m *machine) print(s string) {
	if m.outputLeft -= len(s); m.outputLeft < 0 {
		fail("the template's output is too long: it was stopped")
	}
	m.spend(len(s))
	m.out.WriteString(s)
}

// printText prints a value's text.
func (m *machine) printText(v any) {
	m.print(m.text(v))
}

// captured is what a part of the template prints.
func (m *machine) captured(run func()) string {
	outside := m.out
	var buffer strings.Builder
	m.out = &buffer
	run()
	m.out = outside
	m.outputLeft += buffer.Len() // it is printed again, or not
	return buffer.String()
}

// capture runs statements and returns what they print.
func (m *machine) capture(body []statement, s *scope) string {
	return m.captured(func() { m.run(body, s) })
}

// flow is how a body ended.
type flow int

const (
	flowOn flow = iota
	flowBreak
	flowContinue
)

// run carries statements out.
func (m *machine) run(body []statement, s *scope) flow {
	m.enter()
	defer func() { m.depth-- }()
	for _, each := range body {
		if f := m.execute(each, s); f != flowOn {
			return f
		}
	}
	return flowOn
}

func (m *machine) execute(each statement, s *scope) flow {
	switch n := each.(type) {
	case data:
		m.print(n.text)
	case output:
		m.line = n.line
		m.printText(m.eval(n.value, s))
	case ifStatement:
		for _, b := range n.branches {
			m.line = b.line
			if b.test == nil || truth(m.eval(b.test, s)) {
				return m.run(b.body, s)
			}
		}
	case forStatement:
		m.line = n.line
		m.loop(&n, m.eval(n.over, s), s, 0)
	case setStatement:
		m.line = n.line
		m.set(n, s)
	case *macroStatement:
		m.setIn(s, n.name, m.macro(n, s))
	case callStatement:
		m.line = n.line
		m.printText(m.call(n.call, s, m.macro(n.caller, s)))
	case withStatement:
		inner := &scope{parent: s}
		for i, to := range n.targets {
			m.line = n.line
			m.assign(to, m.eval(n.values[i], s), inner)
		}
		return m.run(n.body, inner)
	case filterStatement:
		printed := m.capture(n.body, &scope{parent: s})
		m.line = n.line
		m.printText(m.evalOver(n.filter, printed, s))
	case scopeStatement:
		return m.run(n.body, &scope{parent: s})
	case breakStatement:
		return flowBreak
	case continueStatement:
		return flowContinue
	default:
		fail("unknown statement %T", each)
	}
	return flowOn
}

func (m *machine) set(n setStatement, s *scope) {
	if n.value != nil {
		m.assign(n.target, m.eval(n.value, s), s)
		return
	}
	printed := m.capture(n.body, &scope{parent: s})
	if n.filter != nil {
		m.line = n.line
	}
	m.assign(n.target, m.evalOver(n.filter, printed, s), s)
}

func (m *machine) assign(to target, v any, s *scope) {
	switch {
	case to.several != nil:
		items := m.iterate(v)
		if len(items) != len(to.several) {
			fail("%d values cannot be unpacked into %d names", len(items), len(to.several))
		}
		for i, one := range to.several {
			m.assign(one, items[i], s)
		}
	case to.attribute != "":
		of, _ := m.get(s, to.name)
		ns, ok := of.(*namespace)
		if !ok {
			fail("cannot assign attribute %q: %s is not a namespace", to.attribute, to.name)
		}
		if _, known := ns.attributes.Get(to.attribute); !known {
			m.spend(entryCost)
		}
		ns.attributes.Set(to.attribute, v)
	default:
		m.setIn(s, to.name, v)
	}
}

// iterate is the elements of a value.
func (m *machine) iterate(v any) []any {
	switch x := v.(type) {
	case *List:
		m.spend(len(x.Items))
		return x.Items
	case *Dict:
		m.spend(len(x.keys))
		return x.keys
	case string:
		m.spend(len(x))
		n := utf8.RuneCountInString(x)
		m.spend(valueCost * n)
		out := make([]any, 0, n)
		for _, r := range x {
			out = append(out, string(r))
		}
		return out
	case undefined:
	default:
		fail("%s is not iterable", quoted(typeName(v)))
	}
	return nil
}

func quoted(s string) string { return "'" + s + "'" }
