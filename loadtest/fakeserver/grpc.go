package fakeserver

import (
	"context"
	"errors"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	encodingproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

const (
	// Model is the name of a fake server's model.
	Model = "fake"
	// Properties of the model.
	vocabularySize = 1 << 15
	contextTokens  = 1 << 17
	// bufferBytes is the maximum of one read or write system call.
	bufferBytes = 64 << 10
)

// Server is a fake Tandem router over gRPC.
type Server struct {
	inferencev1.UnimplementedInferenceServer

	engine *Engine
	grpc   *grpc.Server
}

// NewServer returns a server driven by engine. The caller closes engine after the server.
func NewServer(engine *Engine) *Server {
	s := &Server{engine: engine, grpc: grpc.NewServer(
		grpc.ForceServerCodecV2(deltaCodec{}),
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.StaticStreamWindowSize(1<<20), grpc.StaticConnWindowSize(16<<20),
		grpc.WaitForHandlers(true),
	)}
	inferencev1.RegisterInferenceServer(s.grpc, s)
	return s
}

// Serve accepts connections until Stop. It closes the listener.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Stop closes all connections and waits for their requests.
func (s *Server) Stop() { s.grpc.Stop() }

// ListModels implements the API.
func (s *Server) ListModels(ctx context.Context, _ *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	if err := s.engine.Thaw(ctx); err != nil {
		return nil, err
	}
	return &inferencev1.ListModelsResponse{Models: []*inferencev1.Model{
		{Name: Model, ContextTokens: contextTokens, VocabularySize: vocabularySize},
	}}, nil
}

// Generate implements the API.
func (s *Server) Generate(request *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	if name := request.GetModel(); name != "" && name != Model {
		return failure(codes.NotFound, "MODEL_NOT_FOUND", "no model %q: ask for %q", name, Model)
	}
	prompt := len(request.GetTokenIds().GetIds())
	if text := request.GetPrompt(); text != "" {
		prompt = 1 + len(text)/4
	}
	tokens := 16
	if request.MaxTokens != nil {
		tokens = int(request.GetMaxTokens())
	}
	if tokens < 1 || prompt+tokens > contextTokens {
		return failure(codes.InvalidArgument, "INVALID_FIELD", "max_tokens: ask for at least 1, and for no more than the context holds")
	}
	g := &generation{stream: stream, prompt: uint32(prompt), seed: request.GetSampling().GetSeed()}
	served, err := s.engine.Serve(stream.Context(), tokens, g)
	switch {
	case errors.Is(err, ErrRefused):
		return failure(codes.ResourceExhausted, "NO_SLOT", "%v", err)
	case errors.Is(err, ErrBroken):
		return failure(codes.Internal, "BROKEN", "%v", err)
	case errors.Is(err, ErrClosed):
		return failure(codes.Unavailable, "STOPPING", "%v", err)
	case err != nil:
		return err
	}
	return stream.Send(&inferencev1.GenerateEvent{
		Offset: uint64(served.Tokens),
		Event: &inferencev1.GenerateEvent_Finished{Finished: &inferencev1.Finished{
			Reason:  inferencev1.FinishReason_FINISH_REASON_LENGTH,
			Usage:   &inferencev1.Usage{PromptTokens: uint32(prompt), CompletionTokens: uint32(served.Tokens)},
			Route:   &inferencev1.Route{Mode: inferencev1.Mode_MODE_AGGREGATED, Prefill: Model, Decode: Model, Reason: "a fake server", Reproducible: true},
			Timings: timings(served),
		}},
	})
}

// failure is an error in a router's form.
func failure(code codes.Code, reason, format string, arguments ...any) error {
	bare := status.Newf(code, format, arguments...)
	full, err := bare.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "tandem"})
	if err != nil { // only for a detail that cannot be marshalled
		return bare.Err()
	}
	return full.Err()
}

// timings are measured like a router's: the stages add up to the total.
func timings(d Served) *inferencev1.Timings {
	t := &inferencev1.Timings{
		QueueNs:   int64(d.Began - d.Arrived),
		PrefillNs: int64(d.First - d.Began),
		DecodeNs:  int64(d.Last - d.First),
		TotalNs:   int64(d.Last - d.Arrived),
		TtftNs:    int64(d.First - d.Arrived),
	}
	t.PrefillComputeNs, t.DecodeComputeNs = t.PrefillNs, t.DecodeNs
	if d.Tokens > 1 {
		t.SecondTokenNs = int64(d.Second - d.First)
		t.TpotNs = int64(d.Last-d.First) / int64(d.Tokens-1)
	}
	return t
}

// generation is the Sink of one stream.
type generation struct {
	stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]
	prompt uint32
	seed   uint64
}

func (g *generation) Accept(id string) error {
	return g.stream.Send(&inferencev1.GenerateEvent{Event: &inferencev1.GenerateEvent_Accepted{
		Accepted: &inferencev1.Accepted{RequestId: id, Model: Model, PromptTokens: g.prompt, Seed: g.seed},
	}})
}

func (g *generation) Tokens(offset, n int) error {
	return g.stream.SendMsg(delta{offset, n})
}

// delta is a TokenDelta of n tokens with consecutive ids and the text " a" each.
type delta struct{ offset, n int }

// deltaCodec is grpc-go's protobuf codec, except that it encodes delta by hand.
type deltaCodec struct{}

func (deltaCodec) Name() string { return encodingproto.Name }

func (deltaCodec) Marshal(v any) (mem.BufferSlice, error) {
	d, ok := v.(delta)
	if !ok {
		return encoding.GetCodecV2(encodingproto.Name).Marshal(v)
	}
	return mem.BufferSlice{mem.SliceBuffer(d.append(make([]byte, 0, 24+5*d.n)))}, nil
}

func (deltaCodec) Unmarshal(data mem.BufferSlice, v any) error {
	return encoding.GetCodecV2(encodingproto.Name).Unmarshal(data, v)
}

// append encodes the GenerateEvent: 1 offset, 3 tokens {1 token_ids packed, 2 text}.
func (d delta) append(b []byte) []byte {
	ids := 0
	for i := range d.n {
		ids += protowire.SizeVarint(d.id(i))
	}
	size := protowire.SizeTag(1) + protowire.SizeBytes(ids) + protowire.SizeTag(2) + protowire.SizeBytes(2*d.n)
	if d.offset > 0 {
		b = protowire.AppendTag(b, 1, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(d.offset))
	}
	b = protowire.AppendTag(b, 3, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b = protowire.AppendTag(b, 1, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(ids))
	for i := range d.n {
		b = protowire.AppendVarint(b, d.id(i))
	}
	b = protowire.AppendTag(b, 2, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(2*d.n))
	for range d.n {
		b = append(b, " a"...)
	}
	return b
}

func (d delta) id(i int) uint64 { return uint64(d.offset+i) % vocabularySize }
