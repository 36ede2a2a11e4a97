package router

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// inferenceServer is the Inference API.
type inferenceServer struct {
	inferencev1.UnimplementedInferenceServer
	service *Service
}

// Generate streams the tokens that follow a prompt.
func (i *inferenceServer) Generate(q *inferencev1.GenerateRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	return i.service.Generate(stream.Context(), q, withHeader(stream, func(first *inferencev1.GenerateEvent) string {
		return first.GetAccepted().GetRequestId()
	}))
}

// withHeader is stream.Send, with the request's id in the headers that go before
// the first event: not sooner, so that a refused request has none.
func withHeader(stream grpc.ServerStreamingServer[inferencev1.GenerateEvent], id func(first *inferencev1.GenerateEvent) string) func(*inferencev1.GenerateEvent) error {
	sent := false
	return func(event *inferencev1.GenerateEvent) error {
		if !sent {
			sent = true
			if err := stream.SendHeader(metadata.Pairs(rpc.RequestIDKey, id(event))); err != nil {
				return err
			}
		}
		return stream.Send(event)
	}
}

// Generate serves one request: it calls send with each event, from this
// goroutine, and returns nil after Finished, otherwise a gRPC status. Nothing is
// sent of a request that is refused. The request's id is rpc.RequestID of ctx, or
// drawn. An error of send, or the end of ctx, is its client gone.
func (s *Service) Generate(ctx context.Context, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	arrived := time.Now()
	id := rpc.RequestID(ctx)
	if id == "" {
		id = newRequestID()
	}
	spans := s.traceRequest(ctx, arrived, id, q)
	p, err := s.planOf(ctx, arrived, id, q)
	if err == nil {
		p.spans = spans
		var r *request
		if r, err = s.start(p); err == nil {
			return follow(ctx, r, 0, send)
		}
	}
	s.metrics.ended(time.Now(), err, joining.Finish{})
	spans.refused(err)
	return err
}

// newRequestID draws an id.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Resume joins a request again.
func (i *inferenceServer) Resume(q *inferencev1.ResumeRequest, stream grpc.ServerStreamingServer[inferencev1.GenerateEvent]) error {
	r := i.service.find(q.GetRequestId())
	if r == nil {
		return rpc.Error(codes.NotFound, reasonRequestNotFound,
			fmt.Sprintf("request %q is not known or cannot be resumed any more; send it again", shorten(q.GetRequestId())), 0)
	}
	if n := r.events.tokens(); q.GetOffset() > uint64(n) {
		return rpc.InvalidArgument("offset", fmt.Sprintf("%d is more than the %d tokens there are", q.GetOffset(), n))
	}
	r.attach()
	return follow(stream.Context(), r, q.GetOffset(), withHeader(stream, func(*inferencev1.GenerateEvent) string { return r.plan.id }))
}

// follow sends a request's events to a reader that has been attached, all but
// the tokens before from.
func follow(ctx context.Context, r *request, from uint64, send func(*inferencev1.GenerateEvent) error) error {
	for i := 0; ; {
		event, ended, changed, err := r.events.read(i)
		switch {
		case event != nil:
			i++
			if event.GetTokens() != nil && event.GetOffset() < from {
				continue
			}
			if err := send(event); err != nil {
				// Whatever the transport says, it is the client that is gone.
				err := gone(ctx)
				r.detach(err)
				return err
			}
		case ended:
			r.detach(nil)
			return err
		default:
			select {
			case <-changed:
			case <-ctx.Done():
				err := gone(ctx)
				r.detach(err)
				return err
			}
		}
	}
}

// Tokenize turns text into tokens.
func (i *inferenceServer) Tokenize(ctx context.Context, q *inferencev1.TokenizeRequest) (*inferencev1.TokenizeResponse, error) {
	m, err := i.service.model(q.GetModel())
	if err != nil {
		return nil, err
	}
	switch {
	case len(q.GetText()) > maxTextBytes:
		return nil, rpc.InvalidArgument("text", fmt.Sprintf("has %d bytes, more than %d", len(q.GetText()), maxTextBytes))
	case !utf8.ValidString(q.GetText()):
		return nil, rpc.InvalidArgument("text", "is not valid UTF-8")
	}
	// A byte is at most one token; the template adds a few.
	tokens, err := m.Tokenizer.EncodeContext(ctx, q.GetText(), !q.GetNoSpecialTokens(), 2*maxTextBytes)
	switch {
	case ctx.Err() != nil:
		return nil, gone(ctx)
	case err != nil:
		return nil, rpc.InvalidArgument("text", err.Error())
	}
	out := &inferencev1.TokenizeResponse{TokenIds: make([]uint32, len(tokens))}
	for k, id := range tokens {
		out.TokenIds[k] = uint32(id)
	}
	return out, nil
}

// Detokenize turns tokens into text.
func (i *inferenceServer) Detokenize(_ context.Context, q *inferencev1.DetokenizeRequest) (*inferencev1.DetokenizeResponse, error) {
	m, err := i.service.model(q.GetModel())
	if err != nil {
		return nil, err
	}
	if n := len(q.GetTokenIds()); n > maxDetokenizeID {
		return nil, rpc.InvalidArgument("token_ids", fmt.Sprintf("%d tokens are more than %d", n, maxDetokenizeID))
	}
	ids := make([]int32, len(q.GetTokenIds()))
	for k, id := range q.GetTokenIds() {
		if uint64(id) >= uint64(m.Spec.VocabSize) {
			return nil, rpc.InvalidArgument(fmt.Sprintf("token_ids[%d]", k), outside(id, m))
		}
		ids[k] = int32(id)
	}
	return &inferencev1.DetokenizeResponse{Text: m.Tokenizer.Decode(ids, q.GetSkipSpecialTokens())}, nil
}

// ListModels names the models that can be asked for.
func (i *inferenceServer) ListModels(context.Context, *inferencev1.ListModelsRequest) (*inferencev1.ListModelsResponse, error) {
	return &inferencev1.ListModelsResponse{Models: i.service.listModels()}, nil
}
