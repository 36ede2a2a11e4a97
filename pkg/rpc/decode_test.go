package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// bytesCodec sends and receives bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (bytesCodec) Name() string { return "proto" }

// callRaw sends bytes as the request of a method that takes one, and returns the
// error of the call.
func callRaw(t *testing.T, conn *grpc.ClientConn, method string, request []byte) error {
	t.Helper()
	description := &grpc.StreamDesc{ServerStreams: method == generateMethod}
	stream, err := conn.NewStream(t.Context(), description, method, grpc.ForceCodecV2(bytesCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(&request); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		var reply []byte
		if err := stream.RecvMsg(&reply); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// text is a string field on the wire.
func text(number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(nil, number, protowire.BytesType), value)
}

func TestUndecodableRequests(t *testing.T) {
	output := &log{}
	_, conn := serve(t, &inference{}, rpc.ServerConfig{
		Logger:         output.logger(),
		OversizeFields: map[string]string{generateMethod: "prompt", tokenizeMethod: "text"},
	}, rpc.ClientConfig{})
	valid, err := proto.Marshal(&inferencev1.GenerateRequest{Stop: []string{"a", "b"}, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	ids := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), []byte{1, 2, 0xff})
	oversize := text(2, strings.Repeat("a", rpc.DefaultMaxReceiveBytes+rpc.OversizeMargin/2))
	for _, test := range []struct {
		name, method string
		request      []byte
		field        string // empty: the request is good
	}{
		{"good unary", tokenizeMethod, text(2, "héllo"), ""},
		{"good stream", generateMethod, valid, ""},
		{"unary text", tokenizeMethod, text(2, "a\xffb"), "text"},
		{"stream text", generateMethod, text(2, "a\xffb"), "prompt"},
		{"repeated text", generateMethod, append(bytes.Clone(valid), text(6, "\xc3")...), "stop[2]"},
		{"packed list cut off", generateMethod, text(3, string(ids)), "token_ids.ids"},
		{"wrong wire type is unknown", generateMethod, protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), 5), ""},
		{"field cut off", generateMethod, []byte{2<<3 | 2, 100, 'a'}, "prompt"},
		{"nonsense", tokenizeMethod, bytes.Repeat([]byte{0xff}, 20), "request"},
		{"nothing known", tokenizeMethod, []byte{0}, "request"},
		{"just under the limit", tokenizeMethod, text(2, strings.Repeat("a", rpc.DefaultMaxReceiveBytes-5)), ""},
		{"just over the limit", tokenizeMethod, text(2, strings.Repeat("a", rpc.DefaultMaxReceiveBytes)), "text"},
		{"oversize unary", tokenizeMethod, oversize, "text"},
		{"oversize stream", generateMethod, oversize, "prompt"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := callRaw(t, conn, test.method, test.request)
			if test.field == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if status.Code(err) != codes.InvalidArgument || rpc.Field(err) != test.field || rpc.Reason(err) != api.ReasonInvalidField {
				t.Errorf("got field %q, reason %q: %v; want INVALID_ARGUMENT that names %q", rpc.Field(err), rpc.Reason(err), err, test.field)
			}
			if !strings.HasPrefix(status.Convert(err).Message(), test.field+": ") {
				t.Errorf("message %q does not begin with the field", status.Convert(err).Message())
			}
		})
	}
	if got := strings.Count(output.String(), "code=InvalidArgument"); got != 10 {
		t.Errorf("%d refused requests were logged, want 10:\n%s", got, output)
	}
}

// FuzzUndecodableRequests checks that whatever protobuf-go refuses is refused as
// INVALID_ARGUMENT that names something, and that whatever it takes is taken.
func FuzzUndecodableRequests(f *testing.F) {
	sampling := text(1, "\x0d\x00\x00\x80\x3f")
	for _, seed := range [][]byte{
		nil, {0}, text(2, "\xff"), text(6, "a"), append(text(6, "a"), text(6, "\xff")...),
		text(4, string(sampling)), text(4, "\x0d\x00"), text(12, "\x0a\x02\x08"), {0x0b, 0x0c}, {0x0b}, {0x0c},
		text(3, "\x0a\x01\xff"), text(7, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
		protowire.AppendTag(nil, 1<<28, protowire.BytesType),
	} {
		f.Add(seed)
	}
	server := rpc.NewServer(rpc.ServerConfig{})
	inferencev1.RegisterInferenceServer(server, &inference{})
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	conn, err := rpc.Dial("buffer:1", rpc.ClientConfig{Dialer: func(ctx context.Context, _ string) (net.Conn, error) {
		return listener.DialContext(ctx)
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		_ = conn.Close()
		_ = server.Stop(context.Background())
		<-served
	})
	f.Fuzz(func(t *testing.T, request []byte) {
		err := callRaw(t, conn, generateMethod, request)
		if proto.Unmarshal(request, &inferencev1.GenerateRequest{}) == nil {
			if err != nil {
				t.Errorf("a good request was refused: %v", err)
			}
			return
		}
		field := rpc.Field(err)
		if status.Code(err) != codes.InvalidArgument || field == "" {
			t.Fatalf("got %v", err)
		}
		name, _, _ := strings.Cut(field, ".")
		name, _, _ = strings.Cut(name, "[")
		descriptor := (&inferencev1.GenerateRequest{}).ProtoReflect().Descriptor()
		if field != "request" && descriptor.Fields().ByTextName(name) == nil {
			t.Errorf("field %q does not exist", field)
		}
	})
}

// A caller that vanishes ends the context of its call.
func TestPeerGoneEndsTheContext(t *testing.T) {
	ended := make(chan struct{})
	_, conn := serve(t, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		defer close(ended)
		if err := stream.Send(&inferencev1.GenerateEvent{}); err != nil {
			return err
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}, rpc.ServerConfig{}, rpc.ClientConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := inferencev1.NewInferenceClient(conn).Generate(ctx, &inferencev1.GenerateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended // the handler learns that its caller is gone
}
