package fakeserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/fakeserver"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// form is a way to send an answer.
type form struct {
	fakeserver.OpenAIOptions
	// split: flush in pieces of so many bytes, which splits lines and characters.
	// keepAlive: send a comment before each event, like some proxies. crlf: end lines
	// with CRLF.
	split           int
	keepAlive, crlf bool
}

// over is a server that answers in a form.
func (f form) over(server http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		server.ServeHTTP(formed{w, f}, r)
	})
}

type formed struct {
	http.ResponseWriter
	form
}

func (f formed) Unwrap() http.ResponseWriter { return f.ResponseWriter }

func (f formed) Write(answer []byte) (int, error) {
	if !strings.HasPrefix(f.Header().Get("Content-Type"), "text/event-stream") {
		return f.ResponseWriter.Write(answer)
	}
	text := string(answer)
	if f.keepAlive {
		text = strings.ReplaceAll(text, "data: {", ": keep-alive\n\ndata: {")
	}
	if f.crlf {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	size := f.split
	if size == 0 {
		size = len(text)
	}
	for piece := range slices.Chunk([]byte(text), size) {
		if _, err := f.ResponseWriter.Write(piece); err != nil {
			return 0, err
		}
		if err := http.NewResponseController(f.ResponseWriter).Flush(); err != nil {
			return 0, err
		}
	}
	return len(answer), nil
}

// serveOpenAI serves until the test ends, and gives the server's URL.
func serveOpenAI(t *testing.T, shape fakeserver.Shape, options form) (string, *fakeserver.Engine) {
	t.Helper()
	engine, err := fakeserver.NewEngine(shape, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := fakeserver.NewOpenAIServer(engine, options.OpenAIOptions)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := &http.Server{Handler: options.over(server), ReadHeaderTimeout: time.Minute}
	done := make(chan error)
	go func() { done <- serving.Serve(l) }()
	t.Cleanup(func() {
		_ = serving.Close() // the listener's error is of no use now
		server.Stop()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return "http://" + l.Addr().String(), engine
}

// Texts of several bytes, with what JSON escapes, and of several characters.
var texts = []string{" a", "é", "世界", "\n", "😀", `"\`, "\u2028"}

// said is the text of n tokens.
func said(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(texts[i%len(texts)])
	}
	return b.String()
}

// forms are the ways to send the same.
func forms() map[string]form {
	forms := make(map[string]form)
	for _, dialect := range []fakeserver.Dialect{fakeserver.DialectOpenAI, fakeserver.DialectVLLM} {
		for name, f := range map[string]form{
			"plain": {}, "in pieces": {split: 3}, "with comments": {keepAlive: true}, "CRLF in pieces": {split: 1, crlf: true},
		} {
			f.Dialect, f.Texts, f.APIKey = dialect, texts, "secret"
			forms[string(dialect)+" "+name] = f
		}
	}
	return forms
}

// What goes over the wire, byte by byte.
func TestOpenAIWire(t *testing.T) {
	const asked = `{"model":"fake","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true%s}}`
	cases := []struct {
		name    string
		dialect fakeserver.Dialect
		body    string
		want    []string
	}{
		{"OpenAI", fakeserver.DialectOpenAI, fmt.Sprintf(asked, ""), []string{
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","system_fingerprint":"fp_fake","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","system_fingerprint":"fp_fake","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}],"usage":null}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","system_fingerprint":"fp_fake","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}],"usage":null}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","system_fingerprint":"fp_fake","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","system_fingerprint":"fp_fake","choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}`,
			`[DONE]`,
		}},
		{"vLLM", fakeserver.DialectVLLM, fmt.Sprintf(asked, `,"continuous_usage_stats":true`), []string{
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":2,"total_tokens":2,"completion_tokens":0}}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}],"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","choices":[{"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}`,
			`{"id":"ID","object":"chat.completion.chunk","created":0,"model":"fake","choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2}}`,
			`[DONE]`,
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			url, _ := serveOpenAI(t, fakeserver.Shape{}, form{OpenAIOptions: fakeserver.OpenAIOptions{Dialect: c.dialect}})
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/chat/completions", strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if got := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || got != "text/event-stream; charset=utf-8" {
				t.Errorf("%s, %s", response.Status, got)
			}
			got := regexp.MustCompile(`"id":"chatcmpl-[^"]+"`).ReplaceAllString(string(body), `"id":"ID"`)
			got = regexp.MustCompile(`"created":[0-9]{10}`).ReplaceAllString(got, `"created":0`)
			if diff := cmp.Diff("data: "+strings.Join(c.want, "\n\ndata: ")+"\n\n", got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	http.DefaultClient.CloseIdleConnections()
}

// Hundreds of concurrent streams in all forms: each record has exactly what was sent.
func TestOpenAITargetReadsOpenAIServer(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const tokens = 20
	for name, options := range forms() {
		streams := 10
		if name == "vllm plain" {
			streams = 200
		}
		for _, api := range []string{client.CompletionsAPI, client.ChatAPI} {
			for _, counted := range []bool{false, true} {
				if counted && options.Dialect == fakeserver.DialectOpenAI {
					continue // it refuses to
				}
				t.Run(fmt.Sprintf("%s %s %t", name, api, counted), func(t *testing.T) {
					const each = 3
					shape := fakeserver.Shape{TTFT: fakeserver.Delay{Mean: ms}, ITL: fakeserver.Delay{Mean: ms / 10, Jitter: ms / 10}, TokensPerMessage: each}
					url, engine := serveOpenAI(t, shape, options)
					subject, err := client.NewOpenAI(client.OpenAIConfig{URL: url, API: api, APIKey: "secret", ContinuousUsage: counted})
					if err != nil {
						t.Fatal(err)
					}
					defer subject.Close()
					if d, err := subject.Describe(t.Context()); err != nil || d.Model != fakeserver.Model {
						t.Fatalf("%+v, %v", d, err)
					}
					records, answers := load(t.Context(), subject, streams, tokens)
					byID := make(map[string]*fakeserver.Served)
					for _, s := range engine.Log() {
						byID[s.ID] = s
					}
					for i, r := range records {
						served := byID[r.ID]
						if r.Outcome != record.Completed || r.OutputTokens != tokens || r.FinishReason != "length" || r.PromptTokens < 1 || served == nil {
							t.Fatalf("%s %s: %s, %d tokens, %q, prompt %d", r.ID, r.Outcome, r.Error, r.OutputTokens, r.FinishReason, r.PromptTokens)
						}
						if answers[i].Text != said(tokens) {
							t.Errorf("%s: %q", r.ID, answers[i].Text)
						}
						if len(r.Arrivals) != len(served.Sent) {
							t.Errorf("%s: %d messages came, %d were sent", r.ID, len(r.Arrivals), len(served.Sent))
						}
						sum := 0
						for _, a := range r.Arrivals {
							sum += int(a.Tokens)
						}
						if want := map[bool]int{true: tokens, false: len(served.Sent)}[counted]; sum != want {
							t.Errorf("%s: messages with %d tokens, want %d", r.ID, sum, want)
						}
					}
				})
			}
		}
	}
}

// load sends n requests at one time.
func load(ctx context.Context, subject client.Client, n, tokens int) ([]*record.Record, []workload.Answer) {
	records, answers := make([]*record.Record, n), make([]workload.Answer, n)
	clock := client.NewClock(time.Now())
	var all sync.WaitGroup
	for i := range n {
		records[i] = new(record.Record)
		all.Go(func() {
			answers[i] = subject.Do(ctx, &workload.Request{
				Prompt: workload.Prompt{Text: "hello"}, MaxTokens: tokens,
				Then: func(workload.Answer) (*workload.Request, time.Duration) { return nil, 0 },
			}, clock, records[i])
		})
	}
	all.Wait()
	return records, answers
}

func TestOpenAITargetSeesFailures(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	cases := []struct {
		dialect fakeserver.Dialect
		shape   fakeserver.Shape
		want    record.Outcome
		code    string
		tokens  int
	}{
		{fakeserver.DialectOpenAI, fakeserver.Shape{RejectShare: 1}, record.Rejected, "HTTP 429", 0},
		{fakeserver.DialectVLLM, fakeserver.Shape{RejectShare: 1}, record.Rejected, "HTTP 503", 0},
		{fakeserver.DialectOpenAI, fakeserver.Shape{FailShare: 1}, record.Failed, "stream", 1},
		{fakeserver.DialectVLLM, fakeserver.Shape{FailShare: 1}, record.Failed, "HTTP 500", 1},
	}
	for _, c := range cases {
		t.Run(string(c.dialect)+" "+c.code, func(t *testing.T) {
			url, _ := serveOpenAI(t, c.shape, form{OpenAIOptions: fakeserver.OpenAIOptions{Dialect: c.dialect}})
			subject, err := client.NewOpenAI(client.OpenAIConfig{URL: url, Model: fakeserver.Model})
			if err != nil {
				t.Fatal(err)
			}
			defer subject.Close()
			records, _ := load(t.Context(), subject, 3, 5)
			for _, r := range records {
				if r.Outcome != c.want || r.Code != c.code || r.OutputTokens != c.tokens || r.Error == "" {
					t.Errorf("%s %s, %d tokens: %s", r.Outcome, r.Code, r.OutputTokens, r.Error)
				}
			}
		})
	}
}

// A server that stops ends its streams and waits for them.
func TestOpenAIServerStops(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	engine, err := fakeserver.NewEngine(fakeserver.Shape{TTFT: fakeserver.Delay{Mean: time.Hour}}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	server, err := fakeserver.NewOpenAIServer(engine, fakeserver.OpenAIOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+l.Addr().String()+"/v1/completions", strings.NewReader(`{"model":"fake","prompt":"a","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	server.Stop()
	if body, err := io.ReadAll(response.Body); strings.Contains(string(body), "DONE") {
		t.Errorf("it ended with %q, %v", body, err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := engine.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenAIOptions(t *testing.T) {
	if _, err := fakeserver.NewOpenAIServer(nil, fakeserver.OpenAIOptions{Dialect: "tgi"}); err == nil {
		t.Error("an unknown dialect was taken")
	}
}
