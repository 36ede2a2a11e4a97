package rpc_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

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
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Stop(ctx)
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
	select {
	case <-ended:
	case <-time.After(5 * time.Second):
		t.Fatal("the handler does not learn that its caller is gone")
	}
}
