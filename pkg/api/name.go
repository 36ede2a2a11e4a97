package api

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// enum is any enum of proto.
type enum interface {
	~int32
	protoreflect.Enum
}

// Name is the word for a value of an enum: its name in the proto file in lower case,
// without the enum's own, like "prefill" of ROLE_PREFILL. A number that the enum
// does not have is written in digits.
func Name[E enum](value E) string {
	values := value.Descriptor().Values()
	v := values.ByNumber(value.Number())
	if v == nil {
		return strconv.Itoa(int(value))
	}
	return word(values, v)
}

// Names are the words for all values of an enum but UNSPECIFIED, in their order.
func Names[E enum]() []string {
	values := E(0).Descriptor().Values()
	names := make([]string, 0, values.Len())
	for i := 1; i < values.Len(); i++ {
		names = append(names, word(values, values.Get(i)))
	}
	return names
}

// Parse is the value that Name gives this word, if it is one of Names.
func Parse[E enum](name string) (value E, ok bool) {
	values := value.Descriptor().Values()
	for i := 1; i < values.Len(); i++ {
		if v := values.Get(i); word(values, v) == name {
			return E(v.Number()), true
		}
	}
	return 0, false
}

// word takes the enum's prefix from the first value, which is PREFIX_UNSPECIFIED.
func word(values protoreflect.EnumValueDescriptors, v protoreflect.EnumValueDescriptor) string {
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}
