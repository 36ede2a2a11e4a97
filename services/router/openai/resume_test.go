package openai_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/quota"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
)

const secret = "0123456789abcdef0123456789abcdef"

// askAgain sends a request as clients of server-sent events do whose stream broke.
func askAgain(t testing.TB, f *fake, path, body, lastEventID string) *httptest.ResponseRecorder {
	t.Helper()
	q := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	q.Header.Set("X-Request-Id", "id-1")
	q.Header.Set("X-Tandem-Secret", secret)
	if lastEventID != "" {
		q.Header.Set("Last-Event-ID", lastEventID)
	}
	w := httptest.NewRecorder()
	handler(t, f).ServeHTTP(w, q)
	return w
}

// Whichever event was the last to come, the rest of the stream is what it would have been.
func TestStreamGoesOnAfterEachEvent(t *testing.T) {
	likelihoods := []*inferencev1.TokenLogprobs{likely("a", -0.5, "a"), likely("b", -1, "c"), likely("", -1, "c"), likely("d", -1, "c")}
	for _, c := range []struct{ name, path, fields string }{
		{"chat", chats, hi},
		{"chat with usage", chats, hi + `,"stream_options":{"include_usage":true}`},
		{"chat with all usage", chats, hi + `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`},
		{"chat with likelihoods", chats, hi + `,"logprobs":true,"top_logprobs":1,"timing_ms":true`},
		{"completion", completions, `"prompt":"a"`},
		{"completion with echo", completions, `"prompt":"a","echo":true`},
	} {
		for _, held := range []string{"", "."} {
			synctest.Test(t, func(t *testing.T) { // equal times of creation
				body := `{` + c.fields + `,"stream":true,"resumable_for":"60s"}`
				f := &fake{words: []string{"a", "b", "", "d"}, held: held, logprobs: likelihoods}
				w := askAgain(t, f, c.path, body, "")
				events := strings.SplitAfter(w.Body.String(), "\n\n")
				events = events[:len(events)-1]
				if w.Code != http.StatusOK || f.only(t).GetResumableFor().AsDuration().Seconds() != 60 || len(events) < 5 {
					t.Fatalf("%s%s: %d %s", c.name, held, w.Code, w.Body)
				}
				seen := map[string]bool{}
				for i, event := range events {
					line, _, _ := strings.Cut(event, "\n")
					id, has := strings.CutPrefix(line, "id: ")
					if !has || seen[id] || !strings.HasPrefix(id, "id-1/") {
						t.Fatalf("event %d has the id %q: %s", i, id, w.Body)
					}
					seen[id] = true
					rest := askAgain(t, f, c.path, body, id)
					if last := f.resumed[len(f.resumed)-1]; last.GetSecret() != secret {
						t.Errorf("with the secret %q", last.GetSecret())
					}
					if i == len(events)-1 {
						if rest.Code != http.StatusNoContent || rest.Body.Len() > 0 {
							t.Errorf("after the last: %d %s", rest.Code, rest.Body)
						}
						continue
					}
					want := strings.Join(events[i+1:], "")
					if rest.Code != http.StatusOK || rest.Body.String() != want {
						t.Errorf("%s%s after %s: %d\ngot  %s\nwant %s", c.name, held, id, rest.Code, rest.Body, want)
					}
				}
			})
		}
	}
}

// Streams that nobody asked to be resumable have no ids, and are not kept.
func TestStreamsWithoutIDs(t *testing.T) {
	for _, fields := range []string{`"stream":true`, `"stream":true,"resumable_for":null`, `"stream":true,"resumable_for":"0s"`, `"stream":true,"max_tokens":0,"resumable_for":"1s"`, `"resumable_for":"60s"`} {
		f := &fake{words: []string{"a"}}
		w := ask(t, f, http.MethodPost, chats, `{`+hi+`,`+fields+`}`)
		if w.Code != http.StatusOK || strings.Contains(w.Body.String(), "id: ") || len(f.asked) > 0 && f.only(t).GetResumableFor().AsDuration() > 0 {
			t.Errorf("%s: %d %s", fields, w.Code, w.Body)
		}
	}
}

func TestResumeRefusals(t *testing.T) {
	streams := `{` + hi + `,"stream":true}`
	for _, c := range []struct {
		name, body, id string
		status         int
		code, message  string
	}{
		{"no slash", streams, "17", 400, "invalid_value", `Last-Event-ID: "17" is not the id of an event`},
		{"no number", streams, "id-1/x", 400, "invalid_value", "is not the id of an event"},
		{"no request", streams, "/17", 400, "invalid_value", "is not the id of an event"},
		{"another spelling", streams, "id-1/007", 400, "invalid_value", "is not the id of an event"},
		{"after the end", streams, "id-1/1+5", 400, "invalid_value", "is not the id of an event"},
		{"long", streams, strings.Repeat("x", 1000), 400, "invalid_value", "is not the id of an event"},
		{"no stream", `{` + hi + `}`, "id-1/1", 400, "invalid_value", "goes on with a stream of one answer"},
		{"several answers", `{` + hi + `,"stream":true,"n":2}`, "id-1/1", 400, "invalid_value", "goes on with a stream of one answer"},
		{"not reached", streams, "id-1/9", 400, "invalid_value", "Last-Event-ID: is past the tokens so far"},
		{"unknown", streams, "id-2/1", 404, "request_not_found", "no request has this id and secret; or send the request again without Last-Event-ID, and it begins anew"},
	} {
		f := &fake{words: []string{"a"}}
		ask(t, f, http.MethodPost, chats, streams)
		w := askAgain(t, f, chats, c.body, c.id)
		e := errorOf(t, w.Body.String())
		if w.Code != c.status || e.Code != c.code || e.Param != "Last-Event-ID" || !strings.Contains(e.Message, c.message) || strings.Contains(e.Message, "\n") {
			t.Errorf("%s: %d %+v", c.name, w.Code, e)
		}
		if len(f.asked) != 1 {
			t.Errorf("%s: it was generated anew", c.name)
		}
	}
	// What the stream ends with comes again with the rest.
	f := &fake{words: []string{"a"}, fail: rpc.Error(codes.DataLoss, "KV_LOST", "a block is lost", 0)}
	ask(t, f, http.MethodPost, chats, streams)
	if w := askAgain(t, f, chats, streams, "id-1/1"); w.Code != http.StatusOK || w.Body.String() != `data: {"error":{"message":"a block is lost","type":"server_error","param":null,"code":"kv_lost"}}`+"\n\n" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// Clients may choose the secret of their requests, to know it before the first answer.
func TestChosenSecret(t *testing.T) {
	for _, c := range []struct {
		secret string
		status int
	}{{secret, 200}, {"", 200}, {"short", 400}, {strings.Repeat("x", 129), 400}, {secret + " x", 400}} {
		f := &fake{words: []string{"a"}}
		q := httptest.NewRequest(http.MethodPost, chats, strings.NewReader(`{`+hi+`}`))
		q.Header.Set("X-Tandem-Secret", c.secret)
		w := httptest.NewRecorder()
		handler(t, f).ServeHTTP(w, q)
		if w.Code != c.status || w.Code == 400 && errorOf(t, w.Body.String()).Param != "X-Tandem-Secret" {
			t.Errorf("%q: %d %s", c.secret, w.Code, w.Body)
		}
		if w.Code == 200 && (len(f.secrets) != 1 || c.secret != "" && f.secrets[0] != c.secret || len(f.secrets[0]) < 32) {
			t.Errorf("%q: %q", c.secret, f.secrets)
		}
	}
}

// An event's id is read as it was written, and no other text is one.
func FuzzLastEventID(f *testing.F) {
	for _, id := range []string{"", "/", "a/0", "a/1+1", "a/b/4294967295+4", "a/01", "a/+1", "a/1+", "a/1+0", "a/1+1+1", "a /1", "a/-1", "a/1\n", "é/1", "a/99999999999"} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		request, tokens, end, ok := openai.ParseEventID(id)
		if !ok {
			return
		}
		if !rpc.ValidRequestID(request) || end > 4 {
			t.Errorf("%q: %q %d+%d", id, request, tokens, end)
		}
		again := fmt.Sprintf("%s/%d", request, tokens)
		if end > 0 {
			again += fmt.Sprintf("+%d", end)
		}
		if again != id || openai.EventID(request, tokens, end) != id {
			t.Errorf("%q is read as %q", id, again)
		}
	})
}

// Every id that is written can be read.
func FuzzEventID(f *testing.F) {
	f.Add("order/17", uint32(3), uint8(2))
	f.Fuzz(func(t *testing.T, request string, tokens uint32, end uint8) {
		if !rpc.ValidRequestID(request) || end > 4 {
			return
		}
		r, n, e, ok := openai.ParseEventID(openai.EventID(request, uint64(tokens), int(end)))
		if !ok || r != request || n != uint64(tokens) || e != int(end) {
			t.Errorf("%q/%d+%d is read as %q/%d+%d, %v", request, tokens, end, r, n, e, ok)
		}
	})
}

// A resumed stream that does not fit into the memory for answers says so, as it does from its beginning.
func TestResumedStreamThatIsTooLarge(t *testing.T) {
	score := &inferencev1.TokenLogprobs{Text: []byte("x"), Top: []*inferencev1.TokenLogprob{{}, {}}}
	f := &fake{}
	body := `{"prompt":"x","echo":true,"logprobs":2,"stream":true}`
	if w := askAgain(t, f, completions, body, ""); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	f.scores = slices.Repeat([]*inferencev1.TokenLogprobs{score}, 200)
	h, err := build(f, openai.Config{MaxHeldBytes: 32 << 10})
	if err != nil {
		t.Fatal(err)
	}
	q := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(body))
	q.Header.Set("Last-Event-ID", "id-1/0")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	if !strings.Contains(w.Body.String(), `"param":"echo"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// overLimit is the limit of a tenant that has used it up, and may still resume.
type overLimit struct{}

func (overLimit) SetHeaders(context.Context, http.Header) {}
func (overLimit) CheckResume(context.Context) error       { return nil }
func (overLimit) Count(context.Context)                   {}
func (overLimit) Check(context.Context, quota.Need, string) error {
	return rpc.Error(codes.ResourceExhausted, "TENANT_QUOTA", "used up", time.Second)
}

// What cannot be resumed is refused over the limit, whatever its headers say.
func TestOverTheLimitOnlyStreamsAreResumed(t *testing.T) {
	f := &fake{words: []string{"a"}}
	ask(t, f, http.MethodPost, chats, `{`+hi+`,"stream":true}`)
	h, err := build(f, openai.Config{
		Limits: overLimit{}, Authenticate: func(ctx context.Context, _ string) (context.Context, error) { return ctx, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	for path, c := range map[string]struct {
		body string
		want int
	}{
		chats:                       {`{` + hi + `,"stream":true}`, http.StatusOK},
		completions:                 {`{"prompt":"x","stream":true}`, http.StatusOK},
		responses:                   {`{"input":"hi","stream":true}`, http.StatusTooManyRequests},
		responses + "/input_tokens": {`{"input":"hi"}`, http.StatusTooManyRequests},
		"/v1/embeddings":            {`{"input":"hi"}`, http.StatusTooManyRequests},
	} {
		q := httptest.NewRequest(http.MethodPost, path, strings.NewReader(c.body))
		q.Header.Set("Last-Event-ID", "id-1/0")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		if w.Code != c.want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
