package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

func TestOpenAIConfig(t *testing.T) {
	good := client.OpenAIConfig{URL: "http://127.0.0.1:8000"}
	cases := []struct {
		name   string
		change func(*client.OpenAIConfig)
		want   string // empty: it is good
	}{
		{"as it is", func(*client.OpenAIConfig) {}, ""},
		{"no scheme", func(c *client.OpenAIConfig) { c.URL = "localhost:8000" }, ""},
		{"https", func(c *client.OpenAIConfig) { c.URL = "https://api.example.com/v1/" }, ""},
		{"token ids", func(c *client.OpenAIConfig) { c.TokenIDs, c.VocabularySize = true, 4096 }, ""},
		{"no URL", func(c *client.OpenAIConfig) { c.URL = "" }, "pass --openai"},
		{"another scheme", func(c *client.OpenAIConfig) { c.URL = "grpc://a:1" }, "http or https"},
		{"no host", func(c *client.OpenAIConfig) { c.URL = "http://:80/v1" }, "no host"},
		{"bad port", func(c *client.OpenAIConfig) { c.URL = "http://a:b" }, "give one like"},
		{"query", func(c *client.OpenAIConfig) { c.URL = "http://a?b=c" }, "remove what follows"},
		{"whole path", func(c *client.OpenAIConfig) { c.URL = "http://a/v1/chat/completions" }, "up to /v1"},
		{"API", func(c *client.OpenAIConfig) { c.API = "responses" }, "--openai-api completions or chat"},
		{"token ids in a chat", func(c *client.OpenAIConfig) { c.API, c.TokenIDs = client.ChatAPI, true }, "chats take no token ids"},
		{"no vocabulary", func(c *client.OpenAIConfig) { c.TokenIDs = true }, "--openai-vocabulary"},
		{"header", func(c *client.OpenAIConfig) { c.Headers = []string{"a b: c"} }, "--openai-header"},
		{"header without a colon", func(c *client.OpenAIConfig) { c.Headers = []string{"a"} }, "--openai-header"},
		{"header with a line break", func(c *client.OpenAIConfig) { c.Headers = []string{"a: b\nc: d"} }, "--openai-header"},
		{"key", func(c *client.OpenAIConfig) { c.APIKey = "a\n" }, "API key"},
		{"body", func(c *client.OpenAIConfig) { c.Body = "top_p=1" }, "--openai-body a JSON object"},
		{"body is null", func(c *client.OpenAIConfig) { c.Body = "null" }, "--openai-body a JSON object"},
		{"body with n", func(c *client.OpenAIConfig) { c.Body = `{"n":2}` }, `"n"`},
	}
	for _, c := range cases {
		cfg := good
		c.change(&cfg)
		subject, err := client.NewOpenAI(cfg)
		if err == nil {
			subject.Close()
		}
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestOpenAIFlags(t *testing.T) {
	var cfg client.OpenAIConfig
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	err := fs.Parse([]string{
		"--openai", "http://a", "--openai-header", "a: b, c", "--openai-header", "d: e", "--openai-body", `{"a":[1,2]}`, "--openai-api", "chat",
	})
	want := client.OpenAIConfig{URL: "http://a", API: "chat", Headers: []string{"a: b, c", "d: e"}, Body: `{"a":[1,2]}`}
	if diff := cmp.Diff(want, cfg); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestOpenAIURL(t *testing.T) {
	cases := []struct{ url, want string }{
		{"", "/v1/models"}, {"/", "/v1/models"}, {"/v1", "/v1/models"}, {"/v1/", "/v1/models"}, {"/llama", "/llama/v1/models"},
		{"/v1beta/openai", "/v1beta/openai/models"}, {"/api/v3/", "/api/v3/models"},
	}
	for _, c := range cases {
		path := ""
		subject := openAI(t, func(w http.ResponseWriter, r *http.Request) {
			path = r.URL.Path
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		}, func(cfg *client.OpenAIConfig) { cfg.URL += c.url })
		if _, err := subject.Describe(t.Context()); err != nil || path != c.want {
			t.Errorf("%q: asked %s, want %s (%v)", c.url, path, c.want, err)
		}
	}
}

// A password in the URL is sent to the server and stored nowhere.
func TestOpenAIURLWithAPassword(t *testing.T) {
	for header, want := range map[string]string{"": "user:geheim", "Authorization: Basic YTpi": "a:b"} {
		said := ""
		subject := openAI(t, func(w http.ResponseWriter, r *http.Request) {
			name, password, _ := r.BasicAuth()
			said = name + ":" + password
			_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
		}, func(cfg *client.OpenAIConfig) {
			cfg.URL = strings.Replace(cfg.URL, "://", "://user:geheim@", 1)
			if header != "" {
				cfg.Headers = []string{header}
			}
		})
		d, err := subject.Describe(t.Context())
		if err != nil || said != want || strings.Contains(d.Address, "@") {
			t.Errorf("%q: the server heard %q, want %q; the address is %s (%v)", header, said, want, d.Address, err)
		}
	}
}

// Headers come with each call, Host among them, by which proxies tell servers apart.
func TestOpenAIHeaders(t *testing.T) {
	var said []string
	subject := openAI(t, func(w http.ResponseWriter, r *http.Request) {
		said = append(said, r.URL.Path+" "+r.Host+" "+r.Header.Get("X-Team"))
		_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
	}, func(cfg *client.OpenAIConfig) { cfg.Headers = []string{"host: a.example", "X-Team: b"} })
	if _, err := subject.Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	do(t.Context(), t, subject, ask())
	want := []string{"/v1/models a.example b", "/v1/completions a.example b"}
	if diff := cmp.Diff(want, said); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOpenAIDescribe(t *testing.T) {
	cases := []struct {
		name   string
		status int
		body   string
		cfg    client.OpenAIConfig
		want   client.Description
		err    string
	}{
		{name: "vLLM", body: `{"object":"list","data":[{"id":"llama","object":"model","created":1,"owned_by":"vllm","max_model_len":8192}]}`,
			want: client.Description{Model: "llama", Server: "vllm (uvicorn)", ContextTokens: 8192, TextOnly: true}},
		{name: "llama.cpp", body: `{"data":[{"id":"a","owned_by":"llamacpp","meta":{"n_vocab":32000,"n_ctx_train":4096}}]}`,
			want: client.Description{Model: "a", Server: "llamacpp (uvicorn)", ContextTokens: 4096, VocabularySize: 32000, TextOnly: true}},
		{name: "the first", body: `{"data":[{"id":"a"},{"id":"b"}]}`, want: client.Description{Model: "a", Server: "uvicorn", TextOnly: true}},
		{name: "named", body: `{"data":[{"id":"a"},{"id":"b"}]}`, cfg: client.OpenAIConfig{Model: "b"}, want: client.Description{Model: "b", Server: "uvicorn", TextOnly: true}},
		{name: "Ollama's tag", body: `{"data":[{"id":"b:latest"}]}`, cfg: client.OpenAIConfig{Model: "b"}, want: client.Description{Model: "b:latest", Server: "uvicorn", TextOnly: true}},
		{name: "token ids", body: `{"data":[{"id":"a"}]}`, cfg: client.OpenAIConfig{TokenIDs: true, VocabularySize: 7}, want: client.Description{Model: "a", Server: "uvicorn", VocabularySize: 7}},
		{name: "not listed", body: `{"data":[{"id":"a"},{"id":"b"}]}`, cfg: client.OpenAIConfig{Model: "c"}, err: `no model "c": pass --openai-model with one of a, b`},
		{name: "none", body: `{"data":[]}`, err: "lists no model"},
		{name: "no list", body: `{"error":"x"}`, err: "not a list of models"},
		{name: "a page", body: `<html>`, err: "not a list of models"},
		{name: "404", status: 404, err: "--openai-model"},
		{name: "404 with a model", status: 404, cfg: client.OpenAIConfig{Model: "c"}, want: client.Description{Model: "c", Server: "uvicorn", TextOnly: true}},
		{name: "401", status: 401, body: `{"error":{"message":"who?"}}`, err: "wants an API key: set OPENAI_API_KEY (HTTP 401: who?)"},
		{name: "401 with a key", status: 401, cfg: client.OpenAIConfig{APIKey: "k"}, err: "rejects the API key"},
		{name: "500", status: 500, body: "boom", err: "HTTP 500: boom"},
		{name: "redirect", status: 308, err: "redirects to http://elsewhere/"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			address := ""
			subject := openAI(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Server", "uvicorn")
				if c.status != 0 {
					w.Header().Set("Location", "http://elsewhere/")
					w.WriteHeader(c.status)
				}
				_, _ = io.WriteString(w, c.body)
			}, func(cfg *client.OpenAIConfig) {
				address = cfg.URL + "/v1"
				c.cfg.URL = cfg.URL
				*cfg = c.cfg
			})
			got, err := subject.Describe(t.Context())
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("%v, want an error with %q", err, c.err)
				}
				return
			}
			c.want.Kind, c.want.Address = "openai", address
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// The URL may not be an OpenAI server, or a server at all.
func TestOpenAIDescribeFindsOut(t *testing.T) {
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	defer secure.Close()
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.2\r\n")
			conn.Close()
		}
	}()
	cases := []struct{ name, url, want string }{
		{"nobody", free(t), "start the server"},
		{"certificate", secure.URL, "--openai-insecure"},
		{"http for https", strings.Replace(plain.URL, "http", "https", 1), "http://"},
		{"another protocol", "http://" + other.Addr().String(), "did not answer as an HTTP server"},
	}
	for _, c := range cases {
		subject, err := client.NewOpenAI(client.OpenAIConfig{URL: c.url})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := subject.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
		subject.Close()
	}
	subject, err := client.NewOpenAI(client.OpenAIConfig{URL: secure.URL, Model: "m", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	if _, err := subject.Describe(t.Context()); err != nil {
		t.Errorf("with --openai-insecure: %v", err)
	}
}

func TestOpenAINeedsAModel(t *testing.T) {
	subject := openAI(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") }, func(cfg *client.OpenAIConfig) { cfg.Model = "" })
	r, answer := do(t.Context(), t, subject, ask())
	compare(t, seen{Outcome: record.Unsent, Code: "client", Error: "no model is known", Prompt: -1, Cached: -1}, r, answer)
}

// ending is a context that ends on demand, as if by its deadline.
type ending struct {
	context.Context
	done chan struct{}
	err  error
}

func (c *ending) Done() <-chan struct{} { return c.done }

func (c *ending) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// A request ends with its context, before the headers or in the stream, and the server
// notices.
func TestOpenAIEndsWithItsContext(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, inStream := range []bool{false, true} {
		for _, timeout := range []bool{false, true} {
			name := fmt.Sprintf("in the stream %t, by time %t", inStream, timeout)
			reached, gone := make(chan struct{}), make(chan struct{})
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(gone)
				_, _ = io.Copy(io.Discard, r.Body)
				if inStream {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, stream(token))
					_ = http.NewResponseController(w).Flush()
				}
				close(reached)
				<-r.Context().Done()
			}))
			subject, err := client.NewOpenAI(client.OpenAIConfig{URL: server.URL, Model: "m"})
			if err != nil {
				t.Fatal(err)
			}
			ctx := &ending{Context: t.Context(), done: make(chan struct{}), err: context.Canceled}
			want := seen{Outcome: record.Cancelled, Code: "connection", Prompt: -1, Cached: -1}
			if timeout {
				ctx.err, want.Outcome, want.Code = context.DeadlineExceeded, record.TimedOut, "timeout"
			}
			go func() {
				<-reached
				close(ctx.done)
			}()
			r, answer := do(ctx, t, subject, ask())
			<-gone
			if r.Error == "" {
				t.Errorf("%s: no error", name)
			}
			// Whether the token arrived first is a race.
			want.Error, want.ID, want.Messages, want.Output, want.Text = r.Error, r.ID, nil, r.OutputTokens, answer.Text
			for _, a := range r.Arrivals {
				want.Messages = append(want.Messages, a.Tokens)
			}
			compare(t, want, r, answer)
			if (r.Admitted != record.Unset || len(r.Arrivals) > 0) && !inStream {
				t.Errorf("%s: admitted at %s, %d messages", name, r.Admitted, len(r.Arrivals))
			}
			subject.Close()
			server.Close()
		}
	}
}

// The response ends at [DONE], whatever happens to the connection then.
func TestOpenAIDoesNotWaitAfterDone(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream(token, finish, "[DONE]"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	subject, err := client.NewOpenAI(client.OpenAIConfig{URL: server.URL, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	r, answer := do(t.Context(), t, subject, ask())
	compare(t, seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "length", Text: " a"}, r, answer)
}

// Do returns at [DONE]. If the stream then ends cleanly, the connection is reused
// although the request's context has ended.
func TestOpenAIReturnsWithDone(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	returned, well := make(chan struct{}), make(chan bool, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream(token, finish, "[DONE]"))
		_ = http.NewResponseController(w).Flush()
		select {
		case <-returned:
			well <- true
		case <-r.Context().Done():
			well <- false
		}
	}))
	defer server.Close()
	subject, err := client.NewOpenAI(client.OpenAIConfig{URL: server.URL, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, _ := do(ctx, t, subject, ask())
	cancel()
	close(returned)
	if !<-well || r.Outcome != record.Completed {
		t.Errorf("%s: the request lasted until its connection was closed", r.Outcome)
	}
	if err := subject.Close(); err != nil {
		t.Error(err)
	}
}

// A connection serves one request after another.
func TestOpenAIUsesConnectionsAgain(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream(token, finish, "[DONE]"))
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	subject, err := client.NewOpenAI(client.OpenAIConfig{URL: server.URL, Model: "m"})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	for range 5 {
		if r, _ := do(t.Context(), t, subject, ask()); r.Outcome != record.Completed {
			t.Fatal(r.Error)
		}
	}
	// The next request may be sent before the last stream ended.
	if n := connections.Load(); n > 2 {
		t.Errorf("%d connections for requests one after another", n)
	}
}

// Over TLS, HTTP/2 is used if the server supports it.
func TestOpenAIOverHTTP2(t *testing.T) {
	version := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		version = r.ProtoMajor
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, stream(token, finish, "[DONE]"))
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	subject, err := client.NewOpenAI(client.OpenAIConfig{URL: server.URL, Model: "m", Insecure: true})
	if err != nil {
		t.Fatal(err)
	}
	defer subject.Close()
	if r, _ := do(t.Context(), t, subject, ask()); r.Outcome != record.Completed || version != 2 || r.Sent == record.Unset {
		t.Errorf("%s over HTTP/%d, sent at %s: %s", r.Outcome, version, r.Sent, r.Error)
	}
}

// TANDEM_OPENAI_URL, and TANDEM_OPENAI_MODEL if it has several models, select a real
// server.
func TestOpenAIServerOfAnotherMake(t *testing.T) {
	where := os.Getenv("TANDEM_OPENAI_URL")
	if where == "" {
		t.Skip("TANDEM_OPENAI_URL names no server")
	}
	for _, api := range []string{client.CompletionsAPI, client.ChatAPI} {
		t.Run(api, func(t *testing.T) {
			subject, err := client.NewOpenAI(client.OpenAIConfig{URL: where, API: api, Model: os.Getenv("TANDEM_OPENAI_MODEL"), APIKey: os.Getenv("OPENAI_API_KEY")})
			if err != nil {
				t.Fatal(err)
			}
			defer subject.Close()
			d, err := subject.Describe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", d)
			const tokens = 12
			done := make(chan *record.Record)
			for range 4 {
				go func() {
					r := new(record.Record)
					subject.Do(t.Context(), &workload.Request{Prompt: workload.Prompt{Text: "Once upon a time"}, MaxTokens: tokens}, client.NewClock(time.Now()), r)
					done <- r
				}()
			}
			for range 4 {
				r := <-done
				t.Logf("%s %s: prompt %d, output %d in %d messages, %s; sent %s, admitted %s, first %s, end %s", r.ID, r.Outcome,
					r.PromptTokens, r.OutputTokens, len(r.Arrivals), r.FinishReason, r.Sent, r.Admitted, r.First(), r.End)
				if r.Outcome != record.Completed || len(r.Arrivals) == 0 || r.OutputTokens < 1 || r.OutputTokens > tokens || r.ID == "" || r.FinishReason == "" {
					t.Errorf("%s %s", r.Code, r.Error)
				}
			}
			r := new(record.Record)
			other, err := client.NewOpenAI(client.OpenAIConfig{URL: where, API: api, Model: "no-such-model", APIKey: os.Getenv("OPENAI_API_KEY")})
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if _, err := other.Describe(t.Context()); err == nil {
				t.Error("there is no such model")
			}
			other.Do(t.Context(), &workload.Request{Prompt: workload.Prompt{Text: "a"}, MaxTokens: 1}, client.NewClock(time.Now()), r)
			if r.Outcome != record.Failed || !strings.HasPrefix(r.Code, "HTTP 4") || r.Error == "" {
				t.Errorf("of a model that is not there: %s %s %s", r.Outcome, r.Code, r.Error)
			}
			t.Log(r.Code, r.Error)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errors.New("enough"))
			r = new(record.Record)
			subject.Do(ctx, &workload.Request{Prompt: workload.Prompt{Text: "a"}, MaxTokens: 1}, client.NewClock(time.Now()), r)
			if r.Outcome != record.Cancelled {
				t.Errorf("cancelled: %s %s", r.Outcome, r.Error)
			}
		})
	}
}

// What this machine lacks is not the server's failure.
func TestOpenAIUnreached(t *testing.T) {
	for _, c := range []struct {
		err     syscall.Errno
		outcome record.Outcome
		code    string
		says    string
	}{
		{syscall.EMFILE, record.Unsent, client.CodeClient, "too many open files"},
		{syscall.ENFILE, record.Unsent, client.CodeClient, "too many open files"},
		{syscall.EADDRNOTAVAIL, record.Unsent, client.CodeClient, "no local port is free"},
		{syscall.ECONNREFUSED, record.Failed, "connection", "connection refused"},
	} {
		r := client.Unreached(t.Context(), &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", c.err)})
		if r.Outcome != c.outcome || r.Code != c.code || !strings.Contains(r.Error, c.says) {
			t.Errorf("%v: %s %s: %s", c.err, r.Outcome, r.Code, r.Error)
		}
	}
}
