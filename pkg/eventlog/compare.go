package eventlog

import (
	"bytes"
	"fmt"
	"reflect"
	"sort"
)

// answer returns the next function of the record's core: it answers as it did. It may outlive
// the record, and keeps nothing of it.
func (r *Record) answer(p *funcPlan) reflect.Value {
	reader, number := r.reader, r.core.add(p)
	return reflect.MakeFunc(p.t, func(args []reflect.Value) []reflect.Value {
		return reader.present.call(number, p, args)
	})
}

// plansFrom is how the calls of functions are written, from a number on: most functions of a
// core are like the one before.
type plansFrom struct {
	number uint64
	*funcPlan
}

// add numbers another function.
func (c *readCore) add(p *funcPlan) (number uint64) {
	number = c.funcs
	c.funcs++
	if n := len(c.plans); n == 0 || c.plans[n-1].funcPlan != p {
		c.plans = append(c.plans, plansFrom{number, p})
	}
	return number
}

// plan is that of a function; nil: there is none of this number.
func (c *readCore) plan(number uint64) *funcPlan {
	if number >= c.funcs {
		return nil
	}
	i := sort.Search(len(c.plans), func(i int) bool { return c.plans[i].number > number })
	return c.plans[i-1].funcPlan
}

// call is a call while the event is handled.
func (r *Record) call(number uint64, p *funcPlan, args []reflect.Value) []reflect.Value {
	var asked encoder
	encodeAll(&asked, p.in, args)
	made := decoder{data: asked.buf}
	shown := showCall(number, p, &made, nil)
	d := r.left
	if !r.other && d.bool() && d.uvarint() == number && bytes.HasPrefix(d.data, asked.buf) {
		d.data = d.data[len(asked.buf):]
		made, results := decoder{data: asked.buf}, d
		out := decodeAll(&d, p.out)
		if d.err == nil {
			r.left, r.calls = d, append(r.calls, showCall(number, p, &made, &results))
			return out
		}
	}
	r.other, r.calls = true, append(r.calls, shown)
	return zeros(p.out)
}

// showCall reads a call's arguments and, if it was answered, its results.
func showCall(number uint64, p *funcPlan, in, out *decoder) string {
	args := showAll(in, p.in)
	if out == nil {
		return fmt.Sprintf("calls function %d, %v: %s", number, p.t, args.line())
	}
	results := showAll(out, p.out)
	return fmt.Sprintf("calls function %d, %v: %s = %s", number, p.t, args.line(), results.line())
}

func zeros(plans []*plan) []reflect.Value {
	out := make([]reflect.Value, len(plans))
	for i, p := range plans {
		out[i] = reflect.Zero(p.t)
	}
	return out
}

// Call is a call of a function.
type Call struct {
	Function uint64 // counts those of the core
	In, Out  []reflect.Value
}

// Outcome is the calls of functions, in order, and what was done: of that long slices of
// numbers are nil, and functions too.
func (r *Record) Outcome() (calls []Call, actions []any, err error) {
	d := decoder{data: r.start}
	for d.bool() {
		call := Call{Function: d.uvarint()}
		p := r.core.plan(call.Function)
		if p == nil {
			d.fail("a function is not known")
			break
		}
		call.In, call.Out = decodeAll(&d, p.in), decodeAll(&d, p.out)
		calls = append(calls, call)
	}
	d.action = true
	for range d.uvarint() {
		var action any
		r.core.codec.decodeInterface(&d, reflect.ValueOf(&action).Elem())
		if d.err != nil {
			return nil, nil, r.reader.damaged("the actions of event %d: %v", r.Number, d.err)
		}
		actions = append(actions, action)
	}
	if d.err != nil {
		return nil, nil, r.reader.damaged("the outcome of event %d: %v", r.Number, d.err)
	}
	return calls, actions, nil
}

// Difference is where a state machine does not do what it did.
type Difference struct {
	// Event, and what was done and is done now, in lines for people.
	Event, Expected, Got []string
}

// Same compares the actions, a slice, that a state machine answers the record's event with now
// with those of then; nil: they are the same. failed is why there are none.
func (r *Record) Same(actions any, failed error) (difference *Difference, count int) {
	e := encoder{action: true}
	e.bool(false)
	if e.failed(failed); failed == nil {
		count = r.core.codec.encodeActions(&e, actions)
	}
	if e.err == nil && !r.other && bytes.Equal(e.buf, r.left.data) {
		return nil, count
	}
	out := &Difference{Event: r.Show(), Expected: r.core.outcome(r.start)}
	out.Got = append(out.Got, r.calls...)
	if e.err != nil {
		out.Got = append(out.Got, e.err.Error())
		return out, count
	}
	out.Got = append(out.Got, r.core.outcome(e.buf)...)
	return out, count
}

// Show is the event in lines for people.
func (r *Record) Show() []string {
	d := decoder{data: r.shown}
	n := r.core.codec.showInterface(&d)
	return n.lines("", "")
}

// outcome shows calls and actions.
func (c *readCore) outcome(data []byte) (lines []string) {
	d := decoder{data: data}
	for d.bool() {
		number := d.uvarint()
		p := c.plan(number)
		if p == nil {
			return append(lines, fmt.Sprintf("calls function %d, which is not known", number))
		}
		lines = append(lines, showCall(number, p, &d, &d))
	}
	d.action = true
	for i := range d.uvarint() {
		if d.err != nil {
			return append(lines, fmt.Sprintf("action %d cannot be read: %v", i+1, d.err))
		}
		n := c.codec.showInterface(&d)
		lines = append(lines, n.lines("", "")...)
	}
	if len(lines) == 0 {
		lines = []string{"nothing"}
	}
	return lines
}
