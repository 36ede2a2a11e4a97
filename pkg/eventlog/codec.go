package eventlog

import (
	"encoding"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"path"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
)

// Codec writes values of a fixed set of types so that equal values give equal bytes, and
// reads them. It is safe for concurrent use.
//
// Structs are written by their fields, all of which have to be exported; types with unexported
// ones need encoding.BinaryAppender and BinaryUnmarshaler. Maps are written in the order of
// their keys, protobuf messages by their deterministic form, times to the nanosecond. Of a
// function, only whether there is one is written: see Core.
type Codec struct {
	plans      map[reflect.Type]*plan
	registered []*plan
	ids        map[reflect.Type]uint64
	without    map[reflect.Type][]string
	schema     uint64
}

// Codecs are those of the cores of each kind.
type Codecs map[string]*Codec

// Omission leaves fields of a struct out, which are then read as zeros: see Without. The core that
// is recorded gets them.
type Omission struct {
	of     reflect.Type
	fields []string
}

// Without has fields of S left out; it stands among the values for NewCodec.
func Without[S any](fields ...string) Omission { return Omission{reflect.TypeFor[S](), fields} }

// NewCodec returns a codec for the types of some values and what Without leaves out. They and no others may stand in
// fields of interface types, except that an error may be any: of one whose type is not among
// them, its text and its gRPC status are kept.
func NewCodec(values ...any) (*Codec, error) {
	c := &Codec{plans: make(map[reflect.Type]*plan), ids: make(map[reflect.Type]uint64), without: make(map[reflect.Type][]string)}
	for _, v := range values {
		if o, is := v.(Omission); is {
			c.without[o.of] = o.fields
		}
	}
	for _, v := range values {
		if _, is := v.(Omission); is {
			continue
		}
		t := reflect.TypeOf(v)
		p, err := c.plan(t)
		if err != nil {
			return nil, err
		}
		if _, is := c.ids[t]; is {
			return nil, fmt.Errorf("type %s is registered twice", p.name)
		}
		c.ids[t] = uint64(len(c.registered))
		c.registered = append(c.registered, p)
	}
	h := fnv.New64a()
	described := make([]string, 0, len(c.plans)+len(c.registered))
	for _, p := range c.plans {
		described = append(described, p.name+" "+p.description)
	}
	for id, p := range c.registered {
		described = append(described, fmt.Sprint(p.name, " is ", id))
	}
	slices.Sort(described)
	for _, d := range described {
		_, _ = h.Write([]byte(d + "\n")) // which does not fail
	}
	c.schema = h.Sum64()
	return c, nil
}

// plan is how one type is written and read.
type plan struct {
	t           reflect.Type
	name        string
	description string // with its fields' types: another one is written in another way

	encode func(e *encoder, v reflect.Value)
	// live makes what the core that is recorded gets of a value that was just written: see
	// Core.write. nil: the value itself.
	live func(c *Core, v reflect.Value) reflect.Value
	// decode sets v, which has the zero value.
	decode func(d *decoder, v reflect.Value)
	// show reads a value for people.
	show func(d *decoder) node
}

// given is what live makes of a value.
func (p *plan) given(c *Core, v reflect.Value) reflect.Value {
	if p.live == nil {
		return v
	}
	return p.live(c, v)
}

var (
	timeType  = reflect.TypeFor[time.Time]()
	errorType = reflect.TypeFor[error]()
	protoType = reflect.TypeFor[proto.Message]()
)

// typeName is a type's name with its package's.
func typeName(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return "*" + typeName(t.Elem())
	case t.Name() == "" || t.PkgPath() == "":
		return t.String()
	}
	return path.Base(t.PkgPath()) + "." + t.Name()
}

// plan is that of a type and of all that it consists of.
func (c *Codec) plan(t reflect.Type) (*plan, error) {
	if t == nil {
		return nil, errors.New("nil has no type")
	}
	if p := c.plans[t]; p != nil {
		return p, nil
	}
	p := &plan{t: t, name: typeName(t), description: t.Kind().String()}
	c.plans[t] = p // a type may contain itself, behind a pointer
	var err error
	switch {
	case t == timeType:
		p.encode, p.live, p.decode, p.show = encodeTime, liveTime, decodeTime, showTime
	case t.Implements(protoType):
		p.encode, p.decode, p.show = encodeProto, decodeProto, showProto(t)
	case t == errorType:
		p.encode, p.decode, p.show = c.encodeError, c.decodeError, c.showError
	case t.Implements(reflect.TypeFor[encoding.BinaryAppender]()) && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.BinaryUnmarshaler]()):
		p.encode, p.decode, p.show = encodeBinary, decodeBinary, showBinary(p)
	default:
		err = c.planKind(p)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *Codec) planKind(p *plan) error {
	switch t := p.t; t.Kind() {
	case reflect.Bool:
		p.encode = func(e *encoder, v reflect.Value) { e.bool(v.Bool()) }
		p.decode = func(d *decoder, v reflect.Value) { v.SetBool(d.bool()) }
		p.show = p.leaf
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.encode = func(e *encoder, v reflect.Value) { e.buf = binary.AppendVarint(e.buf, v.Int()) }
		p.decode = func(d *decoder, v reflect.Value) {
			x := d.varint()
			if v.OverflowInt(x) {
				d.fail("%d is too large for a %s", x, t)
				return
			}
			v.SetInt(x)
		}
		p.show = p.leaf
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		p.encode = func(e *encoder, v reflect.Value) { e.uvarint(v.Uint()) }
		p.decode = func(d *decoder, v reflect.Value) {
			x := d.uvarint()
			if v.OverflowUint(x) {
				d.fail("%d is too large for a %s", x, t)
				return
			}
			v.SetUint(x)
		}
		p.show = p.leaf
	case reflect.Float32, reflect.Float64:
		p.encode = func(e *encoder, v reflect.Value) {
			e.buf = binary.LittleEndian.AppendUint64(e.buf, math.Float64bits(v.Float()))
		}
		p.decode = func(d *decoder, v reflect.Value) {
			v.SetFloat(math.Float64frombits(binary.LittleEndian.Uint64(d.bytes(8))))
		}
		p.show = p.leaf
	case reflect.String:
		p.encode = func(e *encoder, v reflect.Value) { e.string(v.String()) }
		p.decode = func(d *decoder, v reflect.Value) { v.SetString(d.string()) }
		p.show = p.leaf
	case reflect.Pointer:
		return c.planPointer(p)
	case reflect.Slice:
		return c.planSlice(p)
	case reflect.Array:
		return c.planArray(p)
	case reflect.Map:
		return c.planMap(p)
	case reflect.Struct:
		return c.planStruct(p)
	case reflect.Func:
		return c.planFunc(p)
	case reflect.Interface:
		p.encode, p.live, p.decode, p.show = c.encodeInterface, c.liveInterface, c.decodeInterface, c.showInterface
	default:
		return fmt.Errorf("type %s cannot be written", t)
	}
	return nil
}

// Types are those that values of interfaces may have.
func (c *Codec) Types() (types []reflect.Type) {
	for _, p := range c.registered {
		types = append(types, p.t)
	}
	return types
}
