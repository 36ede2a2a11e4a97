package rpc

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tandem-serving/tandem/pkg/api"
)

// maxRequestID is the longest id taken from a caller, in bytes.
const maxRequestID = 128

type requestIDKey struct{}

// WithRequestID puts the id of a request into a context. Clients made by Dial
// send it on; servers log it. An id that ValidRequestID refuses is left out.
func WithRequestID(ctx context.Context, id string) context.Context {
	if !ValidRequestID(id) {
		return ctx
	}
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID is the id that WithRequestID or a server put into the context; else
// "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// NewID draws an id, or a secret: 128 bits in hexadecimal.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// ValidRequestID says whether an id may travel in headers and log lines: 1 to
// 128 printable ASCII characters without spaces.
func ValidRequestID(id string) bool {
	if len(id) == 0 || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// Suffixed is an id with a suffix. An id that would be too long then is cut.
func Suffixed(id, suffix string) string {
	return id[:min(len(id), maxRequestID-len(suffix))] + suffix
}

// incomingRequestID moves the caller's id into the context, or a new one if there is none.
func incomingRequestID(ctx context.Context) context.Context {
	if values := metadata.ValueFromIncomingContext(ctx, api.HeaderRequestID); len(values) > 0 && ValidRequestID(values[0]) {
		return WithRequestID(ctx, values[0])
	}
	return WithRequestID(ctx, NewID())
}

func contextUnaryServer(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(incomingTrace(incomingRequestID(ctx)), request)
}

// outgoingRequestID adds the id of the context to what is sent, unless the
// caller has put one there.
func outgoingRequestID(ctx context.Context) context.Context {
	id := RequestID(ctx)
	if id == "" {
		return ctx
	}
	if sent, ok := metadata.FromOutgoingContext(ctx); ok && len(sent.Get(api.HeaderRequestID)) > 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, api.HeaderRequestID, id)
}

func contextUnaryClient(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoker grpc.UnaryInvoker, options ...grpc.CallOption) error {
	return invoker(outgoingTrace(outgoingRequestID(ctx)), method, request, reply, conn, options...)
}

func contextStreamClient(ctx context.Context, description *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	return streamer(outgoingTrace(outgoingRequestID(ctx)), description, conn, method, options...)
}
