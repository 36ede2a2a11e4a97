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

// Dialect is whose wire format an OpenAIServer follows where they differ.
type Dialect string

// The dialects.
const (
	// DialectOpenAI ends a chat with a chunk of an empty delta and the reason, gives
	// "usage": null in all chunks but the last if usage is asked for, refuses what it
	// does not know with 400 and too many requests with 429, and breaks off a stream
	// without a word.
	DialectOpenAI Dialect = "openai"
	// DialectVLLM gives the reason with the last token, knows ignore_eos, min_tokens,
	// continuous_usage_stats, return_token_ids, priority and cache_salt, ignores what
	// it does not know, refuses with 503, and breaks off with an error in the stream,
	// then [DONE].
	DialectVLLM Dialect = "vllm"
)

const (
	maxBodyBytes      = 64 << 20
	readHeaderTimeout = 10 * time.Second
	// defaultTokens is what OpenAI's completions default to.
	defaultTokens = 16
)

// OpenAIOptions say how an OpenAIServer speaks.
type OpenAIOptions struct {
	// Dialect is the wire format; empty: DialectOpenAI.
	Dialect Dialect
	// Texts are those of the tokens, one after another, from the start again after the
	// last. Empty: " a" for all.
	Texts []string
	// APIKey is wanted as a bearer token; empty: none is.
	APIKey string
}

// OpenAIServer is a fake server with OpenAI's HTTP API: /v1/models,
// /v1/completions and /v1/chat/completions, streamed or not.
type OpenAIServer struct {
	engine  *Engine
	options OpenAIOptions
	texts   []string // as they stand in JSON
	mux     *http.ServeMux
	http    *http.Server
	cancel  context.CancelFunc

	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// NewOpenAIServer makes a server that sends what engine says. The caller closes
// engine after the server.
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

// Serve takes connections until Stop. It closes the listener.
func (s *OpenAIServer) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Stop ends all connections and waits for their requests.
func (s *OpenAIServer) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	s.cancel()
	_ = s.http.Close() // the listener's error is of no use now
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

// errorType is the "type" of an error, by its status.
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

// errorBody is an error as the dialect has it: vLLM's code is the status, OpenAI's
// a word or null.
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
	_, _ = w.Write([]byte(body)) // a client that went away is told nothing
}

// quote is a JSON string.
func quote(text string) string {
	quoted, _ := json.Marshal(text) // strings are always marshalled
	return string(quoted)
}
