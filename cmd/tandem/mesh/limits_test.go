package mesh_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Each of several answers to a prompt counts as a request, and the tokens of the prompt once.
func TestLimitsOfSeveralAnswers(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		key, _ := m.create("acme", &controlv1.TenantLimits{RequestsPerMinute: 9, TokensPerMinute: 250}, "generate")
		prompt := strings.TrimSuffix(strings.Repeat("300,", 100), ",")
		answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":[`+prompt+`],"n":8,"max_tokens":10,"ignore_eos":true}`)
		if answer.StatusCode != http.StatusOK || !strings.Contains(text, `"total_tokens":180`) {
			m.Errorf("%d %s", answer.StatusCode, text)
		}
		if answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":[300],"n":2,"max_tokens":1}`); answer.StatusCode != http.StatusTooManyRequests {
			m.Errorf("more answers than requests are left: %d %s", answer.StatusCode, text)
		}
		// They have not used up what was left.
		if answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":[300],"max_tokens":1}`); answer.StatusCode != http.StatusOK {
			m.Errorf("the last one: %d %s", answer.StatusCode, text)
		}
		for _, body := range []string{`{"prompt":[300],"n":10,"max_tokens":1}`, `{"prompt":[[1],[2],[3],[4],[5],[6],[7],[8],[9],[10]],"max_tokens":1}`} {
			key, _ := m.create("few", &controlv1.TenantLimits{RequestsPerMinute: 9}, "generate")
			if answer, text := m.http(http.MethodPost, "/v1/completions", key, body); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, "more than the 9 a minute") {
				m.Errorf("more answers than ever: %d %s", answer.StatusCode, text)
			}
		}
	})
}

// Answers that never fit a limit together are refused for good, before anything is computed, and so
// are texts to embed.
func TestLimitsThatACallNeverFits(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		for name, c := range map[string]struct {
			limits     *controlv1.TenantLimits
			path, body string
			status     int
			param      string
		}{
			"answers at once":        {&controlv1.TenantLimits{Concurrency: 4}, "/v1/completions", `{"prompt":[300],"n":8,"max_tokens":1}`, http.StatusBadRequest, "n"},
			"prompts at once":        {&controlv1.TenantLimits{Concurrency: 1}, "/v1/completions", `{"prompt":[[300],[301]],"max_tokens":1}`, http.StatusBadRequest, "prompt"},
			"as many at once":        {&controlv1.TenantLimits{Concurrency: 4}, "/v1/completions", `{"prompt":[300],"n":4,"max_tokens":1}`, http.StatusOK, ""},
			"nothing to compute":     {&controlv1.TenantLimits{Concurrency: 1, TokensPerMinute: 2}, "/v1/completions", `{"prompt":[[300],[301],[302]],"max_tokens":0}`, http.StatusOK, ""},
			"scored":                 {&controlv1.TenantLimits{Concurrency: 1, TokensPerMinute: 3}, "/v1/completions", `{"prompt":[300,301],"n":2,"max_tokens":0,"prompt_logprobs":0}`, http.StatusOK, ""},
			"tokens of answers":      {&controlv1.TenantLimits{TokensPerMinute: 32}, "/v1/completions", `{"prompt":[300,301,302],"n":3,"max_tokens":10}`, http.StatusBadRequest, "n"},
			"as many tokens":         {&controlv1.TenantLimits{TokensPerMinute: 33}, "/v1/completions", `{"prompt":[300,301,302],"n":3,"max_tokens":10}`, http.StatusOK, ""},
			"answers of any length":  {&controlv1.TenantLimits{TokensPerMinute: 50}, "/v1/completions", `{"prompt":[300],"n":2}`, http.StatusBadRequest, "n"},
			"priority":               {&controlv1.TenantLimits{}, "/v1/completions", `{"prompt":[300],"max_tokens":1,"priority":-1}`, http.StatusBadRequest, "priority"},
			"too high a priority":    {&controlv1.TenantLimits{MaxPriority: 5}, "/v1/completions", `{"prompt":[300],"max_tokens":1,"priority":-6}`, http.StatusBadRequest, "priority"},
			"as high a priority":     {&controlv1.TenantLimits{MaxPriority: 5}, "/v1/completions", `{"prompt":[300],"max_tokens":1,"priority":-5}`, http.StatusOK, ""},
			"a low priority":         {&controlv1.TenantLimits{}, "/v1/completions", `{"prompt":[300],"max_tokens":1,"priority":100}`, http.StatusOK, ""},
			"short answers":          {&controlv1.TenantLimits{TokensPerMinute: 50, AnswerTokens: 10}, "/v1/completions", `{"prompt":[300],"n":2}`, http.StatusOK, ""},
			"tokens of prompts":      {&controlv1.TenantLimits{TokensPerMinute: 7}, "/v1/completions", `{"prompt":[[300,301],[302,303,304]],"max_tokens":2}`, http.StatusBadRequest, "prompt"},
			"tokens of texts":        {&controlv1.TenantLimits{TokensPerMinute: 6}, "/v1/embeddings", `{"input":[[300,301],[302,303,304]]}`, http.StatusBadRequest, "input"},
			"texts, a few at a time": {&controlv1.TenantLimits{Concurrency: 1, TokensPerMinute: 7}, "/v1/embeddings", `{"input":[[300,301],[302,303,304]]}`, http.StatusBadRequest, "model"}, // its engine gives no embeddings
		} {
			key, _ := m.create(strings.ReplaceAll(name, " ", "-"), c.limits, "generate")
			answer, text := m.http(http.MethodPost, c.path, key, c.body)
			var body struct{ Error struct{ Param string } }
			if err := json.Unmarshal([]byte(text), &body); err != nil || answer.StatusCode != c.status || body.Error.Param != c.param {
				m.Errorf("%s: %d %s", name, answer.StatusCode, text)
			}
			if left := answer.Header.Get("X-Ratelimit-Remaining-Tokens"); c.status != http.StatusOK && c.limits.TokensPerMinute > 0 && left != strconv.FormatUint(c.limits.TokensPerMinute, 10) {
				m.Errorf("%s: %s tokens are left", name, left)
			}
		}
		// More tokens than are left now: nothing is computed, and it counts as a request.
		for _, c := range []struct{ path, body string }{
			{"/v1/completions", `{"prompt":[300],"n":2,"max_tokens":2}`},
			{"/v1/embeddings", `{"input":[[300],[301,302]]}`},
		} {
			key, _ := m.create("used up by "+c.path, &controlv1.TenantLimits{RequestsPerMinute: 9, TokensPerMinute: 6}, "generate")
			if answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":[300],"max_tokens":1}`); answer.StatusCode != http.StatusOK {
				m.Errorf("%d %s", answer.StatusCode, text)
			}
			answer, text := m.http(http.MethodPost, c.path, key, c.body)
			if left := answer.Header.Get("X-Ratelimit-Remaining-Requests") + " " + answer.Header.Get("X-Ratelimit-Remaining-Tokens"); answer.StatusCode != http.StatusTooManyRequests || left != "7 4" {
				m.Errorf("%s: %d, %s left: %s", c.path, answer.StatusCode, left, text)
			}
		}
	})
}

// What costs a router something counts as a request, whether a worker computes anything or not;
// over the limit nothing of it is looked at.
func TestLimitsOfWhatNothingIsGeneratedFor(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		grammar := `{"prompt":"a","max_tokens":1,"structured_outputs":{"grammar":"root ::= missing"}}`
		for name, c := range map[string]struct {
			path, body string
			status     int
		}{
			"no tokens":    {"/v1/completions", `{"prompt":"a","max_tokens":0}`, http.StatusOK},
			"counted":      {"/v1/responses/input_tokens", `{"input":"a"}`, http.StatusOK},
			"not JSON":     {"/v1/completions", `{`, http.StatusBadRequest},
			"a wrong form": {"/v1/completions", grammar, http.StatusBadRequest},
			"no model":     {"/v1/completions", `{"model":"none","prompt":"a"}`, http.StatusNotFound},
			"no item":      {"/v1/responses", `{"input":[{"type":"item_reference","id":"msg_1"}]}`, http.StatusNotFound},
		} {
			key, _ := m.create(name, &controlv1.TenantLimits{RequestsPerMinute: 2}, "generate")
			left := 2
			for _, want := range []int{c.status, c.status, http.StatusTooManyRequests} {
				answer, text := m.http(http.MethodPost, c.path, key, c.body)
				if answer.StatusCode != want {
					m.Errorf("%s: %d, want %d: %s", name, answer.StatusCode, want, text)
				}
				if left = max(left-1, 0); answer.Header.Get("X-Ratelimit-Remaining-Requests") != strconv.Itoa(left) {
					m.Errorf("%s: %s requests are left, want %d", name, answer.Header.Get("X-Ratelimit-Remaining-Requests"), left)
				}
			}
		}
		// More tokens than are left: to find that, the prompt was cut into them.
		long, _ := m.create("long", &controlv1.TenantLimits{RequestsPerMinute: 3, TokensPerMinute: 20}, "generate")
		for i, status := range []int{http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests, http.StatusTooManyRequests} {
			answer, text := m.http(http.MethodPost, "/v1/completions", long, `{"prompt":[300,301,302,303,304,305],"max_tokens":6,"ignore_eos":true}`)
			if want := strconv.Itoa(max(2-i, 0)); answer.StatusCode != status || answer.Header.Get("X-Ratelimit-Remaining-Requests") != want {
				m.Errorf("%d: %d, %s requests left, want %s: %s", i, answer.StatusCode, answer.Header.Get("X-Ratelimit-Remaining-Requests"), want, text)
			}
		}
		// Over the limit nothing of a call over gRPC is received.
		conn := m.dial(m.up.Address, long)
		for _, method := range []string{inferencev1.Inference_Generate_FullMethodName, inferencev1.Inference_Embed_FullMethodName, inferencev1.Inference_Tokenize_FullMethodName, controlv1.Requests_Explain_FullMethodName} {
			stream, err := conn.NewStream(m.Context(), &grpc.StreamDesc{ClientStreams: true}, method)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.RecvMsg(&inferencev1.TokenizeResponse{}); grpcstatus.Code(err) != codes.ResourceExhausted {
				m.Errorf("%s: %v", method, err)
			}
		}
		explains, _ := m.create("explains", &controlv1.TenantLimits{RequestsPerMinute: 2}, "generate")
		for _, want := range []codes.Code{codes.NotFound, codes.NotFound, codes.ResourceExhausted} {
			_, err := controlv1.NewRequestsClient(m.dial(m.up.Address, explains)).Explain(m.Context(), &controlv1.ExplainOwnRequest{RequestId: "a", Secret: "b"})
			if grpcstatus.Code(err) != want {
				m.Errorf("a record that is asked for: %v, want %v", err, want)
			}
		}
		key, _ := m.create("embeds", &controlv1.TenantLimits{RequestsPerMinute: 3}, "generate")
		for _, c := range []struct {
			body   string
			status int
		}{
			{`{"input":["a","b","c","d"]}`, http.StatusBadRequest},
			{`{"input":["a","b","c"]}`, http.StatusTooManyRequests},
		} {
			if answer, text := m.http(http.MethodPost, "/v1/embeddings", key, c.body); answer.StatusCode != c.status {
				m.Errorf("%s: %d, want %d: %s", c.body, answer.StatusCode, c.status, text)
			}
		}
	})
}

// What is resumed was counted when it began, so its tenant may be at its limits. To do so over and
// over is a request each time, and so is to ask for what there is not.
func TestLimitsOfResuming(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		const free, over = 8, 8 // how often a request is resumed for nothing, and requests over the limit are let through
		limits := &controlv1.TenantLimits{RequestsPerMinute: 2, TokensPerMinute: 20, Concurrency: 1}
		resume := func(key string, q *inferencev1.ResumeRequest) codes.Code {
			stream, err := inferencev1.NewInferenceClient(m.dial(m.up.Address, key)).Resume(m.Context(), q)
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return codes.OK
			}
			return grpcstatus.Code(err)
		}
		key, _ := m.create("acme", limits, "generate")
		accepted, err := m.generate(key, &inferencev1.GenerateRequest{MaxTokens: new(uint32(4)), IgnoreEos: true, ResumableFor: durationpb.New(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		left := func() string {
			answer, _ := m.http(http.MethodGet, "/v1/models", key, "")
			return answer.Header.Get("X-Ratelimit-Remaining-Requests") + " " + answer.Header.Get("X-Ratelimit-Remaining-Tokens")
		}
		began := left()
		its := &inferencev1.ResumeRequest{RequestId: accepted.GetRequestId(), Secret: accepted.GetSecret()}
		for range free {
			if code := resume(key, its); code != codes.OK {
				t.Errorf("resumed: %s", code)
			}
		}
		if now := left(); now != began || !strings.HasPrefix(now, "1 ") {
			t.Errorf("left %s, before it was resumed %s", now, began)
		}
		for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
			if code := resume(key, its); code != want {
				t.Errorf("resumed too often: %s, want %s", code, want)
			}
		}
		if now := left(); now != "0"+strings.TrimPrefix(began, "1") {
			t.Errorf("left %s, before it was resumed %s", now, began)
		}

		// At its limit a tenant may resume, and not search without an end.
		key, _ = m.create("lost", limits, "generate")
		missing := &inferencev1.ResumeRequest{RequestId: "none", Secret: strings.Repeat("0", 32)}
		for i := range int(limits.GetRequestsPerMinute()) + over + 2 {
			want := codes.NotFound
			if i >= int(limits.GetRequestsPerMinute())+over {
				want = codes.ResourceExhausted
			}
			if code := resume(key, missing); code != want {
				t.Errorf("what there is not, %d: %s, want %s", i, code, want)
			}
		}
		body := `{"prompt":"a","stream":true}`
		request, err := http.NewRequestWithContext(m.Context(), http.MethodPost, "http://"+m.up.HTTP+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+key)
		request.Header.Set("Last-Event-ID", "none/1")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusTooManyRequests {
			t.Errorf("the same over HTTP: %d", answer.StatusCode)
		}
	})
}

// Limits are those of the credential, whatever the request says of its tenant.
func TestLimitsOfAKey(t *testing.T) {
	runClosed(t, nil, nil, func(m *closedMesh) {
		// Those that are refused for what they ask count too.
		key, _ := m.create("acme", &controlv1.TenantLimits{RequestsPerMinute: 5, TokensPerMinute: 1000, PromptTokens: 50, AnswerTokens: 20}, "generate")
		second, _ := m.create("acme", &controlv1.TenantLimits{RequestsPerMinute: 5}, "generate")
		others, _ := m.create("other", nil, "generate")
		if answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":"a","max_tokens":21}`); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"param":"max_tokens"`) {
			m.Errorf("too long an answer: %d %s", answer.StatusCode, text)
		}
		if answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":"`+strings.Repeat("tale ", 60)+`"}`); answer.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"param":"prompt"`) {
			m.Errorf("too long a prompt: %d %s", answer.StatusCode, text)
		}
		answer, text := m.http(http.MethodPost, "/v1/completions", key, `{"prompt":"Once","user":"other"}`) // as long as it may be
		var body struct {
			Usage struct {
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil || answer.StatusCode != http.StatusOK || body.Usage.Completion > 20 {
			m.Errorf("%d %s", answer.StatusCode, text)
		}
		header := answer.Header
		if header.Get("X-Ratelimit-Limit-Requests") != "5" || header.Get("X-Ratelimit-Remaining-Requests") != "2" || header.Get("X-Ratelimit-Limit-Tokens") != "1000" || header.Get("X-Ratelimit-Reset-Requests") == "" {
			m.Errorf("%v", header)
		}
		if _, err := m.generate(key, &inferencev1.GenerateRequest{MaxTokens: new(uint32(4)), Tenant: "other"}); err != nil {
			m.Error(err)
		}
		if _, err := m.generate(second, &inferencev1.GenerateRequest{MaxTokens: new(uint32(4))}); err != nil {
			m.Error(err)
		}
		if answer, text = m.http(http.MethodPost, "/v1/completions", second, asksForText); answer.StatusCode != http.StatusTooManyRequests ||
			answer.Header.Get("Retry-After") == "" || answer.Header.Get("X-Ratelimit-Remaining-Requests") != "0" || !strings.Contains(text, "rate_limit_exceeded") {
			m.Errorf("over the limit: %d %v %s", answer.StatusCode, answer.Header, text)
		}
		_, err := m.generate(key, &inferencev1.GenerateRequest{MaxTokens: new(uint32(4)), Tenant: "other"})
		if wait, ok := rpc.RetryAfter(err); grpcstatus.Code(err) != codes.ResourceExhausted || !ok || wait < time.Second {
			m.Errorf("over the limit: %v, again after %s", err, wait)
		}
		if _, err := m.generate(others, &inferencev1.GenerateRequest{MaxTokens: new(uint32(4)), Tenant: "acme"}); err != nil {
			m.Errorf("another tenant: %v", err)
		}
		words, _ := m.create("words", &controlv1.TenantLimits{RequestsPerMinute: 2}, "generate")
		client := inferencev1.NewInferenceClient(m.dial(m.up.Address, words))
		once := &inferencev1.TokenizeRequest{Text: "Once"}
		tokens, err := client.Tokenize(m.Context(), once)
		if err != nil {
			m.Fatal(err)
		}
		ids := &inferencev1.DetokenizeRequest{TokenIds: tokens.GetTokenIds()}
		if _, err := client.Detokenize(m.Context(), ids); err != nil {
			m.Error(err)
		}
		if _, err := client.Tokenize(m.Context(), once); grpcstatus.Code(err) != codes.ResourceExhausted {
			m.Errorf("Tokenize over the limit: %v", err)
		}
		if _, err := client.Detokenize(m.Context(), ids); grpcstatus.Code(err) != codes.ResourceExhausted {
			m.Errorf("Detokenize over the limit: %v", err)
		}
	})
}
