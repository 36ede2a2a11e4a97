package rpc_test

import (
	"errors"
	"io"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/rpc/rpctest"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// ready is a message that was encoded before.
type ready []byte

func (r ready) AppendTo(b []byte) []byte { return append(b, r...) }
func (r ready) Size() int                { return len(r) }

// Messages that encode themselves arrive, with limits and without.
func TestEncoded(t *testing.T) {
	event := &inferencev1.GenerateEvent{Offset: 7, Event: &inferencev1.GenerateEvent_Tokens{Tokens: &inferencev1.TokenDelta{TokenIds: []uint32{1}, Text: "a"}}}
	encoded, err := proto.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	for _, limits := range []rpc.Limits{{}, {ReceiveBytes: 64 << 20}} {
		client, _, _ := limited(t, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
			if known := rpc.Unsent(stream.Context()) != nil; known != (limits.ReceiveBytes > 0) {
				t.Errorf("with limits %v, what is unsent is known: %t", limits, known)
			}
			return errors.Join(stream.SendMsg(ready(encoded)), stream.Send(event))
		}}, limits)
		stream, err := client.Generate(t.Context(), &inferencev1.GenerateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := stream.Recv(); err != nil || !proto.Equal(got, event) {
				t.Errorf("%v, %v", got, err)
			}
		}
		if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

// To a client that reads nothing, messages can be sent until Unsent says that they may block:
// this ends only because they do not.
func TestUnsent(t *testing.T) {
	unsent := make(chan int64, 1)
	_, address, _ := limited(t, &inference{generate: func(_ *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
		waiting := rpc.Unsent(stream.Context())
		for waiting() < rpc.NeverBlocks {
			if err := stream.SendMsg(ready(make([]byte, 0, 10))); err != nil {
				return err
			}
		}
		unsent <- waiting()
		return nil
	}}, rpc.Limits{ReceiveBytes: 64 << 20})
	peer := connect(t, address, rpctest.Config{Unread: true})
	stream, err := peer.Open(generateMethod)
	if err != nil {
		t.Fatal(err)
	}
	if err := peer.Send(t.Context(), stream, rpctest.Prefix(0), 16<<10, true); err != nil {
		t.Fatal(err)
	}
	if n := <-unsent; n < rpc.NeverBlocks || n > rpc.NeverBlocks+16 {
		t.Errorf("%d bytes wait", n)
	}
}
