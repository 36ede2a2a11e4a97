package openai

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Backend serves what requests were translated into; the router is one. Its
// errors are gRPC statuses. Its methods are safe for concurrent use.
type Backend interface {
	// Generate calls send with each event of one request, from this goroutine. An
	// error of send, or the end of ctx, ends the request.
	Generate(ctx context.Context, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error
	// Check says what Generate would accept, without serving it.
	Check(ctx context.Context, q *inferencev1.GenerateRequest) (*inferencev1.Accepted, error)
	// Models are those that can be asked for, sorted by name.
	Models() []*inferencev1.Model
	// Model is the one that is meant by a name, which may be an alias.
	Model(name string) (*inferencev1.Model, error)
}

// Config is what a Handler works with. Backend has to be there.
type Config struct {
	Backend Backend
	// Logger gets a line for each request that ends; nil: none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil: none.
	Registerer prometheus.Registerer
	// MaxBodyBytes is the longest body taken; 0: DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// ReadTimeout is how long a body may take to come, and WriteTimeout how long a
	// client may take to read one message; 0: the defaults.
	ReadTimeout, WriteTimeout time.Duration
}

// Defaults of Config.
const (
	DefaultMaxBodyBytes = 8 << 20
	DefaultReadTimeout  = time.Minute
	DefaultWriteTimeout = 30 * time.Second
)

// Handler serves the API. It is safe for concurrent use.
type Handler struct {
	backend Backend
	config  Config
	log     *slog.Logger
	metrics *metrics
	started time.Time
}

// New returns a Handler.
func New(config Config) (*Handler, error) {
	if config.Backend == nil {
		return nil, errors.New("openai: no backend is given")
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.MaxBodyBytes <= 0 {
		config.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if config.ReadTimeout <= 0 {
		config.ReadTimeout = DefaultReadTimeout
	}
	if config.WriteTimeout <= 0 {
		config.WriteTimeout = DefaultWriteTimeout
	}
	m, err := newMetrics(config.Registerer)
	if err != nil {
		return nil, fmt.Errorf("http metrics: %w", err)
	}
	return &Handler{backend: config.Backend, config: config, log: config.Logger, metrics: m, started: time.Now()}, nil
}

// Routes, as metrics and log lines name them.
const (
	routeModels      = "/v1/models"
	routeModel       = "/v1/models/{model}"
	routeCompletions = "/v1/completions"
	routeChat        = "/v1/chat/completions"
	routeNone        = "none"
)

// ServeHTTP answers one request. All paths are also there without /v1.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now()
	id := r.Header.Get(rpc.RequestIDKey)
	if !rpc.ValidRequestID(id) {
		id = newID()
	}
	ctx := rpc.HTTPTrace(rpc.WithRequestID(r.Context(), id), r.Header)
	e := &exchange{ResponseController: http.NewResponseController(w), writer: w, request: r.WithContext(ctx), arrived: arrived, id: id, timeout: h.config.WriteTimeout}
	route, allowed, serve := h.route(r.URL)
	defer func() {
		if p := recover(); p != nil {
			h.log.ErrorContext(ctx, "handler panicked", slog.String("request_id", id), slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			e.fail(&Failure{Status: http.StatusInternalServerError, Message: "the server failed on this request: its log says why", Type: typeServer, Code: "panic"})
		}
		h.ended(ctx, e, r.Method, route)
	}()
	var err error
	switch {
	case serve == nil:
		err = noRoute(r.Method, shorten(r.URL.Path))
	case !slices.Contains(allowed, r.Method):
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		err = noMethod(shorten(r.Method), route, strings.Join(allowed, " or "))
	default:
		err = serve(e)
	}
	if err != nil {
		e.fail(err)
	}
}

// newID draws the id of a request.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// route finds what serves a path; nil if nothing does.
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
		return routeCompletions, write, func(e *exchange) error { return h.generate(e, parseCompletion) }
	case "/chat/completions":
		return routeChat, write, func(e *exchange) error { return h.generate(e, parseChat) }
	}
	if escaped, ok := strings.CutPrefix(path, "/models/"); ok && escaped != "" {
		if name, err := url.PathUnescape(escaped); err == nil {
			return routeModel, read, func(e *exchange) error { return h.getModel(e, name) }
		}
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
		slog.String("method", shorten(method)), slog.String("route", route), slog.Int("status", e.status),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000), slog.String("request_id", e.id),
	}
	if e.failed != nil {
		attributes = append(attributes, slog.String("code", e.failed.Code), slog.String("param", e.failed.Param))
	}
	h.log.LogAttrs(ctx, level, "http request ended", attributes...)
}

func (h *Handler) listModels(e *exchange) error {
	list := modelList{Object: "list", Data: []modelObject{}}
	for _, m := range h.backend.Models() {
		list.Data = append(list.Data, h.object(m, m.GetName()))
	}
	return e.reply(http.StatusOK, list)
}

func (h *Handler) getModel(e *exchange, name string) error {
	m, err := h.backend.Model(name)
	if err != nil {
		return err
	}
	return e.reply(http.StatusOK, h.object(m, name))
}

// object is a model. When it was made is not known: it is served since the start.
func (h *Handler) object(m *inferencev1.Model, id string) modelObject {
	return modelObject{ID: id, Object: "model", Created: h.started.Unix(), OwnedBy: "tandem", Root: m.GetName(), MaxModelLen: m.GetContextTokens()}
}

// generate serves a completion or a chat.
func (h *Handler) generate(e *exchange, parse func([]byte) (*call, error)) error {
	body, err := h.body(e)
	if err != nil {
		return err
	}
	c, err := parse(body)
	if err != nil {
		return err
	}
	a := h.newAssembly(e, c)
	if c.stream {
		s := &stream{assembly: a, exchange: e}
		if err := h.run(e.request.Context(), c, s.receive); err != nil {
			return rename(err, c.name)
		}
		return s.finish()
	}
	if err := h.run(e.request.Context(), c, a.collect); err != nil {
		return rename(err, c.name)
	}
	return e.reply(http.StatusOK, a.whole())
}

// body reads a request's body, and to its end, without which net/http would not
// notice that the client leaves.
func (h *Handler) body(e *exchange) ([]byte, error) {
	if err := e.SetReadDeadline(time.Now().Add(h.config.ReadTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(e.writer, e.request.Body, h.config.MaxBodyBytes))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return nil, &Failure{
			Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large",
			Message: "the body is longer than " + strconv.FormatInt(tooLong.Limit, 10) + " bytes",
		}
	case err != nil:
		return nil, &Failure{Status: http.StatusRequestTimeout, Type: typeInvalid, Code: "incomplete_body", Message: "the body did not come in time, or not to its end"}
	}
	if err := e.SetReadDeadline(time.Time{}); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return nil, err
	}
	return body, nil
}
