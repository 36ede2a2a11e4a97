package client_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// openAI is a client of a server with this handler.
func openAI(t *testing.T, handler http.HandlerFunc, change func(*client.OpenAIConfig)) client.Client {
	t.Helper()
	server := httptest.NewServer(handler)
	cfg := client.OpenAIConfig{URL: server.URL, Model: "m"}
	if change != nil {
		change(&cfg)
	}
	subject, err := client.NewOpenAI(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := subject.Close(); err != nil {
			t.Error(err)
		}
		server.Close()
	})
	return subject
}

func ask() *workload.Request {
	return &workload.Request{
		Prompt: workload.Prompt{Text: "hello"}, MaxTokens: 8,
		Then: func(workload.Answer) (*workload.Request, time.Duration) { return nil, 0 },
	}
}

// do sends one request and checks that the times are in order.
func do(ctx context.Context, t *testing.T, subject client.Client, q *workload.Request) (*record.Record, workload.Answer) {
	t.Helper()
	r := new(record.Record)
	clock := client.NewClock(time.Now())
	answer := subject.Do(ctx, q, clock, r)
	last := time.Duration(0)
	for _, at := range []time.Duration{r.Sent, r.Admitted, r.First(), r.Last(), r.End} {
		if at == record.Unset {
			continue
		}
		if at < last {
			t.Errorf("moments go back: sent %s, admitted %s, first %s, last %s, end %s", r.Sent, r.Admitted, r.First(), r.Last(), r.End)
		}
		last = at
	}
	if r.End == record.Unset || r.End > clock.Now() {
		t.Errorf("ended at %s", r.End)
	}
	return r, answer
}

// seen is the expected part of a record.
type seen struct {
	Outcome      record.Outcome
	Code         string
	Error        string // a part of it
	Reason       string
	ID           string
	Messages     []int32
	Output       int
	Prompt       int
	Cached       int
	FinishReason string
	Text         string
	TokenIDs     []uint32
}

func compare(t *testing.T, want seen, r *record.Record, answer workload.Answer) {
	t.Helper()
	got := seen{
		Outcome: r.Outcome, Code: r.Code, Error: r.Error, Reason: r.Reason, ID: r.ID, Output: r.OutputTokens, Prompt: r.PromptTokens,
		Cached: r.CachedTokens, FinishReason: r.FinishReason, Text: answer.Text, TokenIDs: answer.TokenIDs,
	}
	for _, a := range r.Arrivals {
		got.Messages = append(got.Messages, a.Tokens)
	}
	if want.Error != "" && strings.Contains(got.Error, want.Error) {
		got.Error = want.Error
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

const (
	token  = `{"id":"cmpl-1","choices":[{"index":0,"text":" a","finish_reason":null}]}`
	finish = `{"id":"cmpl-1","choices":[{"index":0,"text":"","finish_reason":"length"}]}`
	usage  = `{"id":"cmpl-1","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}`
)

func stream(events ...string) string {
	return "data: " + strings.Join(events, "\n\ndata: ") + "\n\n"
}

func TestOpenAIStreams(t *testing.T) {
	cases := []struct {
		name, body string
		want       seen
	}{
		{
			"completion", stream(token, token, finish, usage, "[DONE]"),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1, 1}, Output: 2, Prompt: 5, Cached: -1, FinishReason: "length", Text: " a a"},
		},
		{
			"chat", stream(
				`{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}`,
				`{"id":"c","choices":[{"index":0,"delta":{"content":"é"},"finish_reason":null}],"usage":null}`,
				`{"id":"c","choices":[{"index":0,"delta":{"content":"\n"},"finish_reason":null}],"usage":null}`,
				`{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}`,
				`{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{1, 1}, Output: 3, Prompt: 5, Cached: 4, FinishReason: "stop", Text: "é\n"},
		},
		{
			"reasoning is generated too, but no part of the answer", stream(
				`{"id":"c","choices":[{"delta":{"reasoning_content":"hm"}}]}`, `{"id":"c","choices":[{"delta":{"reasoning":"so"}}]}`,
				`{"id":"c","choices":[{"delta":{"content":"a"},"finish_reason":"stop"}]}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{1, 1, 1}, Output: 3, Prompt: -1, Cached: -1, FinishReason: "stop", Text: "a"},
		},
		{
			"reason with the last token", stream(token, `{"id":"cmpl-1","choices":[{"index":0,"text":" b","finish_reason":"length"}]}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1, 1}, Output: 2, Prompt: -1, Cached: -1, FinishReason: "length", Text: " a b"},
		},
		{
			"usage with each message", stream(
				`{"id":"c","choices":[{"text":"ab","finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`,
				`{"id":"c","choices":[{"text":"","finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":3}}`,
				`{"id":"c","choices":[{"text":"cdef","finish_reason":null}],"usage":{"prompt_tokens":5,"completion_tokens":7}}`,
				`{"id":"c","choices":[{"text":"","finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":8}}`,
				`{"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":8}}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{2, 1, 4, 1}, Output: 8, Prompt: 5, Cached: -1, FinishReason: "stop", Text: "abcdef"},
		},
		{
			"usage of 0 with each message, as from Ollama", stream(
				`{"id":"c","choices":[{"text":"a","finish_reason":null}],"usage":{"prompt_tokens":0,"completion_tokens":0}}`,
				`{"id":"c","choices":[{"text":"b","finish_reason":null}],"usage":{"prompt_tokens":0,"completion_tokens":0}}`,
				`{"id":"c","choices":[{"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":5}}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{1, 1}, Output: 5, Prompt: 4, Cached: -1, FinishReason: "length", Text: "ab"},
		},
		{
			"usage with the reason only", stream(token, token, `{"id":"cmpl-1","choices":[{"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":5}}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1, 1}, Output: 5, Prompt: 4, Cached: -1, FinishReason: "length", Text: " a a"},
		},
		{
			"usage of 0 at the end", stream(token, token, finish, `{"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0}}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1, 1}, Output: 2, Prompt: -1, Cached: -1, FinishReason: "length", Text: " a a"},
		},
		{
			"token ids", stream(
				`{"id":"c","choices":[{"text":"ab","token_ids":[7,8],"finish_reason":null}]}`,
				`{"id":"c","choices":[{"text":"","token_ids":[9],"finish_reason":null}]}`,
				`{"id":"c","choices":[{"text":"c","token_ids":[1],"finish_reason":"length"}]}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{2, 1, 1}, Output: 4, Prompt: -1, Cached: -1, FinishReason: "length", Text: "abc", TokenIDs: []uint32{7, 8, 9, 1}},
		},
		{
			"all in one message", stream(`{"id":"c","choices":[{"text":"abc","finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":3}}`, "[DONE]"),
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{3}, Output: 3, Prompt: 4, Cached: -1, FinishReason: "stop", Text: "abc"},
		},
		{
			"no token, but a reason", stream(finish, "[DONE]"),
			seen{Outcome: record.Completed, ID: "cmpl-1", Prompt: -1, Cached: -1, FinishReason: "length"},
		},
		{
			"comments, CRLF, other fields, empty data", ": hello\r\n\r\nevent: message\r\nid: 1\r\ndata: " + token + "\r\n\r\n: ping\r\n\r\ndata:\r\n\r\ndata:" + finish + "\r\n\r\ndata: [DONE]\r\n\r\n",
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "length", Text: " a"},
		},
		{
			"JSON over several lines", "data: {\"id\":\"c\",\ndata: \"choices\":[{\"text\":\"a\",\ndata: \"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
			seen{Outcome: record.Completed, ID: "c", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "stop", Text: "a"},
		},
		{
			"no [DONE], but a reason", stream(token, finish),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "length", Text: " a"},
		},
		{
			"[DONE], but no reason", stream(token, "[DONE]"),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, Text: " a"},
		},
		{
			"what follows [DONE] does not count", stream(token, finish, "[DONE]", token),
			seen{Outcome: record.Completed, ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "length", Text: " a"},
		},
		{
			"aborted", stream(token, strings.Replace(finish, "length", "abort", 1), "[DONE]"),
			seen{Outcome: record.Failed, Code: "stream", Error: "the server ended the answer: abort", ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "abort", Text: " a"},
		},
		{
			"error as the reason, no [DONE]", stream(token, strings.Replace(finish, "length", "error", 1)),
			seen{Outcome: record.Failed, Code: "stream", Error: "the server ended the answer: error", ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, FinishReason: "error", Text: " a"},
		},
		{
			"truncated", stream(token, token),
			seen{Outcome: record.Failed, Code: "stream", Error: "ended after 2 tokens", ID: "cmpl-1", Messages: []int32{1, 1}, Output: 2, Prompt: -1, Cached: -1, Text: " a a"},
		},
		{
			"truncated in an event", stream(token) + "data: " + finish,
			seen{Outcome: record.Failed, Code: "stream", Error: "ended after 1 tokens", ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, Text: " a"},
		},
		{"nothing", "", seen{Outcome: record.Failed, Code: "stream", Error: "ended after 0 tokens", Prompt: -1, Cached: -1}},
		{"only [DONE]", stream("[DONE]"), seen{Outcome: record.Failed, Code: "stream", Error: "neither a token", Prompt: -1, Cached: -1}},
		{
			"error in the stream, as from vLLM", stream(token, `{"error":{"message":"engine\ndied","type":"InternalServerError","param":null,"code":500}}`, "[DONE]"),
			seen{Outcome: record.Failed, Code: "HTTP 500", Error: "engine died", ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, Text: " a"},
		},
		{
			"refusal in the stream, before a token", stream(`{"error":{"message":"full","code":503}}`, "[DONE]"),
			seen{Outcome: record.Rejected, Code: "HTTP 503", Error: "full", Prompt: -1, Cached: -1},
		},
		{
			"refusal in the stream, after a token", stream(token, `{"error":{"message":"full","code":503}}`),
			seen{Outcome: record.Failed, Code: "HTTP 503", Error: "full", ID: "cmpl-1", Messages: []int32{1}, Output: 1, Prompt: -1, Cached: -1, Text: " a"},
		},
		{
			"error without a status", stream(`{"error":{"message":"quota","code":"insufficient_quota"}}`),
			seen{Outcome: record.Failed, Code: "stream", Error: "quota", Reason: "insufficient_quota", Prompt: -1, Cached: -1},
		},
		{"no JSON", stream("hello"), seen{Outcome: record.Failed, Code: "stream", Error: "OpenAI's form", Prompt: -1, Cached: -1}},
		{"another API", stream(`{"type":"message_start"}`), seen{Outcome: record.Failed, Code: "stream", Error: "neither choices nor usage", Prompt: -1, Cached: -1}},
		{"endless line", "data: " + strings.Repeat("x", 2<<20), seen{Outcome: record.Failed, Code: "stream", Error: "longer than the limit", Prompt: -1, Cached: -1}},
	}
	for _, c := range cases {
		for _, step := range []int{0, 7} {
			t.Run(c.name, func(t *testing.T) {
				if step > 0 && len(c.body) > 1<<20 {
					t.Skip("it has no boundaries to be at")
				}
				subject := openAI(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
					size := step
					if step == 0 {
						size = len(c.body)
					}
					for rest := c.body; rest != ""; {
						n := min(size, len(rest))
						if _, err := io.WriteString(w, rest[:n]); err != nil {
							return // the client has enough
						}
						_ = http.NewResponseController(w).Flush()
						rest = rest[n:]
					}
				}, nil)
				r, answer := do(t.Context(), t, subject, ask())
				compare(t, c.want, r, answer)
				if r.Sent == record.Unset || r.Admitted == record.Unset {
					t.Errorf("sent %s, admitted %s", r.Sent, r.Admitted)
				}
			})
		}
	}
}

func TestOpenAIStatus(t *testing.T) {
	cases := []struct {
		name     string
		status   int
		kind     string
		body     string
		want     seen
		location string
	}{
		{name: "OpenAI's 429", status: 429, body: `{"error":{"message":"slow down","type":"requests","param":null,"code":"rate_limit_exceeded"}}`,
			want: seen{Outcome: record.Rejected, Code: "HTTP 429", Error: "slow down", Reason: "rate_limit_exceeded"}},
		{name: "vLLM's 400", status: 400, body: `{"error":{"message":"too long","type":"BadRequestError","param":null,"code":400}}`,
			want: seen{Outcome: record.Failed, Code: "HTTP 400", Error: "too long"}},
		{name: "a proxy's 503", status: 503, kind: "text/html", body: "<html>\n  <h1>503</h1>\n</html>", want: seen{Outcome: record.Rejected, Code: "HTTP 503", Error: "<html> <h1>503</h1> </html>"}},
		{name: "FastAPI's 422", status: 422, body: `{"detail":[{"msg":"no"}]}`, want: seen{Outcome: record.Failed, Code: "HTTP 422", Error: `[{"msg":"no"}]`}},
		{name: "401", status: 401, body: `{"error":"Unauthorized"}`, want: seen{Outcome: record.Failed, Code: "HTTP 401", Error: "Unauthorized"}},
		{name: "nothing said", status: 500, want: seen{Outcome: record.Failed, Code: "HTTP 500", Error: "internal server error"}},
		{name: "redirect", status: 307, location: "http://elsewhere/", want: seen{Outcome: record.Failed, Code: "HTTP 307", Error: "redirects to http://elsewhere/"}},
		{name: "no stream", status: 200, kind: "application/json", body: `{"choices":[]}`, want: seen{Outcome: record.Failed, Code: "stream", Error: "application/json, not a stream"}},
		{name: "error with 200", status: 200, kind: "application/json", body: `{"error":{"message":"no"}}`, want: seen{Outcome: record.Failed, Code: "stream", Error: "not a stream: no"}},
		{name: "no content", status: 204, want: seen{Outcome: record.Failed, Code: "HTTP 204", Error: "no content"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			subject := openAI(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", c.kind)
				w.Header().Set("X-Request-Id", "7")
				if c.location != "" {
					w.Header().Set("Location", c.location)
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}, nil)
			c.want.ID, c.want.Prompt, c.want.Cached = "7", -1, -1
			r, answer := do(t.Context(), t, subject, ask())
			compare(t, c.want, r, answer)
			if r.Admitted != record.Unset {
				t.Errorf("admitted at %s", r.Admitted)
			}
		})
	}
	t.Run("long", func(t *testing.T) {
		subject := openAI(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, strings.Repeat("é", 1<<20))
		}, nil)
		if r, _ := do(t.Context(), t, subject, ask()); len(r.Error) > 210 || !strings.HasSuffix(r.Error, "é…") {
			t.Errorf("error of %d bytes: %s", len(r.Error), r.Error)
		}
	})
	t.Run("nobody there", func(t *testing.T) {
		subject, err := client.NewOpenAI(client.OpenAIConfig{URL: free(t), Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		defer subject.Close()
		r, answer := do(t.Context(), t, subject, ask())
		compare(t, seen{Outcome: record.Failed, Code: "connection", Error: "connection refused", Prompt: -1, Cached: -1}, r, answer)
		if r.Sent != record.Unset {
			t.Errorf("sent at %s", r.Sent)
		}
	})
}

// free is the URL of a port where nobody listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	return "http://" + l.Addr().String()
}

func TestOpenAIRequests(t *testing.T) {
	full := workload.Request{
		Prompt: workload.Prompt{Text: "say \"é\"\n"}, MaxTokens: 9, Exact: true, Temperature: 0.7, Seed: 1<<63 + 5, Priority: -2, Tenant: "t", CacheSalt: "s",
	}
	cases := []struct {
		name string
		q    workload.Request
		cfg  client.OpenAIConfig
		want string
	}{
		{"plain", workload.Request{Prompt: workload.Prompt{Text: "a"}, MaxTokens: 3, Seed: 7}, client.OpenAIConfig{},
			`{"model":"m","prompt":"a","max_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"all", full, client.OpenAIConfig{ContinuousUsage: true},
			`{"model":"m","prompt":"say \"é\"\n","max_tokens":9,"temperature":0.7,"seed":5,"ignore_eos":true,"min_tokens":9,"priority":-2,"user":"t","cache_salt":"s",
			"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`},
		{"token ids", workload.Request{Prompt: workload.Prompt{TokenIDs: []uint32{1, 2, 4294967295}}, MaxTokens: 3}, client.OpenAIConfig{},
			`{"model":"m","prompt":[1,2,4294967295],"max_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"chat of a text", workload.Request{Prompt: workload.Prompt{Text: "a"}, MaxTokens: 3}, client.OpenAIConfig{API: client.ChatAPI, MaxCompletionTokens: true},
			`{"model":"m","messages":[{"role":"user","content":"a"}],"max_completion_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"chat", workload.Request{Prompt: workload.Prompt{Text: "abc", Chat: []workload.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}, {Role: "user", Content: "c"}}}, MaxTokens: 3},
			client.OpenAIConfig{API: client.ChatAPI},
			`{"model":"m","messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],"max_tokens":3,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`},
		{"body", full, client.OpenAIConfig{Body: `{"top_p":0.9,"seed":null,"ignore_eos":null,"min_tokens":null,"priority":1,"stream_options":{"include_usage":false},"x":{"y":[1]},"user":null,"cache_salt":null}`},
			`{"model":"m","prompt":"say \"é\"\n","max_tokens":9,"temperature":0.7,"priority":1,"stream":true,"stream_options":{"include_usage":false},"top_p":0.9,"x":{"y":[1]}}`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var got any
			var header http.Header
			path := ""
			subject := openAI(t, func(w http.ResponseWriter, r *http.Request) {
				header, path = r.Header, r.URL.Path
				if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
					t.Error(err)
				}
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, stream(token, finish, "[DONE]"))
			}, func(cfg *client.OpenAIConfig) {
				cfg.API, cfg.MaxCompletionTokens, cfg.ContinuousUsage, cfg.Body = c.cfg.API, c.cfg.MaxCompletionTokens, c.cfg.ContinuousUsage, c.cfg.Body
				cfg.APIKey, cfg.Headers = "secret", []string{"X-A: 1", "x-b:2 "}
			})
			if r, _ := do(t.Context(), t, subject, &c.q); r.Outcome != record.Completed {
				t.Fatalf("%s: %s", r.Outcome, r.Error)
			}
			var want any
			if err := json.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("body (-want +got):\n%s", diff)
			}
			wantPath := "/v1/completions"
			if c.cfg.API == client.ChatAPI {
				wantPath = "/v1/chat/completions"
			}
			if path != wantPath || header.Get("Authorization") != "Bearer secret" || header.Get("X-A") != "1" || header.Get("X-B") != "2" || header.Get("Content-Type") != "application/json" {
				t.Errorf("%s with %v", path, header)
			}
		})
	}
}

func TestOpenAIPromptDoesNotFit(t *testing.T) {
	for _, c := range []struct {
		api    string
		prompt workload.Prompt
		want   string
	}{
		{client.ChatAPI, workload.Prompt{TokenIDs: []uint32{1}}, "needs text"},
		{client.CompletionsAPI, workload.Prompt{}, "empty"},
	} {
		subject := openAI(t, func(http.ResponseWriter, *http.Request) { t.Error("sent") }, func(cfg *client.OpenAIConfig) { cfg.API = c.api })
		r, answer := do(t.Context(), t, subject, &workload.Request{Prompt: c.prompt, MaxTokens: 1})
		compare(t, seen{Outcome: record.Unsent, Code: "client", Error: c.want, Prompt: -1, Cached: -1}, r, answer)
	}
}
