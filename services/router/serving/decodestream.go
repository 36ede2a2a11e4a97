package serving

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// decodeStream is the client's end of a decode stream. Nearly all that comes are tokens without
// log probabilities: those it decodes itself, into the same memory again and again.
type decodeStream struct {
	stream grpc.ClientStream
	event  decodeEvent
}

// openDecodeStream opens one. With keep, what it receives is never used again.
func openDecodeStream(ctx context.Context, conn *grpc.ClientConn, request *workerv1.DecodeRequest, keep bool) (*decodeStream, error) {
	codec := decodeCodec{encoding.GetCodecV2(encodingproto.Name)}
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Run", ServerStreams: true}, workerv1.Decode_Run_FullMethodName, grpc.StaticMethod(), grpc.ForceCodecV2(codec))
	if err != nil {
		return nil, err
	}
	if err := stream.SendMsg(request); err != nil && !errors.Is(err, io.EOF) { // then receiving says why
		return nil, err
	}
	if err := stream.CloseSend(); err != nil {
		return nil, err
	}
	return &decodeStream{stream: stream, event: decodeEvent{keep: keep}}, nil
}

// receive returns the next event, which is valid until the next call unless it is to be kept.
// Log probabilities in it may be kept in any case.
func (s *decodeStream) receive() (*workerv1.DecodeEvent, error) {
	if err := s.stream.RecvMsg(&s.event); err != nil {
		return nil, err
	}
	return s.event.message, nil
}

// decodeEvent is where a decodeCodec puts events.
type decodeEvent struct {
	message *workerv1.DecodeEvent // the last that came
	keep    bool                  // each is new

	tokens    *workerv1.DecodeEvent // reused for every event with tokens
	tokenList *workerv1.Tokens      // the message in tokens
}

// decodeCodec is another codec that reads a *decodeEvent by hand where it can.
type decodeCodec struct{ encoding.CodecV2 }

// Unmarshal decodes data into v, a message or a *decodeEvent.
func (c decodeCodec) Unmarshal(data mem.BufferSlice, v any) error {
	e, is := v.(*decodeEvent)
	if !is {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return e.read(buffer.ReadOnlyData())
}

// read decodes one event.
func (e *decodeEvent) read(b []byte) error {
	if !e.keep && e.readTokens(b) {
		e.message = e.tokens
		return nil
	}
	e.message = new(workerv1.DecodeEvent)
	return proto.Unmarshal(b, e.message)
}

// Fields of the messages that readTokens reads.
const (
	eventTokensField  = 3 // of DecodeEvent
	tokensOffsetField = 1 // of Tokens
	tokensIDsField    = 2
)

// readTokens reads an event that is nothing but an offset and packed tokens, each once and in
// this order, as protobuf writes it. It reports whether it was that.
func (e *decodeEvent) readTokens(b []byte) bool {
	number, wire, n := protowire.ConsumeTag(b)
	if n < 0 || number != eventTokensField || wire != protowire.BytesType {
		return false
	}
	fields, m := protowire.ConsumeBytes(b[n:])
	if m < 0 || n+m != len(b) {
		return false
	}
	offset := uint64(0)
	number, wire, n = protowire.ConsumeTag(fields)
	if n >= 0 && number == tokensOffsetField && wire == protowire.VarintType {
		if offset, m = protowire.ConsumeVarint(fields[n:]); m < 0 {
			return false
		}
		fields = fields[n+m:]
		number, wire, n = protowire.ConsumeTag(fields)
	}
	if n < 0 || number != tokensIDsField || wire != protowire.BytesType {
		return false
	}
	ids, m := protowire.ConsumeBytes(fields[n:])
	if m < 0 || n+m != len(fields) {
		return false
	}
	if e.tokens == nil {
		e.tokenList = new(workerv1.Tokens)
		e.tokens = &workerv1.DecodeEvent{Event: &workerv1.DecodeEvent_Tokens{Tokens: e.tokenList}}
	}
	e.tokenList.Offset, e.tokenList.TokenIds = uint32(offset), e.tokenList.TokenIds[:0]
	for len(ids) > 0 {
		id, m := protowire.ConsumeVarint(ids)
		if m < 0 {
			return false
		}
		e.tokenList.TokenIds = append(e.tokenList.TokenIds, uint32(id))
		ids = ids[m:]
	}
	return true
}
