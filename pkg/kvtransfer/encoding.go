package kvtransfer

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/int8kv"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// codings are the encodings that one side speaks besides the native one.
type codings map[kvtransferv1.Encoding]wire.Coding

// newCoding is nil for the native encoding, and an error for one that there is not
// for pages of this layout.
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

// newCodings are all encodings that pages of a layout can be sent in.
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

// of is the coding of an encoding, nil for the native one.
func (c codings) of(e kvtransferv1.Encoding) wire.Coding { return c[e] }

// choose gives what a sender uses where a ticket asks for an encoding, and the size
// of one slice in it, 0 for that of the pages.
func (c codings) choose(asked kvtransferv1.Encoding) (e kvtransferv1.Encoding, sliceBytes int) {
	coding := c[asked]
	if coding == nil {
		return kvtransferv1.Encoding_ENCODING_NATIVE, 0
	}
	return asked, coding.EncodedBytes()
}
