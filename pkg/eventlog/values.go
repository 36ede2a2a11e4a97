package eventlog

import (
	"cmp"
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

func encodeBinary(e *encoder, v reflect.Value) {
	it, is := v.Interface().(encoding.BinaryAppender)
	if !is {
		return
	}
	data, err := it.AppendBinary(nil)
	e.failed(err)
	e.string(string(data))
}

func decodeBinary(d *decoder, v reflect.Value) {
	data := d.string()
	if it, is := v.Addr().Interface().(encoding.BinaryUnmarshaler); is && d.err == nil {
		if err := it.UnmarshalBinary([]byte(data)); err != nil {
			d.fail("%s: %v", v.Type(), err)
		}
	}
}

func showBinary(p *plan) func(*decoder) node {
	return func(d *decoder) node {
		data := d.string()
		return node{text: fmt.Sprintf("%s(%x)", p.name, data), zero: data == ""}
	}
}

// leaf shows a value that has no parts.
func (p *plan) leaf(d *decoder) node {
	v := reflect.New(p.t).Elem()
	p.decode(d, v)
	n := node{zero: v.IsZero()}
	switch p.t.Kind() {
	case reflect.String:
		n.text = fmt.Sprintf("%q", v.String())
	case reflect.Slice:
		n.text = fmt.Sprintf("%x", v.Bytes())
	default:
		n.text = fmt.Sprint(v.Interface())
	}
	return n
}

func encodeTime(e *encoder, v reflect.Value) {
	t, _ := v.Interface().(time.Time)
	e.time(t)
}

func liveTime(c *Core, v reflect.Value) reflect.Value {
	e := encoder{base: c.e.base}
	encodeTime(&e, v)
	d := decoder{data: e.buf}
	return reflect.ValueOf(d.time())
}

func decodeTime(d *decoder, v reflect.Value) { v.Set(reflect.ValueOf(d.time())) }

func showTime(d *decoder) node {
	t := d.time()
	return node{text: t.UTC().Format(timeFormat), zero: t.IsZero()}
}

const timeFormat = "2006-01-02T15:04:05.000000000Z"

func encodeProto(e *encoder, v reflect.Value) {
	e.bool(!v.IsNil())
	if v.IsNil() {
		return
	}
	m, _ := v.Interface().(proto.Message)
	size := proto.MarshalOptions{Deterministic: true}.Size(m)
	e.uvarint(uint64(size))
	buf, err := proto.MarshalOptions{Deterministic: true, UseCachedSize: true}.MarshalAppend(e.buf, m)
	if err != nil {
		e.failed(err)
		return
	}
	e.buf = buf
}

func decodeProto(d *decoder, v reflect.Value) {
	if !d.bool() {
		return
	}
	data := d.bytes(d.count())
	if d.err != nil {
		return
	}
	to := reflect.New(v.Type().Elem())
	m, _ := to.Interface().(proto.Message)
	if err := proto.Unmarshal(data, m); err != nil {
		d.fail("%s: %v", v.Type(), err)
		return
	}
	v.Set(to)
}

func showProto(t reflect.Type) func(*decoder) node {
	return func(d *decoder) node {
		v := reflect.New(t).Elem()
		decodeProto(d, v)
		if v.IsNil() {
			return node{text: "nil", zero: true}
		}
		m, _ := v.Interface().(proto.Message)
		return showMessage(m.ProtoReflect())
	}
}

// showMessage shows what is set of a message, in the order of the field numbers.
func showMessage(m protoreflect.Message) node {
	out := node{text: string(m.Descriptor().Name()) + "{", end: "}"}
	var set []protoreflect.FieldDescriptor
	m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		set = append(set, f)
		return true
	})
	slices.SortFunc(set, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.Number(), b.Number()) })
	for _, f := range set {
		v := m.Get(f)
		switch {
		case f.IsList():
			list := node{text: "[", end: "]"}
			for i := range v.List().Len() {
				list.add("", showField(f, v.List().Get(i)))
			}
			out.add(string(f.Name()), list)
		case f.IsMap():
			entries := node{text: "{", end: "}"}
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				entries.add(k.String(), showField(f.MapValue(), v))
				return true
			})
			slices.SortFunc(entries.parts, func(a, b part) int { return cmp.Compare(a.name, b.name) })
			out.add(string(f.Name()), entries)
		default:
			out.add(string(f.Name()), showField(f, v))
		}
	}
	return out
}

func showField(f protoreflect.FieldDescriptor, v protoreflect.Value) node {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return showMessage(v.Message())
	case protoreflect.EnumKind:
		if value := f.Enum().Values().ByNumber(v.Enum()); value != nil {
			return node{text: string(value.Name())}
		}
		return node{text: fmt.Sprint(v.Enum())}
	case protoreflect.BytesKind:
		return node{text: fmt.Sprintf("%x", v.Bytes())}
	case protoreflect.StringKind:
		return node{text: fmt.Sprintf("%q", v.String())}
	default:
		return node{text: v.String()}
	}
}
