package eventlog

import (
	"fmt"
	"reflect"
)

// funcPlan is how the calls of a function are written.
type funcPlan struct {
	t       reflect.Type
	in, out []*plan
}

func (c *Codec) planFunc(p *plan) error {
	if p.t.IsVariadic() {
		return fmt.Errorf("type %s is variadic and cannot be written", p.t)
	}
	f := &funcPlan{t: p.t}
	p.description = p.t.String()
	for i := range p.t.NumIn() {
		of, err := c.plan(p.t.In(i))
		if err != nil {
			return err
		}
		f.in = append(f.in, of)
	}
	for i := range p.t.NumOut() {
		of, err := c.plan(p.t.Out(i))
		if err != nil {
			return err
		}
		f.out = append(f.out, of)
	}
	p.encode = func(e *encoder, v reflect.Value) { e.bool(!v.IsNil()) }
	p.live = func(c *Core, v reflect.Value) reflect.Value {
		if v.IsNil() {
			return v
		}
		return c.listen(f, v)
	}
	p.decode = func(d *decoder, v reflect.Value) {
		if d.bool() && d.function != nil {
			v.Set(d.function(f))
		}
	}
	p.show = func(d *decoder) node {
		if d.bool() {
			return node{text: "func"}
		}
		return node{text: "nil", zero: true}
	}
	return nil
}

// encodeAll writes a call's arguments, or its results.
func encodeAll(e *encoder, plans []*plan, values []reflect.Value) {
	for i, p := range plans {
		p.encode(e, values[i])
	}
}

func decodeAll(d *decoder, plans []*plan) []reflect.Value {
	out := make([]reflect.Value, len(plans))
	for i, p := range plans {
		out[i] = reflect.New(p.t).Elem()
		if d.err == nil {
			p.decode(d, out[i])
		}
	}
	return out
}

func showAll(d *decoder, plans []*plan) node {
	out := node{text: "(", end: ")"}
	for _, p := range plans {
		if d.err == nil {
			out.add("", p.show(d))
		}
	}
	return out
}
