package router

import (
	"context"
	"log/slog"
	"math"
	"net/http"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/services/router/openai"
	"github.com/tandem-serving/tandem/services/router/preprocess"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// newHTTP is OpenAI's API over this router.
func (s *Service) newHTTP() (*openai.Handler, error) {
	var authenticate func(context.Context, string) (context.Context, error)
	if s.deps.Auth != nil {
		authenticate = func(ctx context.Context, authorization string) (context.Context, error) {
			return s.deps.Auth.Authenticate(ctx, authorization, auth.Generate)
		}
	}
	router := httpRouter{s.requests, s}
	return openai.New(openai.Config{
		Backend: router, Catalog: router, Limits: router, Authenticate: authenticate, Origins: s.config.CORSOrigins,
		MaxAnswers: s.dispatcher.TenantLimit, // all answers of a call are of one tenant
		Registerer: s.deps.Registerer, Logger: s.log.With(slog.String("server", "http")),
		MaxHeldBytes: int64(s.config.ReceiveMemory), ReadTimeout: s.config.ReceiveTimeout, WriteTimeout: s.config.UnreadTimeout,
	})
}

// HTTP serves OpenAI's API, under /v1/ and without it. Its requests are those of
// Generate: counted, limited, traced and drained with them.
func (s *Service) HTTP() http.Handler { return s.http }

// httpRouter is the router as the HTTP API calls it.
type httpRouter struct {
	*serving.Requests // has Generate, Embed, Fits, Check, CheckResume and Count

	service *Service
}

// Resume sends the rest of a request that any router of the mesh has.
func (r httpRouter) Resume(ctx context.Context, q *inferencev1.ResumeRequest, send func(*inferencev1.GenerateEvent) error) error {
	return r.service.resume(ctx, q, func() {}, send)
}

// Plan says what Generate would serve.
func (r httpRouter) Plan(ctx context.Context, q *inferencev1.GenerateRequest) (openai.Plan, error) {
	p, id, err := r.Requests.Plan(ctx, q)
	if err != nil {
		return openai.Plan{}, err
	}
	plan := openai.Plan{
		Model: p.Model.Spec.Name, Prompt: preprocess.IDs(p.Tokens), MaxTokens: p.MaxTokens, RequestID: id,
		Text:      func() string { return p.Model.Tokenizer.Decode(p.Tokens, true) },
		TextBytes: func() int { return p.Model.TextBytes(p.Tokens, true, math.MaxInt) },
	}
	if served := r.service.dispatcher.Served(plan.Model); len(served) == 1 {
		plan.Fingerprint = served[0].Fingerprint()
	}
	return plan, nil
}

// SetHeaders sets the headers that say how much of the caller's limits is left.
func (r httpRouter) SetHeaders(ctx context.Context, header http.Header) {
	r.service.limits(ctx, func(name string, values ...string) { header.Set(name, values[0]) })
}

// Models are the models that are served.
func (r httpRouter) Models() []*inferencev1.Model { return r.service.models.Described() }

// Model is the model that a name or an alias means.
func (r httpRouter) Model(name string) (*inferencev1.Model, error) {
	m, err := r.service.models.Model(name)
	if err != nil {
		return nil, err
	}
	return m.Described(), nil
}
