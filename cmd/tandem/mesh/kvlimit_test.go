package mesh_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	grpcstatus "google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/lifecycle"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// receives is a worker that does nothing but receive.
type receives struct{ *kvtransfer.Receiver }

func (r receives) RegisterKV(registrar grpc.ServiceRegistrar) { r.Register(registrar) }
func (r receives) KVMessageBytes() int                        { return r.MaxMessageBytes() }

// newReceives is such a worker, and where it is to listen.
func newReceives(t *testing.T) (net.Listener, receives) {
	t.Helper()
	listener, err := kvtransfer.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	layout := kvtransfertest.Layout(3, 4096)
	receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: "decode-0", Epoch: 7, Layout: layout, Addresses: []string{listener.Addr().String()},
	}, kvtransfertest.NewPages(layout, 8))
	if err != nil {
		t.Fatal(err)
	}
	return listener, receives{receiver}
}

// bytesCodec sends bytes as they are.
type bytesCodec struct{ encoding.CodecV2 }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (bytesCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (bytesCodec) Name() string                         { return "proto" }

// A receiver refuses a message that is too large before it reads it. Otherwise any peer
// could make it hold much more than its windows.
func TestKVMessageIsBounded(t *testing.T) {
	listener, receiver := newReceives(t)
	conn, err := rpc.Dial(listener.Addr().String(), kvtransfer.Dialing(rpc.ClientConfig{}))
	if err != nil {
		t.Fatal(err)
	}
	send := func(context.Context) error {
		defer func() { _ = conn.Close() }()
		for size, want := range map[int]codes.Code{
			receiver.MaxMessageBytes():     codes.InvalidArgument, // these are no message
			receiver.MaxMessageBytes() + 1: codes.ResourceExhausted,
		} {
			stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
				kvtransferv1.KVTransfer_Stream_FullMethodName, grpc.ForceCodecV2(bytesCodec{}))
			if err != nil {
				return err
			}
			_ = stream.SendMsg(make([]byte, size)) // RecvMsg says what is wrong
			if err := stream.RecvMsg(nil); grpcstatus.Code(err) != want {
				t.Errorf("a message of %d bytes: %v, want %v", size, err, want)
			}
		}
		return nil
	}
	services := append(mesh.KVServices(kvtransfer.Config{}, listener, receiver), lifecycle.Service{Name: "sender", Run: send})
	if err := lifecycle.Run(t.Context(), quiet, 10*time.Second, services...); err != nil {
		t.Error(err)
	}
}

// Who connects when there are as many as may be is let go at once.
func TestKVConnectionsAreBounded(t *testing.T) {
	listener, receiver := newReceives(t)
	connect := func(context.Context) error {
		var open []net.Conn
		defer func() {
			for _, conn := range open {
				_ = conn.Close()
			}
		}()
		for i, want := range []error{nil, io.EOF} {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				return err
			}
			open = append(open, conn)
			// A server of HTTP/2 speaks first.
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
				t.Errorf("connection %d: %v, want %v", i, err, want)
			}
		}
		return nil
	}
	services := append(mesh.KVServices(kvtransfer.Config{MaxConnections: 1}, listener, receiver), lifecycle.Service{Name: "senders", Run: connect})
	if err := lifecycle.Run(t.Context(), quiet, 10*time.Second, services...); err != nil {
		t.Error(err)
	}
}
