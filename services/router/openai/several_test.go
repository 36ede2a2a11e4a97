package openai_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
	"github.com/tandem-serving/tandem/services/router/serving"
)

func TestSeveralAnswersHaveSeedsAndIDsOfTheirOwn(t *testing.T) {
	f := &fake{words: []string{"a"}}
	w := ask(t, f, http.MethodPost, completions, `{"prompt":["x","y"],"n":2,"seed":9,"echo":true}`)
	if w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	seeds, ids := map[string]map[uint64]bool{}, map[string]bool{}
	for i, q := range f.asked {
		prompt := string(rune(q.GetTokenIds().GetIds()[0]))
		if seeds[prompt] == nil {
			seeds[prompt] = map[uint64]bool{}
		}
		seeds[prompt][q.GetSampling().GetSeed()] = true
		ids[f.ids[i]] = true
	}
	for _, prompt := range []string{"x", "y"} {
		if s := seeds[prompt]; len(s) != 2 || !s[9] || !s[10] {
			t.Errorf("seeds of %s: %v", prompt, s)
		}
	}
	for _, id := range []string{"id-1", "id-1/1", "id-1/2", "id-1/3"} {
		if !ids[id] {
			t.Errorf("no request has the id %s: %v", id, ids)
		}
	}
	var got struct {
		Choices []struct {
			Index int
			Text  string
		}
		Usage map[string]any
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"xa", "xa", "ya", "ya"} {
		if got.Choices[i].Index != i || got.Choices[i].Text != want {
			t.Errorf("answer %d: %+v", i, got.Choices[i])
		}
	}
	if got.Usage["prompt_tokens"] != 10. || got.Usage["completion_tokens"] != 4. || got.Usage["total_tokens"] != 14. {
		t.Errorf("usage %v", got.Usage)
	}
}

// Draft tokens are counted in the usage, of all answers together, if there were any.
func TestUsageCountsDrafts(t *testing.T) {
	for _, c := range []struct {
		drafts, accepted uint32
		want             string // of two answers
	}{
		{0, 0, `"prompt_tokens_details":{"cached_tokens":2}}`},
		{5, 3, `"completion_tokens_details":{"accepted_prediction_tokens":6,"rejected_prediction_tokens":4}}`},
		{5, 0, `"completion_tokens_details":{"accepted_prediction_tokens":0,"rejected_prediction_tokens":10}}`},
	} {
		f := &fake{words: []string{"a"}, drafts: c.drafts, accepted: c.accepted}
		w := ask(t, f, http.MethodPost, chats, `{`+hi+`,"n":2}`)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%d of %d drafts: %d %s, which should have %s", c.accepted, c.drafts, w.Code, w.Body, c.want)
		}
	}
}

// A prompt is made into tokens once, however many answers it has. A conversation stays beside them,
// since it says also what ends a turn and which tools can be called.
func TestPromptIsPreparedOnce(t *testing.T) {
	for _, c := range []struct {
		path, body    string
		plans, served int
	}{
		{chats, `{` + hi + `,"n":16}`, 1, 16},
		{chats, `{` + hi + `}`, 0, 1}, // Generate does it itself
		{completions, `{"prompt":["x","y"],"n":3}`, 2, 6},
		{completions, `{"prompt":["x","y"]}`, 2, 2},
	} {
		f := &fake{words: []string{"a"}}
		if w := ask(t, f, http.MethodPost, c.path, c.body); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if f.plans != c.plans || len(f.asked) != c.served {
			t.Errorf("%s: %d plans, %d requests", c.body, f.plans, len(f.asked))
		}
		for i, q := range f.asked {
			if rendered := c.path == chats && c.plans > 0; rendered != slices.Equal(f.rendered[i], []uint32{1, 2, 3, 4, 5}) {
				t.Errorf("%s: rendered %v", c.body, f.rendered[i])
			}
			if c.path == chats && q.GetConversation() == nil || c.path != chats && len(q.GetTokenIds().GetIds()) != 5 {
				t.Errorf("%s: asked %v", c.body, q)
			}
		}
	}
}

// More answers than can ever run are not told to try again.
func TestMoreAnswersThanAllowed(t *testing.T) {
	for _, c := range []struct{ path, body, param string }{
		{chats, `{` + hi + `,"n":4}`, "n"},
		{completions, `{"prompt":["a","b"],"n":2}`, "n"},
		{completions, `{"prompt":["a","b","c","d"]}`, "prompt"},
	} {
		w := ask(t, &fake{words: []string{"a"}, most: 3}, http.MethodPost, c.path, c.body)
		if e := errorOf(t, w.Body.String()); w.Code != http.StatusBadRequest || e.Param != c.param || !strings.Contains(e.Message, "4 answers") {
			t.Errorf("%s: %d %+v", c.body, w.Code, e)
		}
	}
	if w := ask(t, &fake{words: []string{"a"}, most: 3}, http.MethodPost, chats, `{`+hi+`,"n":3}`); w.Code != http.StatusOK {
		t.Errorf("as many as allowed: %d %s", w.Code, w.Body)
	}
}

// An id that was taken is changed by the backend, and the answer says to what.
func TestAnswerNamesTheIDThatCounts(t *testing.T) {
	for _, body := range []string{`{` + hi + `}`, `{` + hi + `,"stream":true}`} {
		w := ask(t, &fake{words: []string{"a"}, renames: true}, http.MethodPost, chats, body)
		if w.Header().Get("X-Request-Id") != "id-1-free" || !strings.Contains(w.Body.String(), `"chatcmpl-id-1-free"`) {
			t.Errorf("%v %s", w.Header(), w.Body)
		}
	}
	f := &fake{words: []string{"a"}, renames: true}
	ask(t, f, http.MethodPost, chats, `{`+hi+`,"n":2}`)
	for _, id := range f.ids {
		if !strings.HasPrefix(id, "id-1-free") {
			t.Errorf("an answer runs as %s", id)
		}
	}
}

// lateFirst admits the first answer when the second has ended.
type lateFirst struct {
	*fake
	ended chan struct{}
}

func (l *lateFirst) Generate(ctx context.Context, from *serving.Caller, q *inferencev1.GenerateRequest, send func(*inferencev1.GenerateEvent) error) error {
	if strings.HasSuffix(rpc.RequestID(ctx), "/1") {
		defer close(l.ended)
		return l.fake.Generate(ctx, from, q, send)
	}
	from.Queued(l.id(ctx), false)
	select {
	case <-l.ended:
		return l.fake.Generate(ctx, from, q, send)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// An answer does not wait for another one to be admitted. All are whole, and the headers have the id of
// the first.
func TestAnswersComeAsTheyAreMade(t *testing.T) {
	for _, stream := range []string{"", `,"stream":true`} {
		synctest.Test(t, func(t *testing.T) {
			l := &lateFirst{&fake{words: []string{"a"}, renames: true}, make(chan struct{})}
			w := ask(t, l, http.MethodPost, completions, `{"prompt":"before","n":2,"echo":true`+stream+`}`)
			if n := strings.Count(w.Body.String(), "before"); w.Code != http.StatusOK || n != 2 || !strings.Contains(w.Body.String(), `"completion_tokens":2`) && stream == "" {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if id := w.Header().Get("X-Request-Id"); id != "id-1-free-free" || strings.Contains(w.Body.String(), `"cmpl-id-1"`) {
				t.Errorf("the id is %s", id)
			}
		})
	}
}

// A panic is logged with its stack and told to nobody, on whichever goroutine.
func TestPanics(t *testing.T) {
	for _, body := range []string{`{` + hi + `}`, `{` + hi + `,"n":2}`} {
		var log bytes.Buffer
		h, err := build(&fake{panics: true}, openai.Config{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, chats, strings.NewReader(body)))
		if e := errorOf(t, w.Body.String()); w.Code != http.StatusInternalServerError || e.Code != "panic" || strings.Contains(e.Message, "nobody") {
			t.Errorf("%s: %d %+v", body, w.Code, e)
		}
		if !strings.Contains(log.String(), "what nobody should see") || !strings.Contains(log.String(), "fake).Generate") {
			t.Errorf("%s: the log says %s", body, log.String())
		}
	}
}

// Requests that are not admitted yet take so much memory and no more; it is given
// back when they are, or end.
func TestHeldBytes(t *testing.T) {
	f := &fake{words: []string{"a"}}
	h, err := build(f, openai.Config{MaxHeldBytes: 4096})
	if err != nil {
		t.Fatal(err)
	}
	post := func(body string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, chats, strings.NewReader(body)))
		return w
	}
	for range 10 { // more than fit at a time
		if w := post(`{` + hi + `}`); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		for _, body := range []string{
			`{` + hi + `,"x":"` + strings.Repeat("a", 4096) + `"}`,
			`{` + hi + `,"x":[` + strings.Repeat("[],", 20) + `0]}`,
			`{` + hi + `,"chat_template_kwargs":{"x":[` + strings.Repeat("0,", 20) + `0]}}`,
		} {
			w := post(body)
			if e := errorOf(t, w.Body.String()); w.Code != http.StatusServiceUnavailable || e.Code != "overloaded" || w.Header().Get("Retry-After") != "1" {
				t.Errorf("%.60s: %d %+v %v", body, w.Code, e, w.Header())
			}
		}
	}
}

// Answers that are sent as a whole take of the same memory, one request at most half of it. More is
// refused in a way that invites no second try.
func TestWholeAnswersAreHeld(t *testing.T) {
	score := &inferencev1.TokenLogprobs{Text: []byte("x"), Top: []*inferencev1.TokenLogprob{{}, {}}}
	long := `"prompt":"` + strings.Repeat("x", 2<<10) + `"`
	for _, c := range []struct {
		backend *fake
		bytes   int64
		path    string
		params  map[string]string // "": it is answered
	}{
		{&fake{words: slices.Repeat([]string{"word "}, 1000)}, 32 << 10, chats, map[string]string{
			`{` + hi + `}`:                     "",
			`{` + hi + `,"n":4}`:               "n",
			`{` + hi + `,"n":4,"stream":true}`: "",
		}},
		// What is said of a prompt is said with each of its answers.
		{&fake{words: []string{"a"}, scores: slices.Repeat([]*inferencev1.TokenLogprobs{score}, 20)}, 64 << 10, completions, map[string]string{
			`{"prompt":"x","echo":true,"n":8}`:                     "",
			`{` + long + `,"echo":true}`:                           "",
			`{` + long + `,"n":8}`:                                 "",
			`{` + long + `,"echo":true,"n":8}`:                     "echo",
			`{` + long + `,"echo":true,"n":8,"stream":true}`:       "",
			`{"prompt":"x","echo":true,"logprobs":2}`:              "",
			`{"prompt":"x","echo":true,"logprobs":2,"n":8}`:        "echo",
			`{"prompt":"x","prompt_logprobs":2,"n":8}`:             "prompt_logprobs",
			`{"prompt":"x","prompt_logprobs":2,"n":2,"best_of":8}`: "",
		}},
		// With one answer the backend itself sees that its events are not taken.
		{&fake{words: slices.Repeat([]string{"word "}, 4000)}, 32 << 10, chats, map[string]string{`{` + hi + `}`: "max_tokens"}},
	} {
		h, err := build(c.backend, openai.Config{MaxHeldBytes: c.bytes})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			for body, param := range c.params {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(body)))
				if param == "" && w.Code == http.StatusOK {
					continue
				}
				if w.Code != http.StatusBadRequest || param == "" || errorOf(t, w.Body.String()).Param != param || w.Header().Get("Retry-After") != "" {
					t.Errorf("%.60s: %d, want %q: %.200s", body, w.Code, param, w.Body)
				}
			}
		}
	}
	// A stream that has begun ends with the error.
	h, err := build(&fake{scores: slices.Repeat([]*inferencev1.TokenLogprobs{score}, 200)}, openai.Config{MaxHeldBytes: 32 << 10})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, completions, strings.NewReader(`{"prompt":"x","echo":true,"logprobs":2,"stream":true}`)))
	if !strings.HasPrefix(w.Body.String(), `data: {"error":`) || !strings.Contains(w.Body.String(), `"param":"echo"`) {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

// Where other answers take the memory, there is some later.
func TestMemoryOfOtherAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := build(&fake{words: slices.Repeat([]string{"word "}, 1000), block: true}, openai.Config{MaxHeldBytes: 32 << 10})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ask := func() *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, chats, strings.NewReader(`{`+hi+`}`)))
			return w
		}
		var wait sync.WaitGroup
		for range 2 {
			wait.Go(func() { ask() })
		}
		synctest.Wait()
		if w := ask(); w.Code != http.StatusServiceUnavailable || errorOf(t, w.Body.String()).Code != "overloaded" || w.Header().Get("Retry-After") != "1" {
			t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
		}
		cancel()
		wait.Wait()
	})
}

// One tenant cannot take all of the memory: what others send is served meanwhile.
func TestMemoryOfOtherTenants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, err := build(&fake{words: []string{"a"}}, openai.Config{
			MaxHeldBytes: 64 << 10, Limits: new(count),
			Authenticate: func(ctx context.Context, tenant string) (context.Context, error) {
				return auth.With(ctx, &auth.Principal{Tenant: tenant}, ""), nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(tenant string, body io.Reader) int {
			q := httptest.NewRequest(http.MethodPost, completions, body)
			q.Header.Set("Authorization", tenant)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			return w.Code
		}
		prompt := `{"prompt":"` + strings.Repeat("x", 20<<10) + `"}`
		if code := ask("a", strings.NewReader(`{"prompt":"`+strings.Repeat("x", 40<<10)+`"}`)); code != http.StatusOK {
			t.Errorf("a long one alone: %d", code)
		}
		stalled, writer := io.Pipe()
		var wait sync.WaitGroup
		wait.Go(func() { ask("a", stalled) })
		if _, err := io.WriteString(writer, prompt[:len(prompt)-1]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if first, second := ask("a", strings.NewReader(prompt)), ask("b", strings.NewReader(prompt)); first != http.StatusServiceUnavailable || second != http.StatusOK {
			t.Errorf("the same tenant: %d; another: %d", first, second)
		}
		writer.Close()
		wait.Wait()
		if code := ask("a", strings.NewReader(prompt)); code != http.StatusOK || h.Held() != 0 {
			t.Errorf("after its first request: %d, %d bytes are held", code, h.Held())
		}
	})
}

// A stream gives back the memory of its prompt's log probabilities once they are sent.
func TestMemoryOfStreamedPrompts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		score := &inferencev1.TokenLogprobs{Text: []byte("x"), Top: []*inferencev1.TokenLogprob{{}, {}}}
		f := &fake{words: []string{"a"}, scores: slices.Repeat([]*inferencev1.TokenLogprobs{score}, 50), block: true}
		h, err := build(f, openai.Config{MaxHeldBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		answers := make([]*httptest.ResponseRecorder, 4) // more than fit at a time
		var wait sync.WaitGroup
		for i := range answers {
			answers[i] = httptest.NewRecorder()
			body := strings.NewReader(`{"prompt":"x","echo":true,"logprobs":2,"stream":true}`)
			wait.Go(func() {
				h.ServeHTTP(answers[i], httptest.NewRequestWithContext(ctx, http.MethodPost, completions, body))
			})
			synctest.Wait()
		}
		cancel()
		wait.Wait()
		for i, w := range answers {
			if strings.Contains(w.Body.String(), `"error"`) || !strings.Contains(w.Body.String(), `"text":"a"`) {
				t.Errorf("answer %d: %.300s", i, w.Body)
			}
		}
	})
}

// What cannot fit is refused before anything is computed.
func TestAnswersThatCannotFit(t *testing.T) {
	const scored = `"logprobs":true,"top_logprobs":20`
	for _, c := range []struct{ path, body, param string }{
		{chats, `{` + hi + `,` + scored + `,"max_tokens":9}`, "top_logprobs"},
		{chats, `{` + hi + `,` + scored + `,"max_tokens":3,"n":3}`, "top_logprobs"},
		{chats, `{` + hi + `,` + scored + `,"max_tokens":8}`, ""},
		{chats, `{` + hi + `,` + scored + `,"max_tokens":9,"stream":true}`, ""},
		{chats, `{` + hi + `,` + scored + `}`, ""},
		{chats, `{` + hi + `,"max_tokens":1000}`, ""},
		{chats, `{` + hi + `,"logprobs":true,"max_tokens":257}`, "max_tokens"},
		{chats, `{` + hi + `,"logprobs":true,"max_completion_tokens":129,"n":2}`, "n"},
		{chats, `{` + hi + `,"prompt_logprobs":20}`, ""},
		{responses, `{"input":"hi","include":["message.output_text.logprobs"],"top_logprobs":20,"max_output_tokens":9}`, "top_logprobs"},
		{responses, `{"input":"hi","include":["message.output_text.logprobs"],"top_logprobs":20,"max_output_tokens":9,"stream":true}`, "top_logprobs"},
		{completions, `{"prompt":"x","logprobs":20,"max_tokens":9}`, "logprobs"},
		{completions, `{"prompt":"x","prompt_logprobs":20}`, "prompt_logprobs"},
		{completions, `{"prompt":"x","prompt_logprobs":20,"max_tokens":0}`, "prompt_logprobs"},
		{completions, `{"prompt":"x","echo":true,"logprobs":20,"max_tokens":1}`, "echo"},
		{completions, `{"prompt":"x","echo":true,"logprobs":20,"max_tokens":1,"stream":true}`, ""},
		{completions, `{"prompt":["x","y"],"echo":true,"logprobs":20,"max_tokens":1,"stream":true}`, "echo"},
	} {
		f := &fake{words: []string{"a"}}
		h, err := build(f, openai.Config{MaxHeldBytes: 64 << 10})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body)))
		if c.param == "" && w.Code == http.StatusOK {
			continue
		}
		if c.param == "" || w.Code != http.StatusBadRequest || errorOf(t, w.Body.String()).Param != c.param || len(f.asked) > 0 {
			t.Errorf("%s: %d %s after %d requests, want %q", c.body, w.Code, w.Body, len(f.asked), c.param)
		}
	}
}

// count counts requests that do not reach the backend.
type count struct {
	overLimit
	requests int
}

func (c *count) Count(context.Context)                           { c.requests++ }
func (c *count) Check(context.Context, quota.Need, string) error { return nil }

// leaving is a backend whose client leaves while it looks whether a request fits.
type leaving struct {
	fake
	leave func()
}

func (l *leaving) Fits(context.Context, *inferencev1.GenerateRequest) bool {
	l.leave()
	return true
}

// A request that fails before the backend has it counts, for the work that it made, or the place that it took.
func TestWhatFailsBeforeTheBackendCounts(t *testing.T) {
	broken := func() io.Reader {
		return io.MultiReader(strings.NewReader(`{"prompt":`), iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	text := func(body string) func() io.Reader { return func() io.Reader { return strings.NewReader(body) } }
	for _, c := range []struct {
		path   string
		body   func() io.Reader
		status int
		counts int
	}{
		{completions, broken, http.StatusRequestTimeout, 1},
		{responses, text(`{"input":[{"type":"item_reference","id":"msg_1"}]}`), http.StatusNotFound, 1},
		{responses, text(`{"input":"hi","truncation":"auto"}`), 499, 1},
		{responses + "/input_tokens", text(`{"input":"hi","truncation":"auto"}`), 499, 1},
		{responses + "/resp_1/cancel", text(``), http.StatusNotFound, 0}, // no body is read
	} {
		ctx, leave := context.WithCancel(t.Context())
		limits := new(count)
		h, err := build(&leaving{leave: leave}, openai.Config{
			Limits: limits, Authenticate: func(ctx context.Context, _ string) (context.Context, error) { return ctx, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, c.path, c.body()))
		if w.Code != c.status || limits.requests != c.counts {
			t.Errorf("%s: %d, want %d; it counts %d times, want %d: %s", c.path, w.Code, c.status, limits.requests, c.counts, w.Body)
		}
		leave()
	}
}

// A request whose answer turns out too large was counted when it was admitted.
func TestTooLargeAnswersCountOnce(t *testing.T) {
	for body, want := range map[string]int{`{` + hi + `}`: 0, `{` + hi + `,"logprobs":true,"max_tokens":1000}`: 1} {
		limits := new(count)
		h, err := build(&fake{words: slices.Repeat([]string{"word "}, 4000), secret: "s"}, openai.Config{
			MaxHeldBytes: 32 << 10,
			Limits:       limits, Authenticate: func(ctx context.Context, _ string) (context.Context, error) { return ctx, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, chats, strings.NewReader(body)))
		if w.Code != http.StatusBadRequest || limits.requests != want {
			t.Errorf("%s: %d, counted %d times beside the backend, want %d", body, w.Code, limits.requests, want)
		}
	}
}

// The secret that proves a request's answers stands in a header, though answers that compute nothing
// have none.
func TestSecretOfScoredPrompts(t *testing.T) {
	w := ask(t, &fake{secret: "s"}, http.MethodPost, completions, `{"prompt":"x","max_tokens":0,"echo":true,"logprobs":1,"n":2}`)
	if w.Code != http.StatusOK || w.Header().Get("X-Tandem-Secret") != "s" {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
}
