package eventlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"unsafe"
)

func (c *Codec) planPointer(p *plan) error {
	of, err := c.plan(p.t.Elem())
	if err != nil {
		return err
	}
	p.description = "*" + of.name
	if of.live != nil {
		p.live = func(c *Core, v reflect.Value) reflect.Value {
			if v.IsNil() {
				return v
			}
			to := reflect.New(of.t)
			to.Elem().Set(of.given(c, v.Elem()))
			return to
		}
	}
	p.encode = func(e *encoder, v reflect.Value) {
		e.bool(!v.IsNil())
		if !v.IsNil() {
			of.encode(e, v.Elem())
		}
	}
	p.decode = func(d *decoder, v reflect.Value) {
		if d.bool() && d.enter() {
			to := reflect.New(of.t)
			of.decode(d, to.Elem())
			v.Set(to)
			d.depth--
		}
	}
	p.show = func(d *decoder) node {
		if !d.bool() || !d.enter() {
			return node{text: "nil", zero: true}
		}
		n := of.show(d)
		d.depth--
		n.text, n.zero = "&"+n.text, false
		return n
	}
	return nil
}

// longSlice is how many numbers a slice in an action may have before only their count and
// checksum are written: each step of a batch names every block and token of its sequences.
const longSlice = 32

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func isInteger(k reflect.Kind) bool { return k >= reflect.Int && k <= reflect.Uint64 }

func (c *Codec) planSlice(p *plan) error {
	of, err := c.plan(p.t.Elem())
	if err != nil {
		return err
	}
	p.description = "[]" + of.name
	if of.live != nil {
		p.live = func(c *Core, v reflect.Value) reflect.Value {
			if v.IsNil() {
				return v
			}
			s := reflect.MakeSlice(p.t, v.Len(), v.Len())
			for i := range v.Len() {
				s.Index(i).Set(of.given(c, v.Index(i)))
			}
			return s
		}
	}
	// No length is told by nil alone, which the cores keep apart from an empty slice.
	if of.t.Kind() == reflect.Uint8 {
		p.encode = func(e *encoder, v reflect.Value) {
			e.length(v)
			e.buf = append(e.buf, v.Bytes()...)
		}
		p.decode = func(d *decoder, v reflect.Value) {
			if n, is := d.length(); is {
				v.SetBytes(bytes.Clone(d.bytes(n)))
			}
		}
		p.show = p.leaf
		return nil
	}
	numbers := isInteger(of.t.Kind())
	p.encode = func(e *encoder, v reflect.Value) {
		e.length(v)
		n := v.Len()
		if e.action && numbers && n > longSlice {
			memory := unsafe.Slice((*byte)(v.UnsafePointer()), n*int(of.t.Size()))
			e.buf = binary.LittleEndian.AppendUint32(e.buf, crc32.Checksum(memory, castagnoli))
			return
		}
		for i := range n {
			of.encode(e, v.Index(i))
		}
	}
	p.decode = func(d *decoder, v reflect.Value) {
		n, is := d.length()
		switch {
		case !is:
			return
		case d.action && numbers && n > longSlice:
			d.bytes(4) // nothing else is known
			return
		}
		s := reflect.MakeSlice(p.t, min(n, 1024), min(n, 1024))
		for i := 0; i < n && d.err == nil; i++ {
			if i == s.Len() {
				s = reflect.AppendSlice(s, reflect.MakeSlice(p.t, min(n-i, i), min(n-i, i)))
			}
			of.decode(d, s.Index(i))
		}
		v.Set(s)
	}
	p.show = func(d *decoder) node {
		n, is := d.length()
		switch {
		case !is:
			return node{text: "nil", zero: true}
		case d.action && numbers && n > longSlice:
			return node{text: fmt.Sprintf("(%d numbers with checksum %08x)", n, binary.LittleEndian.Uint32(d.bytes(4)))}
		}
		out := node{text: "[", end: "]"}
		for i := 0; i < n && d.err == nil; i++ {
			out.add("", of.show(d))
		}
		return out
	}
	return nil
}

func (c *Codec) planArray(p *plan) error {
	of, err := c.plan(p.t.Elem())
	if err != nil {
		return err
	}
	p.description = fmt.Sprintf("[%d]%s", p.t.Len(), of.name)
	if of.live != nil {
		p.live = func(c *Core, v reflect.Value) reflect.Value {
			a := reflect.New(p.t).Elem()
			for i := range v.Len() {
				a.Index(i).Set(of.given(c, v.Index(i)))
			}
			return a
		}
	}
	if of.t.Kind() == reflect.Uint8 {
		p.encode = func(e *encoder, v reflect.Value) {
			if v.CanAddr() {
				e.buf = append(e.buf, v.Bytes()...)
				return
			}
			for i := range v.Len() {
				e.buf = append(e.buf, byte(v.Index(i).Uint()))
			}
		}
		p.decode = func(d *decoder, v reflect.Value) { copy(v.Bytes(), d.bytes(p.t.Len())) }
		p.show = func(d *decoder) node {
			return node{text: fmt.Sprintf("%x", d.bytes(p.t.Len()))}
		}
		return nil
	}
	p.encode = func(e *encoder, v reflect.Value) {
		for i := range v.Len() {
			of.encode(e, v.Index(i))
		}
	}
	p.decode = func(d *decoder, v reflect.Value) {
		for i := 0; i < v.Len() && d.err == nil; i++ {
			of.decode(d, v.Index(i))
		}
	}
	p.show = func(d *decoder) node {
		out := node{text: "[", end: "]"}
		for i := 0; i < p.t.Len() && d.err == nil; i++ {
			out.add("", of.show(d))
		}
		return out
	}
	return nil
}

func (c *Codec) planMap(p *plan) error {
	key, err := c.plan(p.t.Key())
	if err != nil {
		return err
	}
	value, err := c.plan(p.t.Elem())
	if err != nil {
		return err
	}
	p.description = "map[" + key.name + "]" + value.name
	type entry struct {
		written    []byte
		key, value reflect.Value
	}
	sorted := func(e *encoder, v reflect.Value) []entry {
		entries := make([]entry, 0, v.Len())
		for i := v.MapRange(); i.Next(); {
			at := len(e.buf)
			key.encode(e, i.Key())
			entries = append(entries, entry{bytes.Clone(e.buf[at:]), i.Key(), i.Value()})
			e.buf = e.buf[:at]
		}
		slices.SortFunc(entries, func(a, b entry) int { return bytes.Compare(a.written, b.written) })
		return entries
	}
	p.encode = func(e *encoder, v reflect.Value) {
		e.length(v)
		for _, entry := range sorted(e, v) {
			e.buf = append(e.buf, entry.written...)
			value.encode(e, entry.value)
		}
	}
	if key.live != nil || value.live != nil {
		p.live = func(c *Core, v reflect.Value) reflect.Value {
			if v.IsNil() {
				return v
			}
			m := reflect.MakeMapWithSize(p.t, v.Len())
			for _, entry := range sorted(&encoder{base: c.e.base}, v) { // the order of the functions' numbers
				m.SetMapIndex(key.given(c, entry.key), value.given(c, entry.value))
			}
			return m
		}
	}
	p.decode = func(d *decoder, v reflect.Value) {
		n, is := d.length()
		if !is {
			return
		}
		m := reflect.MakeMap(p.t)
		for i := 0; i < n && d.err == nil; i++ {
			k, x := reflect.New(key.t).Elem(), reflect.New(value.t).Elem()
			key.decode(d, k)
			value.decode(d, x)
			if d.err == nil {
				m.SetMapIndex(k, x)
			}
		}
		v.Set(m)
	}
	p.show = func(d *decoder) node {
		n, is := d.length()
		if !is {
			return node{text: "nil", zero: true}
		}
		out := node{text: "{", end: "}"}
		for i := 0; i < n && d.err == nil; i++ {
			k := key.show(d)
			out.add(k.line(), value.show(d))
		}
		return out
	}
	return nil
}

func (c *Codec) planStruct(p *plan) error {
	type field struct {
		*plan
		name  string
		index int
	}
	var fields []field
	unlike := false
	p.description = "struct"
	for i := range p.t.NumField() {
		f := p.t.Field(i)
		if slices.Contains(c.without[p.t], f.Name) {
			continue
		}
		if !f.IsExported() {
			return fmt.Errorf("type %s has the unexported field %s and cannot be written: give it AppendBinary and UnmarshalBinary", p.name, f.Name)
		}
		of, err := c.plan(f.Type)
		if err != nil {
			return fmt.Errorf("field %s of %s: %w", f.Name, p.name, err)
		}
		fields = append(fields, field{of, f.Name, i})
		unlike = unlike || of.live != nil
		p.description += " " + f.Name + ":" + of.name
	}
	p.encode = func(e *encoder, v reflect.Value) {
		for i := range fields {
			fields[i].encode(e, v.Field(fields[i].index))
		}
	}
	if unlike {
		p.live = func(c *Core, v reflect.Value) reflect.Value {
			to := reflect.New(p.t).Elem()
			to.Set(v)
			for _, f := range fields {
				to.Field(f.index).Set(f.given(c, v.Field(f.index)))
			}
			return to
		}
	}
	p.decode = func(d *decoder, v reflect.Value) {
		for i := range fields {
			if d.err == nil {
				fields[i].decode(d, v.Field(fields[i].index))
			}
		}
	}
	p.show = func(d *decoder) node {
		out := node{text: p.name + "{", end: "}", zero: true}
		for _, f := range fields {
			if n := f.show(d); !n.zero {
				out.zero = false
				out.add(f.name, n)
			}
		}
		return out
	}
	return nil
}
