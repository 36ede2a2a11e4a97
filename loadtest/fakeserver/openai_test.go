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
	"github.com/openai/openai-go"
	"github.com/openai/openai-go/option"
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

func officialClient(url string) openai.Client {
	return openai.NewClient(option.WithBaseURL(url+"/v1/"), option.WithAPIKey("secret"), option.WithMaxRetries(0))
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

// OpenAI's own client parses what the fake server sends, without unknown members in
// OpenAI's dialect.
func TestOfficialClientReadsOpenAIServer(t *testing.T) {
	const tokens = 9
	for name, options := range forms() {
		if options.keepAlive {
			continue // it takes the blank line after a comment for an event without data
		}
		for _, each := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d a message", name, each), func(t *testing.T) {
				url, _ := serveOpenAI(t, fakeserver.Shape{TokensPerMessage: each}, options)
				client := officialClient(url)
				strict := options.Dialect == fakeserver.DialectOpenAI
				chat := openai.ChatCompletionNewParams{
					Model: fakeserver.Model, MaxTokens: openai.Int(tokens), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hello")},
					StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)},
				}
				var all openai.ChatCompletionAccumulator
				stream := client.Chat.Completions.NewStreaming(t.Context(), chat)
				chunks := 0
				for ; stream.Next(); chunks++ {
					c := stream.Current()
					if c.Object != "chat.completion.chunk" || !c.JSON.Created.Valid() || !c.JSON.Choices.Valid() || !all.AddChunk(c) {
						t.Fatalf("chunk %d: %s", chunks, c.RawJSON())
					}
					if chunks == 0 && (c.Choices[0].Delta.Role != "assistant" || c.Choices[0].Delta.Content != "") {
						t.Errorf("it begins with %s", c.RawJSON())
					}
					if strict && (len(c.JSON.ExtraFields) > 0 || len(c.Choices) > 0 && (len(c.Choices[0].JSON.ExtraFields) > 0 || len(c.Choices[0].Delta.JSON.ExtraFields) > 0)) {
						t.Errorf("it has members that OpenAI's does not: %s", c.RawJSON())
					}
				}
				if err := stream.Err(); err != nil {
					t.Fatal(err)
				}
				if got := all.Choices[0]; got.Message.Content != said(tokens) || got.FinishReason != "length" || all.Usage.CompletionTokens != tokens || all.Usage.PromptTokens == 0 {
					t.Errorf("%+v", all.ChatCompletion)
				}
				messages := 1 + (tokens-1+each-1)/each
				if want := messages + 3 - bit(!strict); chunks != want {
					t.Errorf("%d chunks, want %d: the role, %d messages, the reason unless it is vLLM, and usage", chunks, want, messages)
				}
				chat.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
				whole, err := client.Chat.Completions.New(t.Context(), chat)
				if err != nil || whole.Choices[0].Message.Content != said(tokens) || whole.Usage.CompletionTokens != tokens || strict && len(whole.JSON.ExtraFields) > 0 {
					t.Errorf("in one piece: %v, %v", whole, err)
				}
				text := ""
				plain := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
					Model: fakeserver.Model, MaxTokens: openai.Int(tokens), Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{1, 2, 3}},
				})
				for plain.Next() {
					c := plain.Current()
					if c.Object != "text_completion" || len(c.Choices) != 1 || strict && (len(c.JSON.ExtraFields) > 0 || len(c.Choices[0].JSON.ExtraFields) > 0) {
						t.Errorf("completion: %s", c.RawJSON())
					}
					text += c.Choices[0].Text
				}
				if err := plain.Err(); err != nil || text != said(tokens) {
					t.Errorf("completion: %q, %v", text, err)
				}
			})
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestOfficialClientReadsErrors(t *testing.T) {
	url, _ := serveOpenAI(t, fakeserver.Shape{}, form{OpenAIOptions: fakeserver.OpenAIOptions{APIKey: "secret"}})
	full, _ := serveOpenAI(t, fakeserver.Shape{RejectShare: 1}, form{OpenAIOptions: fakeserver.OpenAIOptions{}})
	busy, _ := serveOpenAI(t, fakeserver.Shape{RejectShare: 1}, form{OpenAIOptions: fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM}})
	broken, _ := serveOpenAI(t, fakeserver.Shape{FailShare: 1}, form{OpenAIOptions: fakeserver.OpenAIOptions{Dialect: fakeserver.DialectVLLM}})
	cases := []struct {
		name, url string
		options   []option.RequestOption
		status    int
		code      string
	}{
		{"no key", url, []option.RequestOption{option.WithAPIKey("other")}, 401, "invalid_api_key"},
		{"no model", url, []option.RequestOption{option.WithJSONSet("model", "x")}, 404, "model_not_found"},
		{"no such path", url + "/x", nil, 404, "unknown_url"},
		{"unknown member", url, []option.RequestOption{option.WithJSONSet("foo", 1)}, 400, ""},
		{"a member of vLLM", url, []option.RequestOption{option.WithJSONSet("ignore_eos", true)}, 400, ""},
		{"two choices", url, []option.RequestOption{option.WithJSONSet("n", 2)}, 400, ""},
		{"options of a stream", url, []option.RequestOption{option.WithJSONSet("stream", false), option.WithJSONSet("stream_options.include_usage", true)}, 400, ""},
		{"too long", url, []option.RequestOption{option.WithJSONSet("max_tokens", 1<<20)}, 400, ""},
		{"refused", full, nil, 429, "rate_limit_exceeded"},
		{"refused by vLLM", busy, nil, 503, "503"},
	}
	for _, c := range cases {
		client := officialClient(c.url)
		stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
			Model: fakeserver.Model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a")},
		}, c.options...)
		var e *openai.Error
		if stream.Next() || !errors.As(stream.Err(), &e) || e.StatusCode != c.status || e.Code != c.code || e.Message == "" || e.Type == "" {
			t.Errorf("%s: %v, want %d %s", c.name, stream.Err(), c.status, c.code)
		}
	}
	client := officialClient(broken)
	stream := client.Completions.NewStreaming(t.Context(), openai.CompletionNewParams{
		Model: fakeserver.Model, Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("a")},
	})
	if !stream.Next() || stream.Next() || stream.Err() == nil || !strings.Contains(stream.Err().Error(), "on purpose") {
		t.Errorf("broken off: %v", stream.Err())
	}
	client = officialClient(url)
	models, err := client.Models.List(t.Context())
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != fakeserver.Model || models.Data[0].Object != "model" || len(models.JSON.ExtraFields)+len(models.Data[0].JSON.ExtraFields) > 0 {
		t.Errorf("models: %v, %v", models, err)
	}
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
