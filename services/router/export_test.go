package router

import (
	"context"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/serving"
)

// Generate serves one request, as the gRPC method does, to a client that reads with send.
func (s *Service) Generate(ctx context.Context, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	return s.requests.Generate(ctx, &serving.Caller{}, q, send)
}

// EncodeToken is an event as it is sent where it is a token without log probabilities.
func EncodeToken(event *inferencev1.GenerateEvent) (encoded []byte, size int, is bool) {
	var t encodedToken
	if !t.set(event) {
		return nil, 0, false
	}
	return t.AppendTo(nil), t.Size(), true
}
