package openai

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/clienterr"
	"github.com/tandem-serving/tandem/services/router/serving"
)

// Backend serves the translated requests; the router is one. Its errors are gRPC statuses. Its
// methods are safe for concurrent use.
type Backend interface {
	// Generate calls send with each event of a request, from this goroutine. An error of send,
	// or the end of ctx, ends the request.
	Generate(ctx context.Context, c *serving.Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error
	// Resume is Generate for an existing request, from an offset on.
	Resume(ctx context.Context, q *inferencev1.ResumeRequest, send func(*inferencev1.GenerateEvent) error) error
	// Embed embeds texts.
	Embed(ctx context.Context, c serving.Caller, q *inferencev1.EmbedRequest) (*inferencev1.EmbedResponse, error)
	// Fits reports whether a request fits into the model's context.
	Fits(ctx context.Context, q *inferencev1.GenerateRequest) bool
	// Plan checks a request as Generate does, but does not serve it.
	Plan(ctx context.Context, q *inferencev1.GenerateRequest) (Plan, error)
}

// Catalog knows the models. Its methods are safe for concurrent use; errors are gRPC statuses.
type Catalog interface {
	// Models returns the models that requests may name, sorted by name.
	Models() []*inferencev1.Model
	// Model finds a model by its name or an alias.
	Model(name string) (*inferencev1.Model, error)
}

// Plan describes what Generate would serve.
type Plan struct {
	// Model is the model's real name.
	Model string
	// Fingerprint names weights and arithmetic; empty if several are served or none is known.
	Fingerprint string
	// Prompt in tokens.
	Prompt []uint32
	// MaxTokens is the length that the answer may have.
	MaxTokens int
	// Text is the prompt as text, without special tokens. TextBytes is about how long it is.
	Text      func() string
	TextBytes func() int
	// RequestID is the context's id, with a suffix if a request has that already.
	RequestID string
}

// Config configures a Handler.
type Config struct {
	Backend Backend
	Catalog Catalog
	// MaxAnswers is the most answers that one call may ask for, each of which is a request of the
	// Backend; safe for concurrent use.
	MaxAnswers func() int
	// Authenticate checks the value of an Authorization header and puts the caller into the
	// context. Its error is a gRPC status. Nil: anyone may call.
	Authenticate func(ctx context.Context, authorization string) (context.Context, error)
	// Limits are the limits of callers; nil: there are none.
	Limits Limits
	// Origins are the origins of web pages that may call from browsers; see CheckOrigins.
	Origins []string
	// Logger gets a line for each request that ends; nil: none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
	// MaxHeldBytes bounds the memory of all requests that are not admitted yet and of answers that
	// are sent as a whole, roughly; the answers of one request get half of it.
	MaxHeldBytes int64
	// ReadTimeout bounds the arrival of a body, and WriteTimeout how long a client may take to
	// read a message, or 64 KiB of a long one, all of which it has to read in this and a second
	// for each 64 KiB.
	ReadTimeout, WriteTimeout time.Duration
}

// Limits are the limits of callers. Config.Authenticate has put the caller into the context. Its
// methods are safe for concurrent use.
type Limits interface {
	// SetHeaders sets the headers that say how much is left.
	SetHeaders(ctx context.Context, header http.Header)
	// Check returns a gRPC status if a call that needs so much would be refused now. The field is
	// the one that asks for so much.
	Check(ctx context.Context, need quota.Need, field string) error
	// CheckResume returns a gRPC status if nothing would be resumed now, whatever it is.
	CheckResume(ctx context.Context) error
	// Count counts a request that does not reach the backend.
	Count(ctx context.Context)
}

// unlimited are no limits.
type unlimited struct{}

func (unlimited) SetHeaders(context.Context, http.Header)         {}
func (unlimited) Check(context.Context, quota.Need, string) error { return nil }
func (unlimited) CheckResume(context.Context) error               { return nil }
func (unlimited) Count(context.Context)                           {}

// Handler serves the API. It is safe for concurrent use.
type Handler struct {
	backend Backend
	config  Config
	log     *slog.Logger
	metrics *metrics
	held    heldMemory // at most Config.MaxHeldBytes
	started time.Time
	pages   *http.CrossOriginProtection // nil: every page may call

	chats, completions, responses, embeddings *kind
}

// New returns a Handler.
func New(config Config) (*Handler, error) {
	switch {
	case config.Backend == nil || config.Catalog == nil || config.MaxAnswers == nil:
		return nil, errors.New("openai: give a backend, a catalog and the most answers")
	case config.MaxHeldBytes <= 0 || config.ReadTimeout <= 0 || config.WriteTimeout <= 0:
		return nil, errors.New("openai: give memory and time limits")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	pages, err := newPages(config.Origins)
	if err != nil {
		return nil, fmt.Errorf("origins of pages: %w", err)
	}
	m, err := newMetrics(config.Registerer)
	if err != nil {
		return nil, fmt.Errorf("http metrics: %w", err)
	}
	h := &Handler{backend: config.Backend, config: config, log: config.Logger, metrics: m, held: heldMemory{tenants: make(map[string]int64)}, started: time.Now(), pages: pages, chats: newKind(parseChat), completions: newKind(parseCompletion), responses: newKind(parseResponse), embeddings: newKind(parseEmbeddings)}
	return h, nil
}

// Names of routes in metrics, log lines and spans.
const (
	RouteChat        = "/v1/chat/completions"
	RouteCompletions = "/v1/completions"
	RouteEmbeddings  = "/v1/embeddings"
	RouteResponses   = "/v1/responses"

	routeModels      = "/v1/models"
	routeModel       = "/v1/models/{model}"
	routeResponse    = "/v1/responses/{response}"
	routeInputTokens = "/v1/responses/input_tokens"
	routeOpenAPI     = "/openapi.json"
	routeNone        = "none"
)

// ServeHTTP answers one request. All paths also work without /v1.
//
// The frames below a stream stay on its goroutine's stack until it ends. So each of these
// functions leaves preparations to another function, whose frame is gone by then.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.allowPage(w, r) {
		return
	}
	e := h.begin(w, r)
	defer h.end(e)
	if err := e.serve(e); err != nil {
		if e.countsAs(err) {
			e.limits.Count(e.request.Context()) // finding out took as long as a request that counts
		}
		e.fail(err)
	}
}

// countsAs reports whether a request that failed counts as one without tokens: for what it asks, or for a body
// that took a place and did not come. The backend counts requests that are not found to be resumed.
func (e *exchange) countsAs(err error) bool {
	switch f := FailureOf(err); f.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
		return !e.counted
	case http.StatusRequestTimeout:
		return e.bodied
	case http.StatusNotFound:
		return e.bodied && !strings.EqualFold(f.Code, api.ReasonRequestNotFound)
	}
	return false
}

// begin makes the exchange of a request and finds the function that serves it.
func (h *Handler) begin(w http.ResponseWriter, r *http.Request) *exchange {
	e := &exchange{ResponseController: http.NewResponseController(w), writer: w, arrived: time.Now(), timeout: h.config.WriteTimeout, limits: unlimited{}}
	e.id = r.Header.Get(api.HeaderRequestID)
	if !rpc.ValidRequestID(e.id) {
		e.id = rpc.NewID()
	}
	e.request = r.WithContext(rpc.HTTPTrace(rpc.WithRequestID(r.Context(), e.id), r.Header))
	var allowed []string
	switch e.route, allowed, e.serve = h.route(r.URL); {
	case e.serve == nil:
		e.serve = func(*exchange) error { return noRoute(r.Method, clienterr.Shorten(r.URL.Path)) }
	case !slices.Contains(allowed, r.Method):
		e.serve = func(*exchange) error {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			return noMethod(clienterr.Shorten(r.Method), e.route, strings.Join(allowed, " or "))
		}
	}
	if h.config.Authenticate != nil && e.route != routeOpenAPI {
		h.authenticate(e)
	}
	if err := h.checkPage(r); err != nil {
		e.serve = func(*exchange) error { return err }
	}
	return e
}

// authenticate puts the caller into an exchange, or fails.
func (h *Handler) authenticate(e *exchange) {
	ctx, err := h.config.Authenticate(e.request.Context(), e.request.Header.Get("Authorization"))
	if err != nil {
		e.serve = func(*exchange) error { return err }
		return
	}
	e.request = e.request.WithContext(ctx)
	if h.config.Limits != nil {
		e.limits = h.config.Limits
	}
}

// end ends an exchange, with a panic if there is one. It is deferred.
func (h *Handler) end(e *exchange) {
	ctx := e.request.Context()
	if p := recover(); p != nil {
		e.fail(h.panicked(ctx, p))
	}
	h.ended(ctx, e, e.request.Method, e.route)
}

// panicked logs a panic, from the deferred function that recovered it, and returns the client's
// error.
func (h *Handler) panicked(ctx context.Context, p any) error {
	h.log.ErrorContext(ctx, "handler panicked", slog.String("request_id", rpc.RequestID(ctx)), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
	return &Failure{Status: http.StatusInternalServerError, Message: "the server failed on this request: see its log", Type: typeServer, Code: "panic"}
}

// route finds the function that serves a path; nil if there is none.
func (h *Handler) route(u *url.URL) (name string, methods []string, serve func(*exchange) error) {
	read, write := []string{http.MethodGet, http.MethodHead}, []string{http.MethodPost}
	path := u.EscapedPath()
	if rest, ok := strings.CutPrefix(path, "/v1/"); ok {
		path = "/" + rest
	}
	switch path {
	case "/models":
		return routeModels, read, h.listModels
	case "/completions":
		return RouteCompletions, write, h.assembled(h.completions, h.generate)
	case "/chat/completions":
		return RouteChat, write, h.assembled(h.chats, h.generate)
	case "/embeddings":
		return RouteEmbeddings, write, h.assembled(h.embeddings, h.embed)
	case "/responses":
		return RouteResponses, write, h.assembled(h.responses, h.respond)
	case "/openapi.json":
		return routeOpenAPI, read, func(e *exchange) error { return e.send(http.StatusOK, OpenAPI()) }
	}
	if escaped, ok := strings.CutPrefix(path, "/models/"); ok && escaped != "" {
		if name, err := url.PathUnescape(escaped); err == nil {
			return routeModel, read, func(e *exchange) error { return h.getModel(e, name) }
		}
	}
	if rest, ok := strings.CutPrefix(path, "/responses/"); ok {
		return h.ofResponses(rest)
	}
	return routeNone, nil, nil
}

// ended counts and logs a request.
func (h *Handler) ended(ctx context.Context, e *exchange, method, route string) {
	took := time.Since(e.arrived)
	h.metrics.ended(route, e.status, took)
	level := slog.LevelDebug
	switch {
	case e.status == http.StatusServiceUnavailable:
		level = slog.LevelWarn
	case e.status >= http.StatusInternalServerError:
		level = slog.LevelError
	case e.status >= http.StatusBadRequest:
		level = slog.LevelInfo
	}
	attributes := []slog.Attr{
		slog.String("method", clienterr.Shorten(method)), slog.String("route", route), slog.Int("status", e.status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000), slog.String("request_id", e.id),
	}
	if e.ignored != nil && len(*e.ignored) > 0 {
		level = max(level, slog.LevelInfo)
		// Only their number: the client chose the names, and gets them in a header.
		attributes = append(attributes, slog.Int("ignored", len(*e.ignored)))
	}
	if e.failed != nil {
		attributes = append(attributes, slog.String("code", e.failed.Code), slog.String("param", e.failed.Param))
	}
	h.log.LogAttrs(ctx, level, "http request ended", attributes...)
}

func (h *Handler) listModels(e *exchange) error {
	list := modelList{Object: "list", Data: []modelObject{}}
	for _, m := range h.config.Catalog.Models() {
		list.Data = append(list.Data, h.object(m, m.GetName()))
	}
	return e.reply(http.StatusOK, list)
}

func (h *Handler) getModel(e *exchange, name string) error {
	m, err := h.config.Catalog.Model(name)
	if err != nil {
		return err
	}
	return e.reply(http.StatusOK, h.object(m, name))
}

// object is a model. Its creation time is unknown, so the start of the router stands for it.
func (h *Handler) object(m *inferencev1.Model, id string) modelObject {
	return modelObject{ID: id, Object: "model", Created: h.started.Unix(), OwnedBy: "tandem", Root: m.GetName(), MaxModelLen: m.GetContextTokens()}
}
