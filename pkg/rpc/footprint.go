package rpc

import (
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What values take in memory once they are decoded, about, in bytes.
const (
	// valueBytes is a message inside a message: its struct, its place in a list or a
	// map, and what the service makes of it. A null of google.protobuf.ListValue has
	// 4 bytes on the wire, and takes 90 decoded and 40 more as a value of Go.
	valueBytes = 160
	// textBytes is a string beside its bytes, and numberBytes a token in a list.
	textBytes, numberBytes = 24, 4
)

// footprint is about how much memory a message takes once it is decoded. It is
// looked at before that: a google.protobuf.Struct takes up to forty times its length.
// Beyond most, or deeper than maxNesting, it stops counting, and names the field.
func footprint(b []byte, message protoreflect.MessageDescriptor, most int) (bytes int, field string) {
	f := footprints{most: most}
	f.add(b, message, 0)
	if f.bytes > most {
		return f.bytes, f.field
	}
	return f.bytes, ""
}

type footprints struct {
	bytes, most int
	field       string // of the top, in which most was exceeded
}

func (f *footprints) add(b []byte, message protoreflect.MessageDescriptor, nesting int) {
	if nesting > maxNesting {
		f.bytes = f.most + 1
		return
	}
	f.bytes += valueBytes
	fields := message.Fields()
	for len(b) > 0 && f.bytes <= f.most {
		number, wireType, n := protowire.ConsumeTag(b)
		if n < 0 {
			return // the decoder says so
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, wireType, b); n < 0 {
			return
		}
		value := b[:n]
		b = b[n:]
		field := fields.ByNumber(number)
		switch {
		case field == nil:
			f.bytes += n + 8 // it is kept as it came
		case wireType != protowire.BytesType:
			f.bytes += numberBytes
		case field.Kind() == protoreflect.MessageKind:
			payload, _ := protowire.ConsumeBytes(value)
			f.add(payload, field.Message(), nesting+1)
		case field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind:
			f.bytes += n + textBytes
		default:
			f.bytes += n * numberBytes // packed: a byte each, at least
		}
		if nesting == 0 && f.bytes > f.most && field != nil {
			f.field = string(field.Name())
		}
	}
}
