package router_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// post sends a request to the router's HTTP API.
func (m *mesh) post(ctx context.Context, path, body string) *httptest.ResponseRecorder {
	q := httptest.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(body))
	q.Header.Set("X-Request-Id", "from-http")
	q.Header.Set("Traceparent", "00-"+callerTrace+"-"+callerSpan+"-01")
	w := httptest.NewRecorder()
	m.service.HTTP().ServeHTTP(w, q)
	return w
}

// A request over HTTP is one of the router's own: it has a record, spans and
// metrics, and its answer is the one that gRPC gives.
func TestOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		w := m.post(t.Context(), "/v1/completions", `{"model":"gpt-x","prompt":"There was","max_tokens":200}`)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), story) || !strings.Contains(w.Body.String(), `"model":"fable"`) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		m.quiet()
		root := the(t, m.ended(), "tandem.generate")
		for key, want := range map[string]string{
			"http.route": "/v1/completions", "http.request.method": "POST", "http.response.status_code": "200",
			"tandem.request_id": "from-http", "gen_ai.operation.name": "text_completion", "rpc.system.name": "", "rpc.response.status_code": "",
		} {
			if got := attributeOf(root, key); got != want {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
	})
}

func TestRefusedOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil)
		w := m.post(t.Context(), "/v1/completions", `{"prompt":"There was","stream":true}`)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), `"error"`) {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		synctest.Wait() // the answer comes before the span's end
		if got := attributeOf(the(t, m.ended(), "tandem.generate"), "error.type"); got != "503" {
			t.Errorf("error.type is %q", got)
		}
	})
}

// What does not fit into the context is refused by the name that the client used, in the
// words and with the code that OpenAI's clients look for; left out, the answer gets what fits.
func TestContextOverHTTP(t *testing.T) {
	prompt := strings.TrimSuffix(strings.Repeat("1,", window-8), ",")
	for _, c := range []struct{ name, limit, param, want string }{
		{"one too many", `,"max_tokens":9`, "max_tokens", "257 tokens, 248 in the prompt and 9 in the completion"},
		{"by the newer name", `,"max_completion_tokens":100`, "max_completion_tokens", "348 tokens, 248 in the prompt and 100 in the completion"},
		{"all that fits", `,"max_tokens":8`, "", `"prompt_tokens":248,"completion_tokens":8,"total_tokens":256`},
		{"left out", ``, "", `"prompt_tokens":248,"completion_tokens":8,"total_tokens":256`},
	} {
		t.Run(c.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
				w := m.post(t.Context(), "/v1/completions", `{"prompt":[`+prompt+`]`+c.limit+`}`)
				if status := map[bool]int{true: http.StatusOK, false: http.StatusBadRequest}[c.param == ""]; w.Code != status || !strings.Contains(w.Body.String(), c.want) {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				if c.param != "" && !(strings.Contains(w.Body.String(), `"message":"This model's maximum context length is 256 tokens`) &&
					strings.Contains(w.Body.String(), `"param":"`+c.param+`","code":"context_length_exceeded"`)) {
					t.Errorf("%s", w.Body)
				}
				m.quiet()
			})
		})
	}
}

// A text that needs more KV than any worker has is named.
func TestEmbeddingWithoutSpaceOverHTTP(t *testing.T) {
	small := decodeRecord("d1")
	small.Capacity.Blocks = 1 // of 32 tokens
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, small)
		w := m.post(t.Context(), "/v1/embeddings", `{"input":["a","`+strings.Repeat("king ", 100)+`"]}`)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `{"message":"input[1]: needs more KV than any worker has; shorten it","type":"invalid_request_error","param":"input[1]"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		m.quiet()
	})
}

func TestNoTokensOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		w := m.post(t.Context(), "/v1/completions", `{"prompt":[1,2,3],"max_tokens":0}`)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"prompt_tokens":3,"completion_tokens":0`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		w = m.post(t.Context(), "/v1/completions", `{"prompt":[1,2,9999],"max_tokens":0}`)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"param":"prompt"`) {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if n := len(m.spans.Started()); n != 0 {
			t.Errorf("%d spans of requests that nothing served", n)
		}
	})
}

func TestAliases(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		for name, known := range map[string]bool{"fable": true, "gpt-": true, "gpt-5": true, "other": true, "gpt-a/b": false, "others": false, "GPT-5": false} {
			q := ask(agg, 4)
			q.Model = name
			r := m.generate(t.Context(), q)
			if known && (r.err != nil || r.accepted.GetModel() != "fable") || !known && status.Code(r.err) != codes.NotFound {
				t.Errorf("%s: %v, %v", name, r.accepted, r.err)
			}
		}
		list, err := m.inference.ListModels(t.Context(), &inferencev1.ListModelsRequest{})
		if err != nil || len(list.GetModels()) != 1 || list.GetModels()[0].GetName() != "fable" {
			t.Errorf("models %v, %v", list, err)
		}
		m.quiet()
	})
}

// An id that a request has already is made another one: nobody tries a 400 again.
func TestIDIsTakenOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		m.start(nil, decodeRecord("d1"))
		var wait sync.WaitGroup
		ids := make([]string, 3)
		for i := range ids {
			wait.Go(func() {
				w := m.post(t.Context(), "/v1/completions", `{"prompt":"There was","max_tokens":200,"n":2}`)
				if ids[i] = w.Header().Get("X-Request-Id"); w.Code != http.StatusOK || !strings.HasPrefix(ids[i], "from-http") || !strings.Contains(w.Body.String(), `"cmpl-`+ids[i]+`"`) {
					t.Errorf("%q, %d %s", ids[i], w.Code, w.Body)
				}
			})
		}
		wait.Wait()
		if ids[0] == ids[1] || ids[1] == ids[2] || ids[0] == ids[2] {
			t.Errorf("ids %q", ids)
		}
		for _, id := range ids {
			if _, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: id}); err != nil {
				t.Errorf("%s: %v", id, err)
			}
		}
		m.quiet()
	})
}

// A chat whose prompt is in tokens already is still traced as one.
func TestSeveralAnswersAreTraced(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		if w := m.post(t.Context(), "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"n":2}`); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		m.quiet()
		if n := m.sum("tandem_router_requests_total"); n != 2 {
			t.Errorf("%v requests are counted, of two", n)
		}
		roots := m.ended()["tandem.generate"]
		for _, span := range roots {
			if attributeOf(span, "http.route") != "/v1/chat/completions" || attributeOf(span, "gen_ai.operation.name") != "chat" {
				t.Errorf("%v", span.Attributes())
			}
		}
		if len(roots) != 2 {
			t.Errorf("%d requests are traced", len(roots))
		}
	})
}

// A response is traced as a chat, by its own route, and the router's own count of a prompt decides
// what its truncation drops.
func TestResponses(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		turn := `{"role":"user","content":"` + strings.Repeat("Tell me of a king. ", 60) + `"},{"role":"assistant","content":"No."},`
		body := `{"input":[` + strings.Repeat(turn, 40) + `{"role":"user","content":"And now?"}],"max_output_tokens":2,"truncation":"%s"}`
		if w := m.post(t.Context(), "/v1/responses", fmt.Sprintf(body, "disabled")); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "context_length_exceeded") {
			t.Errorf("too long: %d %s", w.Code, w.Body)
		}
		if w := m.post(t.Context(), "/v1/responses", fmt.Sprintf(body, "auto")); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"truncation":"auto"`) {
			t.Errorf("truncated: %d %s", w.Code, w.Body)
		}
		m.quiet()
		roots := m.ended()["tandem.generate"]
		for _, span := range roots {
			if attributeOf(span, "http.route") != "/v1/responses" || attributeOf(span, "gen_ai.operation.name") != "chat" {
				t.Errorf("%v", span.Attributes())
			}
		}
		if len(roots) == 0 {
			t.Error("no request is traced")
		}
	})
}

// More answers than a tenant may have are refused for good, by the limit in force.
func TestMoreAnswersThanATenantMayHave(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Routing.TenantMaxRequests = 2 }, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		three := func() int {
			return m.post(t.Context(), "/v1/completions", `{"prompt":"There was","max_tokens":2,"n":3}`).Code
		}
		if code := three(); code != http.StatusBadRequest {
			t.Errorf("with a limit of 2: %d", code)
		}
		if _, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{TenantMaxRequests: proto.Uint32(3)}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if code := three(); code != http.StatusOK {
			t.Errorf("with a limit of 3: %d", code)
		}
		m.quiet()
	})
}

// Answers that wait for the prompt of another have a limit of their own, as large as the tenant's.
func TestAnswersThatWaitForAPromptAreLimited(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Routing.TenantMaxRequests = 4 }, func(t *testing.T, m *mesh) {
		goOn := make(chan struct{})
		m.start(func(ctx context.Context, _ *workertest.Worker, _ *workerv1.Task, at workertest.Stage, _ int) error {
			if at == workertest.Admit {
				select {
				case <-goOn:
				case <-ctx.Done():
				}
			}
			return ctx.Err()
		}, decodeRecord("d1"))
		statuses := make(chan int, 2)
		ask := func(n int) {
			statuses <- m.post(t.Context(), "/v1/completions", completion(100, fmt.Sprintf(`,"n":%d`, n))).Code
		}
		go ask(4)
		synctest.Wait()
		go ask(3) // the first one goes on, and one of the others is one too many
		if code := <-statuses; code != http.StatusTooManyRequests {
			t.Errorf("five that wait, with a limit of 4: %d", code)
		}
		close(goOn)
		if code := <-statuses; code != http.StatusOK {
			t.Errorf("those that came first: %d", code)
		}
		go ask(4)
		if code := <-statuses; code != http.StatusOK {
			t.Errorf("once they have ended: %d", code)
		}
		m.quiet()
	})
}

// A worker's refusal names the field of the request, not the one of its task.
func TestFieldsOfTasks(t *testing.T) {
	for field, want := range map[string][2]string{
		"task.token_ids":           {"token_ids", "messages"},
		"task.envelope.cache_salt": {"cache_salt", "cache_salt"},
		"task.sampling.top_p":      {"sampling.top_p", "top_p"},
	} {
		inMesh(t, nil, func(t *testing.T, m *mesh) {
			m.start(func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
				if stage == workertest.Reserve {
					return rpc.InvalidArgument(field, "is not for this worker")
				}
				return nil
			}, decodeRecord("d1"))
			r := m.generate(t.Context(), ask(agg, 4))
			if rpc.Field(r.err) != want[0] || status.Convert(r.err).Message() != want[0]+": is not for this worker" {
				t.Errorf("%s: %v", field, r.err)
			}
			w := m.post(t.Context(), "/v1/chat/completions", `{"messages":[{"role":"user","content":"hi"}]}`)
			if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"param":"`+want[1]+`"`) {
				t.Errorf("%s: %d %s", field, w.Code, w.Body)
			}
		})
	}
}
