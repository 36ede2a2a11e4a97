package router

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// inferenceServer is the Inference API.
type inferenceServer struct {
	inferencev1.UnimplementedInferenceServer
	service *Service
}

// Generate streams the tokens that follow a prompt.
func (i *inferenceServer) Generate(q *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	send := withHeader(stream, func(first *inferencev1.GenerateEvent) metadata.MD {
		header := metadata.Pairs(api.HeaderRequestID, first.GetAccepted().GetRequestId())
		i.service.limits(stream.Context(), header.Set)
		return header
	})
	return i.service.counted(stream.Context(), i.service.requests.Generate(stream.Context(), &serving.Caller{Now: sendNow(stream)}, q, send))
}

// sendNow sends tokens from whichever goroutine has them; nil: a stream that nobody can tell of
// whether that would block.
func sendNow(stream grpc.ServerStream) func(*inferencev1.GenerateEvent) bool {
	unsent := rpc.Unsent(stream.Context())
	if unsent == nil {
		return nil
	}
	return (&tokenSender{stream: stream, unsent: unsent}).now
}

type tokenSender struct {
	stream grpc.ServerStream
	unsent func() (bytes int64)
	token  encodedToken // used again
}

// now sends a token unless that could block.
func (s *tokenSender) now(event *inferencev1.GenerateEvent) bool {
	if s.unsent() >= rpc.NeverBlocks || !s.token.set(event) {
		return false
	}
	return s.stream.SendMsg(&s.token) == nil // if it fails, the client is gone, as send will find
}

// withHeader is stream.Send, with the headers that go before
// the first event: not sooner, so that a refused request has none.
func withHeader(stream grpc.ServerStreamingServer[inferencev1.GenerateEvent], header func(first *inferencev1.GenerateEvent) metadata.MD) func(*inferencev1.GenerateEvent) error {
	sent := false
	return func(event *inferencev1.GenerateEvent) error {
		if !sent {
			sent = true
			if err := stream.SendHeader(header(event)); err != nil {
				return err
			}
		}
		return stream.Send(event)
	}
}

// Resume joins a request again.
func (i *inferenceServer) Resume(q *inferencev1.ResumeRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	// The headers go as soon as it is found: another router that asks for it waits for them.
	found := func() { _ = stream.SendHeader(metadata.Pairs(api.HeaderRequestID, q.GetRequestId())) }
	return i.service.counted(stream.Context(), i.service.resume(stream.Context(), q, found, stream.Send))
}

// resume sends the rest of a request that this router has or another one. It calls found before,
// as soon as one has it. What none has counts as a request of its caller's: all were asked for it.
func (s *Service) resume(ctx context.Context, q *inferencev1.ResumeRequest, found func(), send func(*inferencev1.GenerateEvent) error) error {
	if err := s.requests.CheckResume(ctx); err != nil {
		return err
	}
	err := s.requests.Resume(ctx, q, found, send)
	if rpc.Reason(err) != api.ReasonRequestNotFound || s.peers.Asks(ctx) {
		return err
	}
	if err = s.peers.Resume(ctx, q, found, send); rpc.Reason(err) == api.ReasonRequestNotFound {
		s.requests.Count(ctx)
	}
	return err
}

// Tokenize turns text into tokens.
func (i *inferenceServer) Tokenize(ctx context.Context, q *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	end, err := i.service.requests.CountCall(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return i.service.models.Tokenize(ctx, q)
}

// Detokenize turns tokens into text.
func (i *inferenceServer) Detokenize(ctx context.Context, q *inferencev1.DetokenizeRequest) (*inferencev1.DetokenizeResponse, error) {
	end, err := i.service.requests.CountCall(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return i.service.models.Detokenize(ctx, q)
}

// Embed embeds texts.
func (i *inferenceServer) Embed(ctx context.Context, q *inferencev1.EmbedRequest) (*inferencev1.EmbedResponse, error) {
	r, err := i.service.requests.Embed(ctx, serving.Caller{}, q)
	return r, i.service.counted(ctx, err)
}

// ListModels names the models that can be asked for.
func (i *inferenceServer) ListModels(context.Context, *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	return &inferencev1.ListModelsResponse{Models: i.service.models.Described()}, nil
}

// requestsServer is for those who made a request.
type requestsServer struct {
	controlv1.UnimplementedRequestsServer
	service *Service
}

// Explain is the record of how the caller's own request was routed.
func (r *requestsServer) Explain(ctx context.Context, q *controlv1.ExplainOwnRequest) (*controlv1.ExplainResponse, error) {
	end, err := r.service.requests.CountCall(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	record, matches := r.service.records.GetOwn(serving.OwnerOf(ctx), q.GetRequestId(), q.GetSecret())
	switch {
	case matches == 0:
		return nil, clienterr.NotYours(q.GetRequestId(), "which keeps the last few thousand")
	case matches > 1:
		return nil, clienterr.SeveralRequests(q.GetRequestId(), matches)
	}
	return record, nil
}

// OversizeFields maps each method whose request can be too large for a message
// to the field that makes it so, for the server's error.
func OversizeFields() map[string]string {
	return map[string]string{
		inferencev1.Inference_Generate_FullMethodName:   "prompt or conversation",
		inferencev1.Inference_Tokenize_FullMethodName:   "text",
		inferencev1.Inference_Detokenize_FullMethodName: "token_ids",
		inferencev1.Inference_Embed_FullMethodName:      "inputs",
	}
}
