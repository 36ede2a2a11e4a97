package openai_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
)

var update = flag.Bool("update", false, "write the golden files anew")

func likely(text string, logprob float32, others ...string) *inferencev1.TokenLogprobs {
	t := &inferencev1.TokenLogprobs{Text: []byte(text), Logprob: logprob}
	for i, other := range others {
		t.Top = append(t.Top, &inferencev1.TokenLogprob{Text: []byte(other), Logprob: -float32(i + 1)})
	}
	return t
}

// Whole answers, byte for byte. Virtual time makes them the same each time.
func TestGolden(t *testing.T) {
	likelihoods := []*inferencev1.TokenLogprobs{likely("é", -0.5, "é", "\xe2\x80"), likely("\xe2", -1e30, "b")}
	// The text does not show the start token, but one that is written in it.
	start, written := &inferencev1.TokenLogprobs{Text: []byte("<s>"), Special: true}, likely("<s>", -4)
	written.Special = true
	scores := []*inferencev1.TokenLogprobs{start, likely("a", -1), written, likely("é", -2)}
	for _, c := range []struct {
		name, path, body string
		fake             *fake
	}{
		{"chat", chats, `{` + hi + `}`, &fake{words: []string{"Once", " <&>"}, held: "."}},
		{"chat-stream", chats, `{` + hi + `,"stream":true}`, &fake{words: []string{"Once", "", " upon"}, held: " a"}},
		{"chat-stream-usage", chats, `{` + hi + `,"stream":true,"stream_options":{"include_usage":true}}`, &fake{words: []string{"Once"}}},
		{"chat-stream-each-usage", chats, `{` + hi + `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`, &fake{words: []string{"Once", ""}}},
		{"chat-logprobs", chats, `{` + hi + `,"logprobs":true,"top_logprobs":2}`, &fake{words: []string{"é", ""}, logprobs: likelihoods}},
		{"chat-stream-logprobs", chats, `{` + hi + `,"stream":true,"logprobs":true}`, &fake{words: []string{"é", ""}, logprobs: likelihoods}},
		{"chat-nothing", chats, `{` + hi + `,"max_tokens":0,"logprobs":true}`, &fake{}},
		{"completion", completions, `{"prompt":"a","echo":true}`, &fake{words: []string{"b"}}},
		{"completion-stream", completions, `{"prompt":"a","echo":true,"stream":true}`, &fake{words: []string{"b"}}},
		{"completion-logprobs", completions, `{"prompt":"a","logprobs":2}`, &fake{words: []string{"é", ""}, logprobs: likelihoods}},
		{"completion-stream-logprobs", completions, `{"prompt":"a","logprobs":2,"stream":true}`, &fake{words: []string{"é", ""}, logprobs: likelihoods}},
		{"completion-echo-logprobs", completions, `{"prompt":"a<s>é","echo":true,"logprobs":0}`, &fake{words: []string{"b"}, logprobs: likelihoods, scores: scores}},
		{"completion-stream-echo-logprobs", completions, `{"prompt":"a<s>é","echo":true,"logprobs":0,"stream":true}`, &fake{words: []string{"b"}, logprobs: likelihoods, scores: scores}},
		{"completion-timing", completions, `{"prompt":"a","timing_ms":true}`, &fake{words: []string{"b"}}},
		{"chat-stream-timing", chats, `{` + hi + `,"stream":true,"timing_ms":true}`, &fake{words: []string{"Once"}}},
		{"stream-fails", chats, `{` + hi + `,"stream":true}`, &fake{words: []string{"Once"}, fail: rpc.Error(codes.DataLoss, "KV_LOST", "a block is lost", 0)}},
		{"response", responses, `{"input":"hi"}`, &fake{words: []string{"Once", " <&>"}, held: "."}},
		{"response-stream", responses, `{"input":"hi","stream":true}`, &fake{words: []string{"Once", "", " <&>"}, held: " a"}},
		{"response-stream-logprobs", responses, `{"input":"hi","stream":true,"include":["message.output_text.logprobs"]}`, &fake{words: []string{"é", ""}, logprobs: likelihoods}},
		{"models", "/v1/models", "", &fake{}},
		{"model", "/models/org%2Falias%20one", "", &fake{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				method := http.MethodPost
				if c.body == "" {
					method = http.MethodGet
				}
				w := ask(t, c.fake, method, c.path, c.body)
				if w.Code != http.StatusOK {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				file := filepath.Join("testdata", c.name+".txt")
				if *update {
					if err := os.WriteFile(file, w.Body.Bytes(), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil || !bytes.Equal(w.Body.Bytes(), want) {
					t.Errorf("%v\ngot  %s\nwant %s", err, w.Body, want)
				}
			})
		})
	}
}

// What the backend refuses, before anything was sent.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name         string
		err          error
		status       int
		kind, code   string
		after        string
		milliseconds string
	}{
		{"field", rpc.InvalidArgument("sampling.top_p", "is 3"), 400, "invalid_request_error", "invalid_value", "", ""},
		{"context", rpc.ContextLength("conversation", "is long"), 400, "invalid_request_error", "context_length_exceeded", "", ""},
		{"model", rpc.Error(codes.NotFound, "MODEL_NOT_FOUND", "no", 0), 404, "invalid_request_error", "model_not_found", "", ""},
		{"key", rpc.Error(codes.Unauthenticated, "NO_KEY", "no", 0), 401, "authentication_error", "no_key", "", ""},
		{"busy", rpc.Error(codes.ResourceExhausted, "QUEUE_FULL", "no", 1200*time.Millisecond), 429, "rate_limit_error", "queue_full", "2", "1200"},
		{"busy for a moment", rpc.Error(codes.ResourceExhausted, "QUEUE_FULL", "no", time.Microsecond), 429, "rate_limit_error", "queue_full", "1", "1"},
		{"nobody", rpc.Error(codes.Unavailable, "NO_WORKERS", "no", 0), 503, "server_error", "no_workers", "1", "1000"},
		{"late", rpc.Error(codes.DeadlineExceeded, "DEADLINE", "no", 0), 504, "server_error", "deadline", "", ""},
		{"broken", rpc.Error(codes.Internal, "INTERNAL", "no", 0), 500, "server_error", "internal", "", ""},
		{"no status", errTest, 500, "server_error", "", "", ""},
	} {
		for _, body := range []string{`{` + hi + `}`, `{` + hi + `,"stream":true}`, `{` + hi + `,"n":3}`, `{` + hi + `,"n":3,"stream":true}`, `{` + hi + `,"max_tokens":0}`} {
			w := ask(t, &fake{refuse: c.err}, http.MethodPost, chats, body)
			e := errorOf(t, w.Body.String())
			if w.Code != c.status || e.Type != c.kind || e.Code != c.code || e.Message == "" || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("%s: %d %+v %v", c.name, w.Code, e, w.Header())
			}
			if w.Header().Get("Retry-After") != c.after || w.Header().Get("Retry-After-Ms") != c.milliseconds || w.Header().Get("X-Request-Id") != "id-1" {
				t.Errorf("%s: %v", c.name, w.Header())
			}
		}
	}
}

// The backend's names of fields become those of the request.
func TestNamesOfFields(t *testing.T) {
	for _, c := range []struct{ path, extra, field, want string }{
		{chats, "", "sampling.top_p", "top_p"},
		{chats, "", "sampling.logit_bias[5]", "logit_bias"},
		{chats, `,"max_completion_tokens":5`, "max_tokens", "max_completion_tokens"},
		{chats, `,"max_tokens":5`, "max_tokens", "max_tokens"},
		{chats, "", "conversation.messages[2].role", "messages[2].role"},
		{chats, "", "conversation.template_arguments.x", "chat_template_kwargs.x"},
		{chats, "", "conversation.continue_last_message", "continue_final_message"},
		{chats, "", "conversation", "messages"},
		{chats, "", "prompt", "messages"},
		{chats, "", "logprobs", "top_logprobs"},
		{chats, "", "stop[1]", "stop"},
		{chats, `,"response_format":{"type":"json_object"}`, "structured_output.json_object", "response_format"},
		{completions, `,"guided_regex":"a"`, "structured_output.regex", "guided_regex"},
		{completions, `,"structured_outputs":{"choice":["a"]}`, "structured_output", "structured_outputs"},
		{completions, "", "token_ids.ids[3]", "prompt"},
		{completions, "", "prompt", "prompt"},
		{completions, "", "logprobs", "logprobs"},
		{completions, "", "cache_salt", "cache_salt"},
	} {
		body := `{"prompt":"a",` + hi + c.extra + `}`
		w := ask(t, &fake{refuse: rpc.InvalidArgument(c.field, "is wrong")}, http.MethodPost, c.path, body)
		if e := errorOf(t, w.Body.String()); e.Param != c.want || e.Message != c.want+": is wrong" {
			t.Errorf("%s: %+v, want %s", c.field, e, c.want)
		}
	}
}

// Clients look for how the message begins that says that a prompt is too long.
func TestContextLength(t *testing.T) {
	const message = "This model's maximum context length is 5 tokens: yours has 6"
	w := ask(t, &fake{refuse: rpc.ContextLength("conversation", message)}, http.MethodPost, chats, `{`+hi+`}`)
	if e := errorOf(t, w.Body.String()); e.Message != message || e.Param != "messages" || e.Code != "context_length_exceeded" {
		t.Errorf("%d %+v", w.Code, e)
	}
}

func TestRoutes(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{"GET", "/v1/models", 200, ""},
		{"HEAD", "/v1/models", 200, ""},
		{"GET", "/models/real", 200, ""},
		{"GET", "/v1/models/other", 404, "model_not_found"},
		{"DELETE", "/v1/models/real", 405, "method_not_allowed"},
		{"GET", chats, 405, "method_not_allowed"},
		{"POST", "/v1/audio/speech", 404, "unknown_url"},
		{"GET", "/v1", 404, "unknown_url"},
		{"GET", "/v1/models/", 404, "unknown_url"},
	} {
		w := ask(t, new(fake), c.method, c.path, "")
		if w.Code != c.status {
			t.Errorf("%s %s: %d", c.method, c.path, w.Code)
		} else if c.code != "" && errorOf(t, w.Body.String()).Code != c.code {
			t.Errorf("%s %s: %s", c.method, c.path, w.Body)
		}
		if w.Code == http.StatusMethodNotAllowed && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: nothing is said to be allowed", c.method, c.path)
		}
	}
}

func TestLongBody(t *testing.T) {
	serve(t, handler(t, new(fake)), func(conn net.Conn) {
		answer := exchange(t, conn, chats, `{"x":"`+strings.Repeat("a", 8<<20)+`"}`)
		if !strings.HasPrefix(answer, "HTTP/1.1 413 ") || !strings.Contains(answer, "request_too_large") {
			t.Errorf("answer %s", answer)
		}
	})
}

// pipes is a listener of connections in memory, which virtual time sees.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// serve runs a server of one connection in a bubble.
func serve(t *testing.T, h http.Handler, test func(net.Conn)) {
	t.Helper()
	serveMany(t, h, func(connect func() net.Conn) { test(connect()) })
}

// serveMany runs a server in a bubble. It closes the connections after the test.
func serveMany(t *testing.T, h http.Handler, test func(connect func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		listener := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: h, WriteTimeout: writeTimeout} // as the router has it
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(listener) }()
		var clients []net.Conn
		test(func() net.Conn {
			client, other := net.Pipe()
			listener.conns <- other
			clients = append(clients, client)
			return client
		})
		for _, client := range clients {
			_ = client.Close()
		}
		synctest.Wait()
		close(listener.done)
		if err := server.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		<-ended
	})
}

// post sends a request.
func post(t *testing.T, conn net.Conn, path, body string) {
	t.Helper()
	q, err := http.NewRequest(http.MethodPost, "http://pipe"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = q.Write(conn) }() // the server may not read it all
}

// exchange sends a request and reads once.
func exchange(t *testing.T, conn net.Conn, path, body string) string {
	t.Helper()
	post(t, conn, path, body)
	buffer := make([]byte, 1<<16)
	n, err := conn.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	return string(buffer[:n])
}

// A client that stops reading is dropped, and its request ends.
func TestClientThatDoesNotRead(t *testing.T) {
	f := &fake{words: []string{strings.Repeat("word ", 1<<12), "end"}, block: true}
	serve(t, handler(t, f), func(conn net.Conn) {
		began := time.Now()
		post(t, conn, chats, `{`+hi+`,"stream":true}`)
		synctest.Wait() // the first write waits for a reader
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.ended != 1 {
			t.Errorf("%d requests ended %s after the client stopped", f.ended, time.Since(began))
		}
	})
}

// A client may read slowly: it has longer for a long answer.
func TestSlowClients(t *testing.T) {
	for _, body := range []string{`{` + hi + `}`, `{` + hi + `,"stream":true}`} {
		f := &fake{words: []string{strings.Repeat("word ", 1<<20)}}
		serve(t, handler(t, f), func(conn net.Conn) {
			post(t, conn, chats, body)
			piece := make([]byte, 1<<16)
			for read := 0; read < 5<<20; { // for longer than the timeout
				time.Sleep(writeTimeout / 30)
				n, err := io.ReadFull(conn, piece)
				if read += n; err != nil {
					t.Errorf("%s: %v after %d bytes", body, err, read)
					return
				}
			}
		})
	}
}

// Clients that read hardly anything of long answers do not keep memory from others for long.
func TestVerySlowClients(t *testing.T) {
	for path, bodies := range map[string][]string{
		chats:     {`{` + hi + `}`},
		responses: {`{"input":"hi"}`, `{"input":"hi","stream":true}`},
	} {
		for _, body := range bodies {
			t.Run(path+body, func(t *testing.T) {
				// An answer takes three times its text until it is written.
				f := &fake{words: []string{strings.Repeat("word ", 1<<19)}}
				h, err := build(f, openai.Config{MaxHeldBytes: 31 << 19})
				if err != nil {
					t.Fatal(err)
				}
				serveMany(t, h, func(connect func() net.Conn) {
					var slow sync.WaitGroup
					conns := []net.Conn{connect(), connect()}
					for _, conn := range conns {
						post(t, conn, path, body)
						slow.Go(func() {
							piece := make([]byte, 1<<16)
							for err := error(nil); err == nil; _, err = io.ReadFull(conn, piece) {
								time.Sleep(writeTimeout / 3)
							}
						})
					}
					ordinary := func() int {
						q := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(`{"max_tokens":0,"prompt":"`+strings.Repeat("word ", 200<<10)+`"}`))
						w := httptest.NewRecorder()
						h.ServeHTTP(w, q)
						return w.Code
					}
					time.Sleep(40 * time.Second)
					if code := ordinary(); code != http.StatusServiceUnavailable {
						t.Errorf("beside them: status %d", code)
					}
					time.Sleep(5 * time.Minute)
					if code := ordinary(); code != http.StatusOK {
						t.Errorf("after 5 minutes: status %d", code)
					}
					for _, conn := range conns {
						_ = conn.Close()
					}
					slow.Wait()
				})
			})
		}
	}
}

// An answer may be silent for longer than its client may.
func TestSlowAnswers(t *testing.T) {
	for _, body := range []string{`{` + hi + `}`, `{` + hi + `,"stream":true}`, `{` + hi + `,"stream":true,"n":2}`} {
		f := &fake{words: []string{"a", "b", "c"}, wait: func() { time.Sleep(10 * writeTimeout) }}
		serve(t, handler(t, f), func(conn net.Conn) {
			post(t, conn, chats, body)
			answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			said, err := io.ReadAll(answer.Body)
			if text := string(said); err != nil || !strings.Contains(text, `"abc"`) && !strings.HasSuffix(text, "data: [DONE]\n\n") {
				t.Errorf("%s: %s, error %v", body, said, err)
			}
		})
	}
}

// A client that leaves ends all its answers.
func TestClientThatLeaves(t *testing.T) {
	for _, n := range []string{"1", "4"} {
		f := &fake{words: []string{"a", "b"}, block: true}
		serve(t, handler(t, f), func(conn net.Conn) {
			_ = exchange(t, conn, chats, `{`+hi+`,"stream":true,"n":`+n+`}`)
			_ = conn.Close()
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.ended != len(f.asked) || f.ended == 0 {
				t.Errorf("%d of %d requests ended", f.ended, len(f.asked))
			}
		})
	}
}

// A body that does not come is not waited for.
func TestSlowBody(t *testing.T) {
	serve(t, handler(t, new(fake)), func(conn net.Conn) {
		if _, err := conn.Write([]byte("POST " + chats + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 4096)
		n, err := conn.Read(buffer)
		if err != nil || !strings.HasPrefix(string(buffer[:n]), "HTTP/1.1 408 ") || strings.Contains(string(buffer[:n]), "X-Should-Retry") {
			t.Errorf("%v %s", err, buffer[:n])
		}
	})
}

// A decoder of SentencePiece takes a space away at the start of a text, which the first token has. A
// special token takes no room.
func TestOffsetsOfEcho(t *testing.T) {
	for _, c := range []struct {
		prompt string
		tokens []string
		want   []int
	}{
		{"Once upon", []string{"<s>", " Once", " upon"}, []int{0, 0, 4, 9}},
		{" Once upon", []string{"<s>", "  Once", " upon"}, []int{0, 0, 5, 10}},
		{"Once upon", []string{"<s>", " ", "Once", " upon"}, []int{0, 0, 0, 4, 9}},
		{"Once upon", []string{"Once", " upon"}, []int{0, 4, 9}},
		{" Once upon", []string{" Once", " upon"}, []int{0, 5, 10}},
		{"<s>é upon", []string{"<s>", "é", " upon"}, []int{0, 3, 4, 9}}, // the text spells the token
	} {
		f := &fake{words: []string{" a"}, logprobs: []*inferencev1.TokenLogprobs{likely(" a", -1)}}
		for _, token := range c.tokens {
			f.scores = append(f.scores, &inferencev1.TokenLogprobs{Text: []byte(token), Special: token == "<s>"})
		}
		w := ask(t, f, http.MethodPost, completions, `{"prompt":"`+c.prompt+`","echo":true,"logprobs":0}`)
		var got struct {
			Choices []struct {
				Logprobs struct {
					Offsets []int `json:"text_offset"`
				}
			}
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || len(got.Choices) != 1 {
			t.Fatalf("%s, error %v", w.Body, err)
		}
		if offsets := got.Choices[0].Logprobs.Offsets; !slices.Equal(offsets, c.want) {
			t.Errorf("%q of %q: %v, want %v", c.tokens, c.prompt, offsets, c.want)
		}
	}
}
