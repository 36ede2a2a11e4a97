package router

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
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

// Generate serves one request.
func (b httpBackend) Generate(ctx context.Context, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	return b.service.Generate(ctx, q, send)
}

// Plan says what Generate would serve. It counts a request that would be refused,
// and no other.
func (b httpBackend) Plan(ctx context.Context, q *inferencev1.GenerateRequest) (openai.Plan, error) {
	s := b.service
	p, err := s.planOf(ctx, time.Now(), "", q)
	if err != nil {
		s.metrics.ended(time.Now(), err, joining.Finish{})
		return openai.Plan{}, err
	}
	out := openai.Plan{Model: p.model.Spec.Name, Prompt: make([]uint32, len(p.tokens))}
	for i, id := range p.tokens {
		out.Prompt[i] = uint32(id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.RequestID = s.unused(rpc.RequestID(ctx))
	return out, nil
}

// MaxAnswers is how many requests of one tenant are admitted: all that come over HTTP
// are of one.
func (b httpBackend) MaxAnswers() int { return b.service.dispatcher.tenantLimit() }

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
