package rpc

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	middleware "github.com/grpc-ecosystem/go-grpc-middleware/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	protobuf "google.golang.org/protobuf/proto"
)

// wholeMessage is the field named when none inside the message can be.
const wholeMessage = "request"

// decoding stands in for a message while grpc-go receives it. grpc-go calls every message
// that does not decode INTERNAL, so failures that are the caller's go past it in here.
type decoding struct {
	message any
	// field and problem are set if the message was not decoded.
	field, problem string
	call           *meteredCall // learns what the message takes; nil: nobody does
}

// sending stands in for a message while grpc-go sends it, so that its length is
// known to the call.
type sending struct {
	message any
	call    *meteredCall
}

// codec decodes by another codec and, when that fails, finds out why.
type codec struct {
	encoding.CodecV2
	maxReceiveBytes int
}

// newCodec wraps a codec, or the one that grpc-go has for protobuf.
func newCodec(inner encoding.CodecV2, maxReceiveBytes int) codec {
	return codec{CodecV2: cmp.Or(inner, encoding.GetCodecV2(proto.Name)), maxReceiveBytes: maxReceiveBytes}
}

// Encoded is a message that encodes itself, for SendMsg of a server's stream: protobuf's way
// through reflection takes longer than all the rest for a message of a few bytes.
type Encoded interface {
	// AppendTo appends the message to b.
	AppendTo(b []byte) []byte
	// Size is how long it is at most.
	Size() int
}

// Marshal encodes v, a message or a *sending of one.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	s, ok := v.(*sending)
	if !ok {
		return c.encode(v)
	}
	data, err := c.encode(s.message)
	if err == nil {
		s.call.queued(data.Len())
	}
	return data, err
}

func (c codec) encode(message any) (mem.BufferSlice, error) {
	if e, ok := message.(Encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(e.AppendTo(make([]byte, 0, e.Size())))}, nil
	}
	return c.CodecV2.Marshal(message)
}

// Unmarshal decodes data into v, a message or a *decoding of one. The latter
// gets failures, too.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	d, ok := v.(*decoding)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if data.Len() > c.maxReceiveBytes {
		d.field, d.problem = wholeMessage, problemOversize
		return nil
	}
	message, ok := d.message.(protobuf.Message)
	if d.call != nil && ok {
		buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buffer.Free()
		data = mem.BufferSlice{buffer}
		takes, field := footprint(buffer.ReadOnlyData(), message.ProtoReflect().Descriptor(), c.maxReceiveBytes*footprintFactor)
		if takes > c.maxReceiveBytes*footprintFactor {
			d.field, d.problem = cmp.Or(field, wholeMessage), problemFootprint
			return nil
		}
		d.call.tookIn(buffer.Len(), takes)
	}
	if c.CodecV2.Unmarshal(data, d.message) == nil {
		return nil
	}
	d.field, d.problem = wholeMessage, problemMalformed
	if ok {
		field, problem, found := locate(data.Materialize(), message.ProtoReflect().Descriptor(), "", 0)
		if found {
			d.problem = problem
		}
		if found && field != "" {
			d.field = field
		}
	}
	return nil
}

// problemOversize marks a message over the limit.
const problemOversize = "oversize"

// footprintFactor is how many times the largest message a message may take once it is
// decoded. Text takes its length, lists of the smallest numbers four times theirs.
const footprintFactor = 4

// problemFootprint is of a message with too many values, or too deep ones.
const problemFootprint = "has too many values, or values nested too deeply: send fewer"

// decoder turns messages that do not decode into INVALID_ARGUMENT.
type decoder struct {
	maxReceiveBytes int
	oversizeFields  map[string]string
}

// receive receives the message of wrapped by grpc-go's own function.
func (d *decoder) receive(call *meteredCall, fullMethod string, wrapped *decoding, receive func(any) error) error {
	var err error
	if wrapped.call = call; call.isFirst() {
		wrapped = &decoding{message: wrapped.message, call: call} // it may outlast this
		err = call.first(func() error { return receive(wrapped) })
	} else {
		err = receive(wrapped)
	}
	if err != nil {
		return cmp.Or(call.why(), err)
	}
	switch {
	case wrapped.field == "":
		return nil
	case wrapped.problem == problemOversize:
		field := cmp.Or(d.oversizeFields[fullMethod], wholeMessage)
		return InvalidArgument(field, fmt.Sprintf("the message is over %d bytes: send less", d.maxReceiveBytes))
	}
	return InvalidArgument(wrapped.field, wrapped.problem)
}

// unread stands in for the request of a unary call while that passes the interceptors: its message
// is received behind them, from those alone who may call.
type unread struct {
	message any // nil: it was not received
}

// wrapUnary returns a description of the same service whose unary methods receive their requests
// behind the interceptors, which get an *unread.
func (d *decoder) wrapUnary(description *grpc.ServiceDesc) *grpc.ServiceDesc {
	wrapped := *description
	wrapped.Methods = make([]grpc.MethodDesc, len(description.Methods))
	for i, method := range description.Methods {
		fullMethod := "/" + description.ServiceName + "/" + method.MethodName
		handle := method.Handler
		method.Handler = func(server any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			call, request := callOf(ctx), &unread{}
			info := &grpc.UnaryServerInfo{Server: server, FullMethod: fullMethod}
			reply, err := interceptor(ctx, request, info, func(ctx context.Context, _ any) (any, error) {
				return handle(server, ctx, func(message any) error {
					err := d.receive(call, fullMethod, &decoding{message: message}, decode)
					if err == nil {
						request.message = message
					}
					return err
				}, nil)
			})
			if call != nil && err == nil {
				reply = &sending{reply, call}
			}
			return reply, err
		}
		wrapped.Methods[i] = method
	}
	return &wrapped
}

// isInfrastructure matches health checks and reflection.
func isInfrastructure(fullMethod string) bool {
	return isHealth(fullMethod) || strings.HasPrefix(fullMethod, "/grpc.reflection.")
}

// isHealth matches health checks.
func isHealth(fullMethod string) bool {
	return strings.HasPrefix(fullMethod, "/grpc.health.v1.Health/")
}

// endingStream ends its handler's context, and what the handler waits to
// receive, when the server stops: a health watch or a reflection session would
// otherwise keep a graceful stop from its end.
type endingStream struct {
	*middleware.WrappedServerStream
}

// RecvMsg receives a message. When it returns early, the receive that is left
// ends with the stream, which ends with the handler.
func (s *endingStream) RecvMsg(message any) error {
	received := make(chan error, 1)
	go func() { received <- s.WrappedServerStream.RecvMsg(message) }()
	select {
	case err := <-received:
		return err
	case <-s.Context().Done():
		return status.FromContextError(s.Context().Err()).Err()
	}
}
