package jinja

import (
	"errors"
	"fmt"
)

var errNoItems = errors.New("this call needs arguments")

// eval is the value of an expression.
func (m *machine) eval(e expression, s *scope) (any, error) {
	if err := m.enter(); err != nil {
		return nil, err
	}
	defer func() { m.depth-- }()
	switch n := e.(type) {
	case constant:
		return n.value, nil
	case name:
		return m.lookup(n, s)
	case *sequence:
		items, err := m.list(len(n.items))
		if err != nil {
			return nil, err
		}
		for i, each := range n.items {
			v, err := m.eval(each, s)
			if err != nil {
				return nil, err
			}
			items[i] = v
		}
		return &List{Items: items, tuple: n.tuple}, nil
	case *mapping:
		out := NewDict()
		if err := m.spend(entryCost * (len(n.keys) + 1)); err != nil {
			return nil, err
		}
		for i := range n.keys {
			key, err := m.eval(n.keys[i], s)
			if err != nil {
				return nil, err
			}
			if !hashable(key) {
				return nil, fmt.Errorf("a %s cannot be a key", typeName(key))
			}
			if err := m.hash(key); err != nil {
				return nil, err
			}
			v, err := m.eval(n.values[i], s)
			if err != nil {
				return nil, err
			}
			out.Set(key, v)
		}
		return out, nil
	case *conditional:
		v, err := m.eval(n.test, s)
		switch {
		case err != nil:
			return nil, err
		case truth(v):
			return m.eval(n.then, s)
		case n.otherwise == nil:
			return undefined{"the conditional expression has no else"}, nil
		}
		return m.eval(n.otherwise, s)
	case *unary:
		return m.unary(n, s)
	case *binary:
		return m.binary(n, s)
	case *comparison:
		return m.comparison(n, s)
	case *attribute:
		of, err := m.eval(n.of, s)
		if err != nil {
			return nil, err
		}
		m.line = n.line
		return m.getAttribute(of, n.name)
	case *item:
		return m.item(n, s)
	case *slice:
		return m.slice(n, s)
	case *call:
		return m.call(n, s, nil)
	case *filtered:
		v, err := m.eval(n.of, s)
		if err != nil {
			return nil, err
		}
		return m.filter(n, v, s)
	case *tested:
		v, err := m.eval(n.of, s)
		if err != nil {
			return nil, err
		}
		args, _, err := m.arguments(n.args, s)
		if err != nil {
			return nil, err
		}
		m.line = n.line
		ok, err := testOf(n.name)(m, v, args)
		if err != nil {
			return nil, fmt.Errorf("test %q: %w", n.name, err)
		}
		return ok != n.negate, nil
	}
	return nil, fmt.Errorf("unknown expression %T", e)
}

func (m *machine) lookup(n name, s *scope) (any, error) {
	if v, ok, err := m.get(s, n.text); ok || err != nil {
		return v, err
	}
	if f, ok := globals[n.text]; ok {
		return f, nil
	}
	return undefined{quoted(n.text) + " is undefined"}, nil
}

// evalOver applies the filters of a block to what it printed: their innermost
// operand is left open.
func (m *machine) evalOver(e expression, printed string, s *scope) (any, error) {
	f, ok := e.(*filtered)
	if !ok {
		return printed, nil
	}
	v := any(printed)
	if f.of != nil {
		var err error
		if v, err = m.evalOver(f.of, printed, s); err != nil {
			return nil, err
		}
	}
	return m.filter(f, v, s)
}

func (m *machine) filter(f *filtered, v any, s *scope) (any, error) {
	args, named, err := m.arguments(f.args, s)
	if err != nil {
		return nil, err
	}
	m.line = f.line
	return m.applyFilter(f.name, v, args, named)
}

func (m *machine) applyFilter(name string, v any, args []any, named *Dict) (any, error) {
	out, err := filterOf(name)(m, v, parameters{args: args, named: named})
	if err != nil {
		var located *Error
		if errors.As(err, &located) {
			return nil, err
		}
		return nil, fmt.Errorf("filter %q: %w", name, err)
	}
	return out, nil
}

// arguments evaluates what a call is given.
func (m *machine) arguments(a arguments, s *scope) ([]any, *Dict, error) {
	args := make([]any, 0, len(a.positional))
	for _, each := range a.positional {
		v, err := m.eval(each, s)
		if err != nil {
			return nil, nil, err
		}
		args = append(args, v)
	}
	if a.spread != nil {
		v, err := m.eval(a.spread, s)
		if err != nil {
			return nil, nil, err
		}
		items, err := m.iterate(v)
		if err != nil {
			return nil, nil, err
		}
		if err := m.spendTimes(len(items), elementCost); err != nil {
			return nil, nil, err
		}
		args = append(args, items...)
	}
	named := NewDict()
	for i, each := range a.named {
		v, err := m.eval(each, s)
		if err != nil {
			return nil, nil, err
		}
		if err := m.spend(entryCost); err != nil {
			return nil, nil, err
		}
		named.Set(a.names[i], v)
	}
	return args, named, nil
}

// call calls; caller is what a call block passes, or nil.
func (m *machine) call(n *call, s *scope, caller *function) (any, error) {
	var called any
	var err error
	if a, ok := n.of.(*attribute); ok {
		of, evalErr := m.eval(a.of, s)
		if evalErr != nil {
			return nil, evalErr
		}
		called, err = m.getAttribute(of, a.name)
	} else {
		called, err = m.eval(n.of, s)
	}
	if err != nil {
		return nil, err
	}
	args, named, err := m.arguments(n.args, s)
	if err != nil {
		return nil, err
	}
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
			return nil, errors.New("the loop is not recursive: write \"recursive\" at the end of for")
		}
	case undefined:
		return nil, errors.New(x.problem)
	default:
		return nil, fmt.Errorf("a %s cannot be called", typeName(called))
	}
	return f.call(m, args, named)
}

// macro makes a function of a macro that was met in a scope, which it sees.
func (m *machine) macro(n *macroStatement, s *scope) *function {
	return &function{n.name, func(m *machine, args []any, named *Dict) (any, error) {
		// Each name that is given is looked for among the parameters.
		if err := m.spend(turnCost + len(args)*elementCost); err != nil {
			return nil, err
		}
		if err := m.spendTimes(len(named.keys), entryCost+len(n.names)); err != nil {
			return nil, err
		}
		inner := &scope{parent: s}
		for i, parameter := range n.names {
			var v any
			given, ok := named.Get(parameter)
			switch {
			case i < len(args) && ok:
				return nil, fmt.Errorf("macro %q gets %q twice", n.name, parameter)
			case i < len(args):
				v = args[i]
			case ok:
				v = given
			case n.defaults[i] != nil:
				var err error
				if v, err = m.eval(n.defaults[i], inner); err != nil {
					return nil, err
				}
			default:
				v = undefined{fmt.Sprintf("parameter %q was not provided", parameter)}
			}
			if err := m.setIn(inner, parameter, v); err != nil {
				return nil, err
			}
		}
		rest := NewDict()
		for i, key := range named.keys {
			switch isParameter := contains(n.names, key); {
			case key == "caller":
				inner.set("caller", named.values[i])
			case !isParameter:
				rest.Set(key, named.values[i])
			}
		}
		inner.set("kwargs", rest)
		inner.set("varargs", tuple(args[min(len(n.names), len(args)):]...))
		printed, err := m.capture(n.body, inner)
		return printed, err
	}}
}

func contains(names []string, key any) bool {
	for _, n := range names {
		if n == key {
			return true
		}
	}
	return false
}
