package jinja

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Options bound one rendering and say what it gets.
type Options struct {
	// MaxOutputBytes bounds what is printed. 0: 16 MiB.
	MaxOutputBytes int
	// Now is the clock of strftime_now. Nil: time.Now.
	Now func() time.Time
}

// Work is counted in units of about a byte moved: a step of the evaluation counts
// as many as it takes in time. The budget is one or two seconds of a core.
const (
	defaultOutputBytes = 16 << 20
	stepCost           = 32
	turnCost           = 128 // of a loop
	workBudget         = 256 << 20
	elementCost        = 16
)

// Render fills the template in with variables, whose values are those of this
// package. Its error is an *Error, or that of ctx.
func (t *Template) Render(ctx context.Context, variables *Dict, o Options) (out string, err error) {
	m := &machine{ctx: ctx, work: workBudget, room: o.MaxOutputBytes, now: o.Now, line: 1}
	if m.room <= 0 {
		m.room = defaultOutputBytes
	}
	if m.now == nil {
		m.now = time.Now
	}
	defer func() {
		if r := recover(); r != nil {
			out, err = "", &Error{Line: m.line, Message: fmt.Sprintf("the template cannot be rendered: %v", r)}
		}
	}()
	root := &scope{}
	for i, key := range variables.keys {
		if text, ok := key.(string); ok {
			root.set(text, variables.values[i])
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
	ctx   context.Context
	out   *strings.Builder
	room  int // bytes that may still be printed, captured ones included
	work  int
	steps int
	depth int
	line  int // of what is evaluated
	now   func() time.Time
}

// located gives an error the line that it happened on.
func (m *machine) located(err error) error {
	var located *Error
	if errors.As(err, &located) || m.ctx.Err() != nil {
		return err
	}
	return &Error{Line: m.line, Message: err.Error()}
}

// spend counts work.
func (m *machine) spend(units int) error {
	if m.work -= units; m.work < 0 || units < 0 {
		return errors.New("the template works too long: it was stopped")
	}
	if m.steps++; m.steps%1024 == 0 {
		return m.ctx.Err()
	}
	return nil
}

// made counts a string that was made.
func (m *machine) made(s string) (any, error) {
	return s, m.spend(len(s))
}

func (m *machine) enter() error {
	if m.depth++; m.depth > maxDepth {
		return errors.New("the template is nested too deep: does a macro call itself?")
	}
	return m.spend(stepCost)
}

func (m *machine) print(s string) error {
	if m.room -= len(s); m.room < 0 {
		return errors.New("the template prints too much: it was stopped")
	}
	m.out.WriteString(s)
	return m.spend(len(s))
}

// capture runs statements and returns what they print.
func (m *machine) capture(body []statement, s *scope) (string, error) {
	outside := m.out
	var buffer strings.Builder
	m.out = &buffer
	_, err := m.run(body, s)
	m.out = outside
	m.room += buffer.Len() // it is printed again, or not
	return buffer.String(), err
}

// scope is the variables of a block, which sees those around it. They are few.
type scope struct {
	names  []string
	values []any
	parent *scope
}

func (s *scope) set(name string, value any) {
	if i := slices.Index(s.names, name); i >= 0 {
		s.values[i] = value
		return
	}
	s.names, s.values = append(s.names, name), append(s.values, value)
}

func (s *scope) get(name string) (any, bool) {
	for ; s != nil; s = s.parent {
		if i := slices.Index(s.names, name); i >= 0 {
			return s.values[i], true
		}
	}
	return nil, false
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
		t, err := m.text(v)
		if err != nil {
			return flowOn, err
		}
		return flowOn, m.print(t)
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
		s.set(n.name, m.macro(n, s))
		return flowOn, nil
	case callStatement:
		m.line = n.line
		caller := m.macro(n.caller, s)
		v, err := m.call(n.call, s, caller)
		if err != nil {
			return flowOn, err
		}
		return flowOn, m.print(text(v))
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
		return flowOn, m.print(text(v))
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
		of, _ := s.get(to.name)
		ns, ok := of.(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign attribute %q: %s is no namespace", to.attribute, to.name)
		}
		ns.attributes.Set(to.attribute, v)
	default:
		s.set(to.name, v)
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
		out := make([]any, 0, utf8.RuneCountInString(x))
		if err := m.spend(elementCost * cap(out)); err != nil {
			return nil, err
		}
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
