package eventlog

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// An interface value is 0 if it is nil, or the number of its type and the value.

func (c *Codec) encodeInterface(e *encoder, v reflect.Value) {
	if v.IsNil() {
		e.uvarint(0)
		return
	}
	c.encodeRegistered(e, v.Elem(), 1)
}

// encodeRegistered writes a value of a registered type behind the number of that, counted
// from first.
func (c *Codec) encodeRegistered(e *encoder, v reflect.Value, first uint64) {
	id, is := c.ids[v.Type()]
	if !is {
		e.failed(fmt.Errorf("type %s is not registered", v.Type()))
		return
	}
	e.uvarint(first + id)
	c.registered[id].encode(e, v)
}

func (c *Codec) liveInterface(core *Core, v reflect.Value) reflect.Value {
	if v.IsNil() {
		return v
	}
	return c.plans[v.Elem().Type()].given(core, v.Elem())
}

func (c *Codec) decodeInterface(d *decoder, v reflect.Value) {
	if n := d.uvarint(); n > 0 {
		c.decodeRegistered(d, v, n-1)
	}
}

func (c *Codec) decodeRegistered(d *decoder, v reflect.Value, id uint64) {
	p := d.registered(c, id)
	if p == nil || !d.enter() {
		return
	}
	if !p.t.AssignableTo(v.Type()) {
		d.fail("a %s is where a %s should be", p.name, v.Type())
		return
	}
	x := reflect.New(p.t).Elem()
	p.decode(d, x)
	d.depth--
	if d.err == nil {
		v.Set(x)
	}
}

func (c *Codec) showInterface(d *decoder) node {
	if n := d.uvarint(); n > 0 {
		return c.showRegistered(d, n-1)
	}
	return node{text: "nil", zero: true}
}

func (c *Codec) showRegistered(d *decoder, id uint64) node {
	p := d.registered(c, id)
	if p == nil || !d.enter() {
		return node{text: "?"}
	}
	n := p.show(d)
	d.depth--
	n.zero = false // the type says something
	return n
}

// How an error is written: nil, its text, its text and gRPC status, or, from errorRegistered
// on, the number of its type and the value.
const (
	errorNil = iota
	errorText
	errorStatus
	errorRegistered
)

func (c *Codec) encodeError(e *encoder, v reflect.Value) {
	if v.IsNil() {
		e.uvarint(errorNil)
		return
	}
	if _, is := c.ids[v.Elem().Type()]; is {
		c.encodeRegistered(e, v.Elem(), errorRegistered)
		return
	}
	err, _ := v.Interface().(error)
	var graded interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &graded) {
		e.uvarint(errorText)
		e.string(err.Error())
		return
	}
	s, _ := status.FromError(err)
	data, failed := proto.MarshalOptions{Deterministic: true}.Marshal(s.Proto())
	e.failed(failed)
	e.uvarint(errorStatus)
	e.string(err.Error())
	e.string(string(data))
}

func (c *Codec) decodeError(d *decoder, v reflect.Value) {
	n := d.uvarint()
	if n >= errorRegistered {
		c.decodeRegistered(d, v, n-errorRegistered)
		return
	}
	if err := d.plainError(n); err != nil {
		v.Set(reflect.ValueOf(err))
	}
}

func (c *Codec) showError(d *decoder) node {
	n := d.uvarint()
	if n >= errorRegistered {
		return c.showRegistered(d, n-errorRegistered)
	}
	err := d.plainError(n)
	if err == nil {
		return node{text: "nil", zero: true}
	}
	out := node{text: "error{", end: "}"}
	out.add("text", node{text: strconv.Quote(err.Error())})
	if s, is := status.FromError(err); is {
		for _, detail := range s.Details() {
			if m, is := detail.(proto.Message); is {
				out.add("detail", showMessage(m.ProtoReflect()))
			}
		}
	}
	return out
}

// plainError reads an error whose type is not registered.
func (d *decoder) plainError(how uint64) error {
	if how == errorNil {
		return nil
	}
	text := d.string()
	if how == errorText {
		return errors.New(text)
	}
	var s rpcstatus.Status
	if err := proto.Unmarshal([]byte(d.string()), &s); err != nil {
		d.fail("a gRPC status: %v", err)
		return nil
	}
	err := status.ErrorProto(&s)
	if err == nil || err.Error() != text {
		return statusError{text, status.FromProto(&s)}
	}
	return err
}

// statusError is an error around a gRPC status.
type statusError struct {
	text   string
	status *status.Status
}

func (e statusError) Error() string              { return e.text }
func (e statusError) GRPCStatus() *status.Status { return e.status }
