package fakeserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Dialect is the server whose wire format an OpenAIServer imitates.
type Dialect string

// Dialects.
const (
	// DialectOpenAI ends a chat with a chunk of an empty delta and the finish reason,
	// sends "usage": null in all chunks but the last if usage is requested, refuses
	// unknown members with 400 and overload with 429, and breaks off streams silently.
	DialectOpenAI Dialect = "openai"
	// DialectVLLM sends the finish reason with the last token, supports ignore_eos,
	// min_tokens, continuous_usage_stats, return_token_ids, priority and cache_salt,
	// ignores unknown members, refuses overload with 503, and breaks off with an error in
	// the stream, then [DONE].
	DialectVLLM Dialect = "vllm"
)

const (
	maxBodyBytes      = 64 << 20
	readHeaderTimeout = 10 * time.Second
	// defaultTokens is the default of OpenAI's completions.
	defaultTokens = 16
)

// OpenAIOptions configure an OpenAIServer.
type OpenAIOptions struct {
	// Dialect is the wire format; empty: DialectOpenAI.
	Dialect Dialect
	// Texts of the tokens, cyclically. Empty: " a" for all.
	Texts []string
	// APIKey is the required bearer token; empty: none.
	APIKey string
}

// OpenAIServer is a fake server with OpenAI's HTTP API: /v1/models, /v1/completions and
// /v1/chat/completions, streamed or not.
type OpenAIServer struct {
	engine  *Engine
	options OpenAIOptions
	texts   []string // JSON-escaped
	mux     *http.ServeMux
	http    *http.Server
	cancel  context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// NewOpenAIServer returns a server driven by engine. The caller closes engine after the
// server.
func NewOpenAIServer(engine *Engine, options OpenAIOptions) (*OpenAIServer, error) {
	options.Dialect = cmp.Or(options.Dialect, DialectOpenAI)
	if options.Dialect != DialectOpenAI && options.Dialect != DialectVLLM {
		return nil, fmt.Errorf("dialect %q: use %s or %s", options.Dialect, DialectOpenAI, DialectVLLM)
	}
	s := &OpenAIServer{engine: engine, options: options}
	for _, text := range append(slices.Clone(options.Texts), " a")[:max(1, len(options.Texts))] {
		quoted := quote(text)
		s.texts = append(s.texts, quoted[1:len(quoted)-1])
	}
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, false) })
	s.mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { s.generate(w, r, true) })
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: readHeaderTimeout, BaseContext: func(net.Listener) context.Context { return ctx }}
	return s, nil
}

// Serve accepts connections until Stop. It closes the listener.
func (s *OpenAIServer) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Stop closes all connections and waits for their requests.
func (s *OpenAIServer) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel()
	_ = s.http.Close() // the listener's error does not matter
	s.running.Wait()
}

// ServeHTTP implements http.Handler.
func (s *OpenAIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	stopped := s.stopped
	if !stopped {
		s.running.Add(1)
	}
	s.mu.Unlock()
	if stopped {
		s.fail(w, http.StatusServiceUnavailable, "", "the server ends")
		return
	}
	defer s.running.Done()
	if key := s.options.APIKey; key != "" && r.Header.Get("Authorization") != "Bearer "+key {
		s.fail(w, http.StatusUnauthorized, "invalid_api_key", "Incorrect API key provided.")
		return
	}
	if _, pattern := s.mux.Handler(r); pattern == "" {
		s.fail(w, http.StatusNotFound, "unknown_url", fmt.Sprintf("Invalid URL (%s %s)", r.Method, r.URL.Path))
		return
	}
	s.mux.ServeHTTP(w, r)
}

func (s *OpenAIServer) models(w http.ResponseWriter, r *http.Request) {
	if s.engine.Thaw(r.Context()) != nil {
		return
	}
	model := `{"id":` + quote(Model) + `,"object":"model","created":` + strconv.FormatInt(s.engine.Start().Unix(), 10) + `,"owned_by":`
	if s.options.Dialect == DialectVLLM {
		model += `"vllm","root":` + quote(Model) + `,"parent":null,"max_model_len":` + strconv.Itoa(contextTokens) + `,"permission":[]}`
	} else {
		model += `"fake"}`
	}
	s.answer(w, http.StatusOK, `{"object":"list","data":[`+model+`]}`)
}

// errorType is an error's "type", by status.
func (s *OpenAIServer) errorType(status int) string {
	vllm := s.options.Dialect == DialectVLLM
	switch {
	case status == http.StatusTooManyRequests:
		return "requests"
	case status == http.StatusNotFound && vllm:
		return "NotFoundError"
	case status >= 500 && vllm:
		return strings.ReplaceAll(http.StatusText(status), " ", "")
	case status >= 500:
		return "server_error"
	case vllm:
		return "BadRequestError"
	}
	return "invalid_request_error"
}

// errorBody is an error in the dialect's form: vLLM's code is the status, OpenAI's a word
// or null.
func (s *OpenAIServer) errorBody(status int, code, message string) string {
	shown := "null"
	if s.options.Dialect == DialectVLLM {
		shown = strconv.Itoa(status)
	} else if code != "" {
		shown = quote(code)
	}
	return `{"error":{"message":` + quote(message) + `,"type":` + quote(s.errorType(status)) + `,"param":null,"code":` + shown + `}}`
}

func (s *OpenAIServer) fail(w http.ResponseWriter, status int, code, message string) {
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	s.answer(w, status, s.errorBody(status, code, message))
}

func (s *OpenAIServer) answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body)) // a disconnected client
}

// quote encodes a JSON string.
func quote(text string) string {
	quoted, _ := json.Marshal(text) // strings always marshal
	return string(quoted)
}
