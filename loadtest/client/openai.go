package client

import (
	"cmp"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/net/http/httpguts"
)

// APIs of an OpenAI-compatible server.
const (
	// CompletionsAPI is POST /v1/completions.
	CompletionsAPI = "completions"
	// ChatAPI is POST /v1/chat/completions.
	ChatAPI = "chat"
)

const (
	connectTimeout   = 10 * time.Second
	handshakeTimeout = 10 * time.Second
	// Open loop needs as many idle connections as it ever has requests in flight. A
	// request sent while the server closes its connection fails, so the client closes
	// idle connections first: uvicorn, used by vLLM and SGLang, does so after 5 s.
	idleConnections = 1 << 16
	idleTimeout     = 4 * time.Second
	// maxHeaderBytes bounds a response's headers.
	maxHeaderBytes = 64 << 10
)

// OpenAIConfig configures a client of an OpenAI-compatible HTTP API.
type OpenAIConfig struct {
	// URL of the API, with or without /v1: "http://127.0.0.1:8000".
	URL string
	// API is CompletionsAPI or ChatAPI; empty: CompletionsAPI.
	API string
	// Model to request; empty: the first one listed.
	Model string
	// APIKey is sent as a bearer token; empty: none.
	APIKey string
	// Headers for each request, "Name: value" each.
	Headers []string
	// Body is a JSON object whose members are merged into each request's body and replace
	// members of the same name; null removes one. Empty: none.
	Body string
	// TokenIDs: the server accepts prompts of token ids, as OpenAI, vLLM and SGLang do
	// for completions. VocabularySize is then required.
	TokenIDs       bool
	VocabularySize int
	// MaxCompletionTokens: send max_completion_tokens in place of max_tokens, as OpenAI
	// requires for chats with reasoning models.
	MaxCompletionTokens bool
	// ContinuousUsage asks for token counts with each message, as vLLM and SGLang
	// support; without them, the number of tokens per message is unknown. Other servers
	// may refuse the request.
	ContinuousUsage bool
	// TLS is how an https server is known. Nil: by the system's authorities.
	TLS *tls.Config
	// Insecure disables verification of the server's certificate.
	Insecure bool
}

// RegisterFlags registers the flags with the values in c as defaults. Process listings
// show the flag for the API key, so commands read it from OPENAI_API_KEY.
func (c *OpenAIConfig) RegisterFlags(fs *pflag.FlagSet) {
	c.API = cmp.Or(c.API, CompletionsAPI)
	fs.StringVar(&c.URL, "openai", c.URL, "URL of a server with OpenAI's API, with or without /v1")
	fs.StringVar(&c.API, "openai-api", c.API, "completions or chat")
	fs.StringVar(&c.Model, "openai-model", c.Model, "model to ask for (default: the first that the server lists)")
	fs.StringVar(&c.APIKey, "openai-key", c.APIKey, "API key (default: $OPENAI_API_KEY, which other users of the machine cannot see)")
	fs.StringArrayVar(&c.Headers, "openai-header", c.Headers, `"Name: value" to send with each request; may be repeated`)
	fs.StringVar(&c.Body, "openai-body", c.Body, `JSON object to merge into each request, as in '{"top_p":0.9}'; null removes a member`)
	fs.BoolVar(&c.TokenIDs, "openai-token-ids", c.TokenIDs, "send prompts as token ids; needs completions and --openai-vocabulary")
	fs.IntVar(&c.VocabularySize, "openai-vocabulary", c.VocabularySize, "size of the model's vocabulary, for --openai-token-ids")
	fs.BoolVar(&c.MaxCompletionTokens, "openai-max-completion-tokens", c.MaxCompletionTokens, "send max_completion_tokens instead of max_tokens")
	fs.BoolVar(&c.ContinuousUsage, "openai-continuous-usage", c.ContinuousUsage, "ask for the count of tokens with each message (vLLM, SGLang)")
	fs.BoolVar(&c.Insecure, "openai-insecure", c.Insecure, "do not check the server's certificate")
}

// settings are a validated and parsed configuration.
type settings struct {
	cfg    OpenAIConfig
	base   *url.URL // up to and including the version
	header http.Header
	// extra is the parsed Body.
	extra map[string]json.RawMessage
}

// ownMembers determine how the response is parsed, so Body must not set them.
var ownMembers = []string{"model", "prompt", "messages", "stream", "n", "best_of", "echo"}

func newSettings(cfg OpenAIConfig) (settings, error) {
	s := settings{cfg: cfg, header: http.Header{}}
	var err error
	if s.base, err = baseURL(cfg.URL); err != nil {
		return s, err
	}
	s.cfg.API = cmp.Or(cfg.API, CompletionsAPI)
	if s.cfg.API != CompletionsAPI && s.cfg.API != ChatAPI {
		return s, fmt.Errorf("API %q: use --openai-api %s or %s", cfg.API, CompletionsAPI, ChatAPI)
	}
	if cfg.TokenIDs {
		if s.cfg.API == ChatAPI {
			return s, fmt.Errorf("chats take no token ids: use --openai-api %s, or leave out --openai-token-ids", CompletionsAPI)
		}
		if cfg.VocabularySize < 1 || cfg.VocabularySize > math.MaxInt32 {
			return s, fmt.Errorf("vocabulary of %d token ids: pass --openai-vocabulary with the model's vocab_size", cfg.VocabularySize)
		}
	}
	for _, line := range cfg.Headers {
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return s, fmt.Errorf(`header %q: give it as --openai-header "Name: value"`, line)
		}
		s.header.Add(name, value)
	}
	if !httpguts.ValidHeaderFieldValue(cfg.APIKey) {
		return s, errors.New("the API key has characters that no header may have: look for a line break in --openai-key or OPENAI_API_KEY")
	}
	if cfg.APIKey != "" {
		s.header.Set("Authorization", "Bearer "+cfg.APIKey)
	}
	// A user in the URL becomes a header and is removed from the URL, which appears in
	// reports and errors.
	if u := s.base.User; u != nil {
		if s.header.Get("Authorization") == "" {
			password, _ := u.Password()
			s.header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
		}
		s.base.User = nil
	}
	if cfg.Body != "" {
		err := json.Unmarshal([]byte(cfg.Body), &s.extra)
		if err == nil && s.extra == nil {
			err = errors.New("it is null")
		}
		if err != nil {
			return s, fmt.Errorf(`body %q: give --openai-body a JSON object, as in '{"top_p":0.9}' (%w)`, shortened(cfg.Body), err)
		}
		for name := range s.extra {
			if slices.Contains(ownMembers, name) {
				return s, fmt.Errorf("body has %q, which --openai-body cannot set: the load generator reads one streamed answer a request", name)
			}
		}
	}
	return s, nil
}

// versioned matches a version in a URL's path, as in /v1 or /v1beta/openai.
var versioned = regexp.MustCompile(`/v[0-9][^/]*(/|$)`)

// baseURL is the URL up to and including the version.
func baseURL(text string) (*url.URL, error) {
	if text == "" {
		return nil, errors.New("no URL: pass --openai http://HOST:PORT")
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("URL %q: give one like http://127.0.0.1:8000 (%w)", text, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("URL %q: it must be http or https", text)
	case u.Hostname() == "":
		return nil, fmt.Errorf("URL %q has no host: give one like http://127.0.0.1:8000", text)
	case u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("URL %q: remove what follows the path", text)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = ""
	if strings.HasSuffix(u.Path, "/completions") || strings.HasSuffix(u.Path, "/models") {
		return nil, fmt.Errorf("URL %q: give the URL up to /v1, and choose the API with --openai-api", text)
	}
	if !versioned.MatchString(u.Path) {
		u.Path += "/v1"
	}
	return u, nil
}

// openAI is a client of an OpenAI-compatible server.
type openAI struct {
	settings

	transport *http.Transport
	client    *http.Client
	endpoint  string
	// model to request, once known.
	model atomic.Pointer[string]
	// endings counts finished responses whose streams have not ended.
	endings sync.WaitGroup
}

// NewOpenAI returns a client of an OpenAI-compatible HTTP API. It does not connect yet;
// the error concerns the configuration.
//
// Each request has its own connection, or HTTP/2 stream, and waits for no other. There
// are no proxies, redirects or compression, so that the measured server is the one at
// that address.
func NewOpenAI(cfg OpenAIConfig) (Client, error) {
	s, err := newSettings(cfg)
	if err != nil {
		return nil, err
	}
	security := new(tls.Config)
	if cfg.TLS != nil {
		security = cfg.TLS.Clone()
	}
	security.MinVersion, security.InsecureSkipVerify = tls.VersionTLS12, cfg.Insecure
	t := &openAI{settings: s, transport: &http.Transport{
		DialContext:            (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout:    handshakeTimeout,
		TLSClientConfig:        security,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true,
		MaxIdleConns:           idleConnections,
		MaxIdleConnsPerHost:    idleConnections,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}}
	t.client = &http.Client{
		Transport:     t.transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	path := "completions"
	if t.cfg.API == ChatAPI {
		path = "chat/completions"
	}
	t.endpoint = t.base.JoinPath(path).String()
	if cfg.Model != "" {
		t.model.Store(&t.cfg.Model)
	}
	return t, nil
}

// Close implements Client. It waits up to 100 ms for streams to end.
func (t *openAI) Close() error {
	t.endings.Wait()
	t.transport.CloseIdleConnections()
	return nil
}
