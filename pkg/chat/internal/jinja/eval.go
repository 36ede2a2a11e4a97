package jinja

import (
	"errors"
	"fmt"
	"slices"
)

var errNoItems = errors.New("this call needs arguments")

// eval is the value of an expression.
func (m *machine) eval(e expression, s *scope) any {
	m.enter()
	defer func() { m.depth-- }()
	switch n := e.(type) {
	case constant:
		return n.value
	case name:
		return m.lookup(n, s)
	case *sequence:
		items := m.list(len(n.items))
		for i, each := range n.items {
			items[i] = m.eval(each, s)
		}
		return &List{Items: items, tuple: n.tuple}
	case *mapping:
		out := NewDict()
		m.spend(entryCost * (len(n.keys) + 1))
		for i := range n.keys {
			key := m.eval(n.keys[i], s)
			if !hashable(key) {
				return fail("a %s cannot be a key", typeName(key))
			}
			m.hash(key)
			out.Set(key, m.eval(n.values[i], s))
		}
		return out
	case *conditional:
		switch {
		case truth(m.eval(n.test, s)):
			return m.eval(n.then, s)
		case n.otherwise == nil:
			return undefined{"the conditional expression has no else"}
		}
		return m.eval(n.otherwise, s)
	case *unary:
		return m.unary(n, s)
	case *binary:
		return m.binary(n, s)
	case *comparison:
		return m.comparison(n, s)
	case *attribute:
		of := m.eval(n.of, s)
		m.line = n.line
		return m.getAttribute(of, n.name)
	case *item:
		return m.item(n, s)
	case *slice:
		return m.slice(n, s)
	case *call:
		return m.call(n, s, nil)
	case *filtered:
		return m.filter(n, m.eval(n.of, s), s)
	case *tested:
		v := m.eval(n.of, s)
		args, _ := m.arguments(n.args, s)
		m.line = n.line
		return m.test(n.name, v, args) != n.negate
	}
	return fail("unknown expression %T", e)
}

func (m *machine) test(name string, v any, args []any) bool {
	defer blame("test %q: %w", name)
	return testOf(name)(m, v, args)
}

func (m *machine) lookup(n name, s *scope) any {
	if v, ok := m.get(s, n.text); ok {
		return v
	}
	if f, ok := globals[n.text]; ok {
		return f
	}
	return undefined{quoted(n.text) + " is undefined"}
}

// evalOver applies the filters of a block to what it printed: their innermost
// operand is left open.
func (m *machine) evalOver(e expression, printed string, s *scope) any {
	f, ok := e.(*filtered)
	if !ok {
		return printed
	}
	v := any(printed)
	if f.of != nil {
		v = m.evalOver(f.of, printed, s)
	}
	return m.filter(f, v, s)
}

func (m *machine) filter(f *filtered, v any, s *scope) any {
	args, named := m.arguments(f.args, s)
	m.line = f.line
	return m.applyFilter(f.name, v, args, named)
}

func (m *machine) applyFilter(name string, v any, args []any, named *Dict) any {
	defer blame("filter %q: %w", name)
	return filterOf(name)(m, v, parameters{args: args, named: named})
}

// arguments evaluates what a call is given.
func (m *machine) arguments(a arguments, s *scope) ([]any, *Dict) {
	args := make([]any, 0, len(a.positional))
	for _, each := range a.positional {
		args = append(args, m.eval(each, s))
	}
	if a.spread != nil {
		items := m.iterate(m.eval(a.spread, s))
		m.spendTimes(len(items), elementCost)
		args = append(args, items...)
	}
	named := NewDict()
	for i, each := range a.named {
		v := m.eval(each, s)
		m.spend(entryCost)
		named.Set(a.names[i], v)
	}
	return args, named
}

// call calls; caller is what a call block passes, or nil.
func (m *machine) call(n *call, s *scope, caller *function) any {
	var called any
	if a, ok := n.of.(*attribute); ok {
		called = m.getAttribute(m.eval(a.of, s), a.name)
	} else {
		called = m.eval(n.of, s)
	}
	args, named := m.arguments(n.args, s)
	if caller != nil {
		named.Set("caller", caller)
	}
	m.line = n.line
	var f *function
	switch x := called.(type) {
	case *function:
		f = x
	case *loop:
		if f = x.again; f == nil {
			return fail("the loop is not recursive: write \"recursive\" at the end of for")
		}
	case undefined:
		return fail("%s", x.problem)
	default:
		return fail("a %s cannot be called", typeName(called))
	}
	return f.call(m, args, named)
}

// macro makes a function of a macro that was met in a scope, which it sees.
func (m *machine) macro(n *macroStatement, s *scope) *function {
	return &function{n.name, func(m *machine, args []any, named *Dict) any {
		// Each name that is given is looked for among the parameters.
		m.spend(turnCost + len(args)*elementCost)
		m.spendTimes(len(named.keys), entryCost+len(n.names))
		inner := &scope{parent: s}
		for i, parameter := range n.names {
			var v any
			given, ok := named.Get(parameter)
			switch {
			case i < len(args) && ok:
				return fail("macro %q gets %q twice", n.name, parameter)
			case i < len(args):
				v = args[i]
			case ok:
				v = given
			case n.defaults[i] != nil:
				v = m.eval(n.defaults[i], inner)
			default:
				v = undefined{fmt.Sprintf("parameter %q was not provided", parameter)}
			}
			m.setIn(inner, parameter, v)
		}
		rest := NewDict()
		for i, key := range named.keys {
			switch isParameter := slices.ContainsFunc(n.names, func(name string) bool { return name == key }); {
			case key == "caller":
				inner.set("caller", named.values[i])
			case !isParameter:
				rest.Set(key, named.values[i])
			}
		}
		inner.set("kwargs", rest)
		inner.set("varargs", tuple(args[min(len(n.names), len(args)):]...))
		return m.capture(n.body, inner)
	}}
}
