package wire

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// maxMessageBytes is the largest message that is not a chunk: protobuf's own code
// makes more of it than it is on the wire.
const maxMessageBytes = 1 << 20

// errMalformed is a message that is no protobuf of its kind, or out of bounds.
var errMalformed = errors.New("a malformed message")

// Codec is grpc-go's codec for protobuf, and takes *Outbound and *Inbound besides.
// It is safe for concurrent use, and has buffers of its own.
func Codec() encoding.CodecV2 {
	return &codec{CodecV2: encoding.GetCodecV2(proto.Name)}
}

type codec struct {
	encoding.CodecV2
	pool pool
}

// Marshal implements encoding.CodecV2.
func (c *codec) Marshal(v any) (mem.BufferSlice, error) {
	out, is := v.(*Outbound)
	switch {
	case !is:
		return c.CodecV2.Marshal(v)
	case out.Message != nil:
		return c.CodecV2.Marshal(out.Message)
	}
	b, err := out.encode(&c.pool)
	if out.Released != nil {
		out.Released(err)
	}
	if err != nil {
		return nil, err
	}
	return b.message(), nil
}

// Unmarshal implements encoding.CodecV2.
func (c *codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, is := v.(*Inbound)
	if !is {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.Free()
	in.pool = &c.pool
	if err := in.unmarshal(data); err != nil {
		in.Free()
		in.Malformed = err
		return err
	}
	return nil
}

func (in *Inbound) unmarshal(data mem.BufferSlice) error {
	isChunk, err := in.decode(data)
	if isChunk || err != nil {
		return err
	}
	if data.Len() > maxMessageBytes {
		return fmt.Errorf("%w: %d bytes, and no chunk", errMalformed, data.Len())
	}
	in.Message = new(kvtransferv1.SenderMessage)
	if err := protobuf.Unmarshal(data.Materialize(), in.Message); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return nil
}
