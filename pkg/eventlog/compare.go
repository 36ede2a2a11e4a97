package eventlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
)

// answer returns the next function of the record's core: it answers as it did.
func (r *Record) answer(p *funcPlan) reflect.Value {
	reader := r.reader
	number := reader.funcs[r.Core]
	reader.funcs[r.Core]++
	reader.plans[key{r.Core, number}] = p
	return reflect.MakeFunc(p.t, func(args []reflect.Value) []reflect.Value {
		if reader.known != nil {
			return reader.recall(r.Core, number, p, args)
		}
		return reader.present.call(number, p, args)
	})
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

// key names a function.
type key struct{ core, number uint64 }

// remember takes in the calls of an event, for recall.
func (r *Reader) remember(d decoder) {
	if r.known == nil {
		return
	}
	for d.bool() && d.err == nil {
		number := d.uvarint()
		p := r.plans[key{r.present.Core, number}]
		if p == nil {
			return
		}
		from := d.data
		decodeAll(&d, p.in)
		args := from[:len(from)-len(d.data)]
		from = d.data
		decodeAll(&d, p.out)
		if d.err == nil {
			r.known[callKey(r.present.Core, number, args)] = from[:len(from)-len(d.data)]
		}
	}
}

func callKey(core, number uint64, args []byte) string {
	b := binary.AppendUvarint(nil, core)
	return string(append(binary.AppendUvarint(b, number), args...))
}

// recall answers as any call with the same arguments was answered.
func (r *Reader) recall(core, number uint64, p *funcPlan, args []reflect.Value) []reflect.Value {
	var asked encoder
	encodeAll(&asked, p.in, args)
	results, is := r.known[callKey(core, number, asked.buf)]
	if !is {
		return zeros(p.out)
	}
	d := decoder{data: results}
	return decodeAll(&d, p.out)
}

// Outcome is what the functions answered, in order, and what was done: of that long slices of
// numbers are nil, and functions too.
func (r *Record) Outcome() (answers [][]reflect.Value, actions []any, err error) {
	d := decoder{data: r.start}
	for d.bool() {
		p := r.reader.plans[key{r.Core, d.uvarint()}]
		if p == nil {
			d.fail("a function is not known")
			break
		}
		decodeAll(&d, p.in)
		answers = append(answers, decodeAll(&d, p.out))
	}
	d.action = true
	for range d.uvarint() {
		var action any
		r.reader.codec.decodeInterface(&d, reflect.ValueOf(&action).Elem())
		if d.err != nil {
			return nil, nil, r.reader.damaged("the actions of event %d: %v", r.Number, d.err)
		}
		actions = append(actions, action)
	}
	if d.err != nil {
		return nil, nil, r.reader.damaged("the outcome of event %d: %v", r.Number, d.err)
	}
	return answers, actions, nil
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
		count = r.reader.codec.encodeActions(&e, actions)
	}
	if e.err == nil && !r.other && bytes.Equal(e.buf, r.left.data) {
		return nil, count
	}
	out := &Difference{Event: r.Show(), Expected: r.reader.outcome(r.Core, r.start)}
	out.Got = append(out.Got, r.calls...)
	if e.err != nil {
		out.Got = append(out.Got, e.err.Error())
		return out, count
	}
	out.Got = append(out.Got, r.reader.outcome(r.Core, e.buf)...)
	return out, count
}

// Show is the event in lines for people.
func (r *Record) Show() []string {
	d := decoder{data: r.shown}
	n := r.reader.codec.showInterface(&d)
	return n.lines("", "")
}

// outcome shows calls and actions.
func (r *Reader) outcome(core uint64, data []byte) (lines []string) {
	d := decoder{data: data}
	for d.bool() {
		number := d.uvarint()
		p := r.plans[key{core, number}]
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
		n := r.codec.showInterface(&d)
		lines = append(lines, n.lines("", "")...)
	}
	if len(lines) == 0 {
		lines = []string{"nothing"}
	}
	return lines
}
