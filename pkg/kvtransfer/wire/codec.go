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

// maxMessageBytes bounds messages other than chunks, which protobuf decodes to more than
// their size on the wire.
const maxMessageBytes = 1 << 20

// MaxNameBytes bounds sender names, request ids and trace parents.
const MaxNameBytes = 256

// errMalformed means that a message is not valid protobuf of its type, or out of bounds.
var errMalformed = errors.New("a malformed message")

// Codec returns grpc-go's protobuf codec, extended by *Outbound, *Inbound and *Incoming. It
// is safe for concurrent use and has its own buffers.
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
	if !is {
		return c.CodecV2.Marshal(v)
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
	switch in := v.(type) {
	case *Inbound:
		return in.unmarshal(data, &c.pool)
	case *Incoming:
		in.Malformed = in.unmarshal(data, &c.pool)
		return nil
	default:
		return c.CodecV2.Unmarshal(data, v)
	}
}

// unmarshal decodes a message. After an error, Free releases what was decoded.
func (in *Inbound) unmarshal(data mem.BufferSlice, p *pool) error {
	in.Free()
	in.pool = p
	isChunk, err := in.decode(data)
	if isChunk || err != nil {
		return err
	}
	if data.Len() > maxMessageBytes {
		return fmt.Errorf("%w: %d bytes, but it is not a chunk", errMalformed, data.Len())
	}
	in.Message = new(kvtransferv1.SenderMessage)
	if err := protobuf.Unmarshal(data.Materialize(), in.Message); err != nil {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return checkNames(in.Message)
}

// checkNames bounds the strings that receivers store.
func checkNames(m *kvtransferv1.SenderMessage) error {
	for _, name := range []string{m.GetHello().GetSender(), m.GetOpen().GetRequestId(), m.GetOpen().GetTraceparent()} {
		if len(name) > MaxNameBytes {
			return fmt.Errorf("%w: a name of %d bytes, more than the limit of %d", errMalformed, len(name), MaxNameBytes)
		}
	}
	return nil
}
