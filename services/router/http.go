package router

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/services/router/internal/joining"
	"github.com/tandem-serving/tandem/services/router/openai"
)

// newHTTP is OpenAI's API over this router.
func (s *Service) newHTTP() (*openai.Handler, error) {
	return openai.New(openai.Config{
		Backend: httpBackend{s}, Registerer: s.deps.Registerer, Logger: s.log.With(slog.String("server", "http")),
	})
}

// HTTP serves OpenAI's API, under /v1/ and without it. Its requests are those of
// Generate: counted, limited, traced and drained with them.
func (s *Service) HTTP() http.Handler { return s.http }

// httpBackend is the router as the HTTP API calls it.
type httpBackend struct{ service *Service }

// overHTTP marks the context of a request that came over HTTP.
type overHTTP struct{}

// Generate serves one request.
func (b httpBackend) Generate(ctx context.Context, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	return b.service.Generate(context.WithValue(ctx, overHTTP{}, true), q, send)
}

// Check says what Generate would accept. It counts a request that would be
// refused, and no other.
func (b httpBackend) Check(ctx context.Context, q *inferencev1.GenerateRequest) (*inferencev1.Accepted, error) {
	s := b.service
	p, err := s.planOf(ctx, time.Now(), "", q)
	if err != nil {
		s.metrics.ended(time.Now(), err, joining.Finish{})
		return nil, err
	}
	return &inferencev1.Accepted{Model: p.model.Spec.Name, PromptTokens: uint32(len(p.tokens)), Seed: p.sampling.GetSeed()}, nil
}

// Models are the models that are served.
func (b httpBackend) Models() []*inferencev1.Model { return b.service.listModels() }

// Model is the model that a name or an alias means.
func (b httpBackend) Model(name string) (*inferencev1.Model, error) {
	m, err := b.service.model(name)
	if err != nil {
		return nil, err
	}
	return described(m), nil
}
