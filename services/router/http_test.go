package router_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
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
		if got := attributeOf(the(t, m.ended(), "tandem.generate"), "error.type"); got != "503" {
			t.Errorf("error.type is %q", got)
		}
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
