package router

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/rpc"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// grpcClient reads answers over gRPC. It looks at the head of each message only: what a client
// spends, it takes from the router that shares the machine.
type grpcClient struct {
	conn   *grpc.ClientConn
	times  *sendTimes
	prompt []uint32
	header string // "authorization"; empty: none
}

// windowBytes is the flow-control window of a client that does not probe its link.
const windowBytes = 1 << 20

// newGRPCClient connects to the router. One that probes sends a ping for each message, as
// grpc-go does by default to find the window that the link needs.
func newGRPCClient(address string, secure *security, probes bool, b *sendTimes, prompt []uint32) (client, error) {
	config := rpc.ClientConfig{Name: "tandem-bench", Credentials: secure.client(), Codec: kindCodec{encoding.GetCodecV2(proto.Name)}}
	if !probes {
		config.WindowBytes = windowBytes
	}
	conn, err := rpc.Dial(address, config)
	if err != nil {
		return nil, err
	}
	return &grpcClient{conn: conn, times: b, prompt: prompt, header: secure.authorization()}, nil
}

func (c *grpcClient) close() error { return c.conn.Close() }

func (c *grpcClient) do(ctx context.Context, id string, tokens int, got func(at int64)) error {
	ctx, cancel := context.WithCancel(rpc.WithRequestID(ctx, id))
	defer cancel()
	if c.header != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.header)
	}
	// On a busy machine the router may take its time to accept thousands of connections.
	stream, err := c.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, inferencev1.Inference_Generate_FullMethodName, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&inferencev1.GenerateRequest{
		Input:     &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: c.prompt}},
		MaxTokens: protobuf.Uint32(uint32(tokens)), Mode: inferencev1.Mode_MODE_DISAGGREGATED,
		Sampling: &inferencev1.Sampling{Temperature: protobuf.Float32(0)}, IgnoreEos: true,
	}); err != nil && !errors.Is(err, io.EOF) { // then the stream says why
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var k kind
	for finished := false; ; {
		switch err := stream.RecvMsg(&k); {
		case errors.Is(err, io.EOF) && finished:
			return nil
		case err != nil:
			return err
		}
		switch k {
		case tokensField:
			got(c.times.now())
		case finishedField:
			finished = true
		}
	}
}

// kind is which event a GenerateEvent has: the number of its field.
type kind protowire.Number

const (
	tokensField   kind = 3
	finishedField kind = 4
)

// kindCodec reads a GenerateEvent into a *kind, and writes messages of protobuf.
type kindCodec struct{ encoding.CodecV2 }

func (c kindCodec) Unmarshal(data mem.BufferSlice, v any) error {
	k, is := v.(*kind)
	if !is {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	return k.read(buffer.ReadOnlyData())
}

func (k *kind) read(b []byte) error {
	for len(b) > 0 {
		number, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("an event of the answer: %w", protowire.ParseError(n))
		}
		if wire == protowire.BytesType {
			*k = kind(number)
			return nil
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(number, wire, b); n < 0 {
			return fmt.Errorf("an event of the answer: %w", protowire.ParseError(n))
		}
		b = b[n:]
	}
	return errors.New("an event of the answer is empty")
}
