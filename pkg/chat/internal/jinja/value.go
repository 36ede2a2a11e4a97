package jinja

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// Values are nil (none), bool, int64, BigInt, float64, string, *List, *Dict and what
// templates make: undefined, namespaces, functions, loops.

// BigInt is a whole number beyond 64 bits, in digits. It can be printed and compared with itself;
// computing with it is an error.
type BigInt string

// List is a list or a tuple. It is not changed once a template has it.
type List struct {
	Items []any
	tuple bool
}

// Dict is a dictionary that keeps the order of its keys. It is not changed once a
// template has it.
type Dict struct {
	keys   []any
	values []any
	index  map[any]int
}

// NewDict returns a dictionary without keys.
func NewDict() *Dict { return &Dict{index: make(map[any]int)} }

// Set adds a key, or gives one a new value. The key is a string, a number, a bool
// or nil.
func (d *Dict) Set(key, value any) {
	k := hashed(key)
	if i, ok := d.index[k]; ok {
		d.values[i] = value
		return
	}
	d.index[k] = len(d.keys)
	d.keys, d.values = append(d.keys, key), append(d.values, value)
}

// Get looks a key up.
func (d *Dict) Get(key any) (any, bool) {
	if !hashable(key) {
		return nil, false
	}
	i, ok := d.index[hashed(key)]
	if !ok {
		return nil, false
	}
	return d.values[i], true
}

// hashed makes equal keys the same: 1, 1.0 and true.
func hashed(key any) any {
	switch k := key.(type) {
	case bool:
		if k {
			return int64(1)
		}
		return int64(0)
	case float64:
		if k == math.Trunc(k) && math.Abs(k) < 1<<62 {
			return int64(k)
		}
	}
	return key
}

func hashable(key any) bool {
	switch key.(type) {
	case nil, bool, int64, float64, string:
		return true
	}
	return false
}

type (
	// undefined is what a name or an attribute that does not exist gives. problem
	// is the error of using it.
	undefined struct{ problem string }
	namespace struct{ attributes *Dict }
	function  struct {
		name string
		call func(m *machine, args []any, named *Dict) any
	}
)

// typeName is a value's type as Python calls it.
func typeName(v any) string {
	switch x := v.(type) {
	case nil:
		return "NoneType"
	case bool:
		return "bool"
	case int64:
		return "int"
	case BigInt:
		return "int beyond 64 bits"
	case float64:
		return "float"
	case string:
		return "str"
	case *List:
		if x.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case undefined:
		return "Undefined"
	case *namespace:
		return "Namespace"
	case *loop:
		return "LoopContext"
	case *function:
		return "function"
	}
	return fmt.Sprintf("%T", v)
}

func isBig(v any) bool { _, ok := v.(BigInt); return ok }

func truth(v any) bool {
	switch x := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return x
	case int64:
		return x != 0
	case float64:
		return x != 0
	case string:
		return x != ""
	case *List:
		return len(x.Items) > 0
	case *Dict:
		return len(x.keys) > 0
	}
	return true
}

// number gives a number as integer or as float, true and false as 1 and 0.
func number(v any) (i int64, f float64, isFloat, ok bool) {
	switch x := v.(type) {
	case bool:
		if x {
			return 1, 1, false, true
		}
		return 0, 0, false, true
	case int64:
		return x, float64(x), false, true
	case float64:
		return 0, x, true, true
	}
	return 0, 0, false, false
}

func equal(a, b any) bool {
	ai, af, aFloat, aok := number(a)
	bi, bf, bFloat, bok := number(b)
	if aok || bok {
		if !aFloat && !bFloat {
			return aok && bok && ai == bi
		}
		return aok && bok && af == bf
	}
	switch x := a.(type) {
	case nil:
		return b == nil
	case undefined:
		_, ok := b.(undefined)
		return ok
	case string:
		y, ok := b.(string)
		return ok && x == y
	case *List:
		y, ok := b.(*List)
		if !ok || x.tuple != y.tuple || len(x.Items) != len(y.Items) {
			return false
		}
		for i := range x.Items {
			if !equal(x.Items[i], y.Items[i]) {
				return false
			}
		}
		return true
	case *Dict:
		y, ok := b.(*Dict)
		if !ok || len(x.keys) != len(y.keys) {
			return false
		}
		for i, key := range x.keys {
			v, found := y.Get(key)
			if !found || !equal(x.values[i], v) {
				return false
			}
		}
		return true
	}
	return a == b
}

// compare orders two values of one kind: negative, 0 or positive.
func compare(a, b any) int {
	ai, af, aFloat, aok := number(a)
	bi, bf, bFloat, bok := number(b)
	switch {
	case aok && bok && !aFloat && !bFloat:
		return order(ai < bi, ai > bi)
	case aok && bok:
		return order(af < bf, af > bf)
	}
	switch x := a.(type) {
	case string:
		if y, ok := b.(string); ok {
			return strings.Compare(x, y)
		}
	case *List:
		if y, ok := b.(*List); ok {
			for i := range min(len(x.Items), len(y.Items)) {
				if c := compareElements(x.Items[i], y.Items[i]); c != 0 {
					return c
				}
			}
			return order(len(x.Items) < len(y.Items), len(x.Items) > len(y.Items))
		}
	case undefined:
		fail("%s", x.problem)
	}
	if u, ok := b.(undefined); ok {
		fail("%s", u.problem)
	}
	fail("%s and %s cannot be ordered", typeName(a), typeName(b))
	return 0
}

// compareElements orders two elements of lists: equal ones need no order. Lists are
// gone through once.
func compareElements(a, b any) int {
	x, isList := a.(*List)
	if y, ok := b.(*List); ok && isList && x.tuple == y.tuple || !equal(a, b) {
		return compare(a, b)
	}
	return 0
}

func order(less, more bool) int {
	switch {
	case less:
		return -1
	case more:
		return 1
	}
	return 0
}

func length(v any) int {
	switch x := v.(type) {
	case string:
		return utf8.RuneCountInString(x)
	case *List:
		return len(x.Items)
	case *Dict:
		return len(x.keys)
	case undefined:
		return 0
	case *loop:
		return len(x.items)
	}
	fail("a %s has no length", typeName(v))
	return 0
}

func list(items []any) *List { return &List{Items: items} }

func tuple(items ...any) *List { return &List{Items: items, tuple: true} }

// Keys are the keys, in order. The caller does not change them.
func (d *Dict) Keys() []any { return d.keys }
