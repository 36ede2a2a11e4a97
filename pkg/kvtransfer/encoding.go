package kvtransfer

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/int8kv"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// codings maps the encodings that one side supports, besides the native one, to their
// codings.
type codings map[kvtransferv1.Encoding]wire.Coding

// newCoding returns nil for the native encoding, and an error for an encoding that does not
// support the layout.
func newCoding(e kvtransferv1.Encoding, layout kvcache.Layout) (wire.Coding, error) {
	switch e {
	case kvtransferv1.Encoding_ENCODING_UNSPECIFIED, kvtransferv1.Encoding_ENCODING_NATIVE:
		return nil, nil
	case kvtransferv1.Encoding_ENCODING_INT8:
		coding, err := int8kv.New(layout)
		if err != nil {
			return nil, fmt.Errorf("encoding int8: %w", err)
		}
		return coding, nil
	default:
		return nil, fmt.Errorf("encoding %v is unknown", e)
	}
}

// newCodings returns all codings that support the layout.
func newCodings(layout kvcache.Layout) codings {
	all := codings{}
	for number := range kvtransferv1.Encoding_name {
		e := kvtransferv1.Encoding(number)
		if coding, err := newCoding(e, layout); err == nil && coding != nil {
			all[e] = coding
		}
	}
	return all
}

// choose returns the encoding a sender uses when a ticket asks for one, and the bytes of an
// encoded slice, 0 for native.
func (c codings) choose(asked kvtransferv1.Encoding) (e kvtransferv1.Encoding, sliceBytes int) {
	coding := c[asked]
	if coding == nil {
		return kvtransferv1.Encoding_ENCODING_NATIVE, 0
	}
	return asked, coding.EncodedBytes()
}
