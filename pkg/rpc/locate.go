package rpc

import (
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Problems that a message on the wire can have.
const (
	problemUTF8      = "is not valid UTF-8: send text as UTF-8"
	problemMalformed = "is not valid protobuf: check that both sides use the same .proto files"
)

// maxNesting is how deep locate follows messages inside messages.
const maxNesting = 100

// locate names the first field that makes the bytes undecodable as a message of
// this type, as a path like "sampling.top_p" or "stop[2]", and says what is
// wrong with it. The path is the message's own, or "" at the top, if what is
// wrong is not inside a known field. ok is false if nothing was found.
//
// protobuf-go knows neither: the fast path of generated code says "string field
// contains invalid UTF-8" and no more. So the bytes are walked a second time,
// only after they failed.
func locate(b []byte, message protoreflect.MessageDescriptor, path string, nesting int) (field, problem string, ok bool) {
	if nesting > maxNesting {
		return path, "is nested too deep", true
	}
	seen := map[protowire.Number]int{} // elements of repeated fields so far
	for len(b) > 0 {
		number, wireType, n := protowire.ConsumeTag(b)
		if n < 0 {
			return path, problemMalformed, true
		}
		b = b[n:]
		descriptor := message.Fields().ByNumber(number)
		name := path
		if descriptor != nil {
			name = join(path, descriptor, seen[number])
			seen[number]++
		}
		n = protowire.ConsumeFieldValue(number, wireType, b)
		if n < 0 {
			return name, problemMalformed, true
		}
		if descriptor != nil {
			if field, problem, ok := locateIn(b[:n], wireType, descriptor, name, nesting); ok {
				return field, problem, true
			}
		}
		b = b[n:]
	}
	return "", "", false
}

// locateIn looks at one value of a known field. A value of another wire type
// than the field's is kept as unknown by the decoder and is no error.
func locateIn(value []byte, wireType protowire.Type, descriptor protoreflect.FieldDescriptor, name string, nesting int) (string, string, bool) {
	if wireType != protowire.BytesType {
		return "", "", false
	}
	payload, n := protowire.ConsumeBytes(value)
	if n < 0 {
		return name, problemMalformed, true
	}
	switch kind := descriptor.Kind(); kind {
	case protoreflect.StringKind:
		if !utf8.Valid(payload) {
			return name, problemUTF8, true
		}
	case protoreflect.MessageKind:
		return locate(payload, descriptor.Message(), name, nesting+1)
	case protoreflect.BytesKind, protoreflect.GroupKind:
	default: // a packed list of numbers
		if descriptor.IsList() && !packedIsValid(payload, kind) {
			return name, problemMalformed, true
		}
	}
	return "", "", false
}

// packedIsValid says whether the payload is whole numbers of a kind.
func packedIsValid(payload []byte, kind protoreflect.Kind) bool {
	switch kind {
	case protoreflect.Fixed32Kind, protoreflect.Sfixed32Kind, protoreflect.FloatKind:
		return len(payload)%4 == 0
	case protoreflect.Fixed64Kind, protoreflect.Sfixed64Kind, protoreflect.DoubleKind:
		return len(payload)%8 == 0
	}
	for len(payload) > 0 {
		_, n := protowire.ConsumeVarint(payload)
		if n < 0 {
			return false
		}
		payload = payload[n:]
	}
	return true
}

// join appends a field to a path.
func join(path string, descriptor protoreflect.FieldDescriptor, index int) string {
	name := string(descriptor.Name())
	if path != "" {
		name = path + "." + name
	}
	if descriptor.IsList() && (descriptor.Kind() == protoreflect.StringKind || descriptor.Kind() == protoreflect.MessageKind) {
		name = fmt.Sprintf("%s[%d]", name, index)
	}
	return name
}
