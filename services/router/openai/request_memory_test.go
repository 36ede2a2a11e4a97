package openai_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/tandem-serving/tandem/services/router/openai"
)

// Lists that are too long are refused before each of many answers gets one.
func TestLongListsAreRefusedBeforeTheyAreCopied(t *testing.T) {
	const count = 50_000
	members := make([]string, count)
	for i := range members {
		members[i] = fmt.Sprintf(`"%d":1`, i)
	}
	list := func(element string, n int) string { return "[" + strings.Repeat(element+",", n-1) + element + "]" }
	for _, c := range []struct{ field, value, param string }{
		{"stop_token_ids", list("0", count), "stop_token_ids"},
		{"stop", list(`"a"`, count), "stop"},
		{"logit_bias", "{" + strings.Join(members, ",") + "}", "logit_bias"},
		{"guided_choice", list(`"a"`, count), "guided_choice"},
		{"structured_outputs", `{"choice":` + list(`"a"`, count) + `}`, "structured_outputs.choice"},
	} {
		for _, prompts := range []string{`"prompt":"x","n":128`, `"prompt":` + list(`"x"`, 128)} {
			body := fmt.Sprintf(`{%s,%q:%s}`, prompts, c.field, c.value)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			w := ask(t, &fake{words: []string{"a"}}, http.MethodPost, completions, body)
			runtime.ReadMemStats(&after)
			e := errorOf(t, w.Body.String())
			if w.Code != http.StatusBadRequest || e.Param != c.param || !strings.Contains(e.Message, "more than ") {
				t.Errorf("%s: %d %+v", c.field, w.Code, e)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 32<<20 {
				t.Errorf("%s: %d bytes were allocated for a body of %d", c.field, took, len(body))
			}
		}
	}
}

// All answers share what may be large.
func TestAnswersShareLists(t *testing.T) {
	const lists = `"stop":["a","b"],"stop_token_ids":[1,2],"guided_choice":["a","b"],"seed":5`
	for _, body := range []string{`{"prompt":"x","n":128,` + lists + `}`, `{"prompt":["x","y"],"n":2,` + lists + `}`} {
		requests, err := openai.CompletionRequests(body)
		if err != nil {
			t.Fatal(err)
		}
		first := requests[0]
		for i, q := range requests {
			if unsafe.SliceData(q.GetStop()) != unsafe.SliceData(first.GetStop()) || unsafe.SliceData(q.GetStopTokenIds()) != unsafe.SliceData(first.GetStopTokenIds()) ||
				q.GetStructuredOutput() != first.GetStructuredOutput() {
				t.Fatalf("%s: answer %d has lists of its own", body, i)
			}
		}
	}
}

// Prompts in tokens become texts to echo until the next would not fit.
func TestEchoesAreMadeWhileTheyFit(t *testing.T) {
	prompts := "[" + strings.Repeat("[1],", 127) + "[1]]"
	for _, more := range []string{"", `,"stream":true`} {
		f := &fake{words: []string{"a"}, most: 128, text: strings.Repeat("x", 1<<20)}
		w := ask(t, f, http.MethodPost, completions, `{"prompt":`+prompts+`,"echo":true`+more+`}`)
		if e := errorOf(t, w.Body.String()); w.Code != http.StatusBadRequest || e.Param != "echo" {
			t.Errorf("%q: %d %+v", more, w.Code, e)
		}
		if f.texts > 127/3 {
			t.Errorf("%q: %d texts of a MiB were made", more, f.texts)
		}
	}
}

// A stream that goes on does not echo again: its client has the prompt.
func TestResumedStreamsHoldNoEcho(t *testing.T) {
	f := &fake{words: []string{"a", "b"}}
	h := handler(t, f)
	for _, id := range []string{"", "id-1/0", "id-1/1"} {
		held := int64(-1)
		f.wait = func() {
			if id != "" {
				held = max(held, h.Held())
			}
		}
		q := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(`{"prompt":"`+strings.Repeat("y", 10_000)+`","echo":true,"stream":true,"resumable_for":"60s"}`))
		q.Header.Set("X-Request-Id", "id-1")
		q.Header.Set("Last-Event-ID", id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"b"`) || id != "" && held != 0 {
			t.Errorf("after %q: %d, %d bytes are held", id, w.Code, held)
		}
	}
}

// What is echoed is held until it is sent, and no longer.
func TestEchoesAreHeldUntilTheyAreSent(t *testing.T) {
	const text = 10_000
	for _, c := range []struct {
		body string
		want string // held before Accepted, then before each further event
	}{
		{`{"prompt":[1],"echo":true,"stream":true}`, "all none"},
		{`{"prompt":[1],"echo":true,"stream":true,"logprobs":0}`, "all all all"},
		{`{"prompt":[1],"echo":true,"stream":true,"logprobs":0,"max_tokens":0}`, "all all all"},
		{`{"prompt":[1],"echo":true}`, "all all"},
		{`{"prompt":"` + strings.Repeat("y", text) + `","echo":true,"stream":true}`, "all none"},
		{`{"prompt":"` + strings.Repeat("y", text) + `","echo":true}`, "all all"},
	} {
		f := &fake{words: []string{"a"}, text: strings.Repeat("x", text)}
		h := handler(t, f)
		var held []string
		f.wait = func() {
			switch bytes := h.Held(); {
			case bytes >= 3*text:
				held = append(held, "all")
			case bytes == 0:
				held = append(held, "none")
			default:
				held = append(held, fmt.Sprint(bytes))
			}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, completions, strings.NewReader(c.body)))
		if got := strings.Join(held, " "); w.Code != http.StatusOK || got != c.want {
			t.Errorf("%.80s: %d, held before events: %s; want %s", c.body, w.Code, got, c.want)
		}
		if h.Held() != 0 {
			t.Errorf("%.80s: %d bytes are held after the end", c.body, h.Held())
		}
	}
}
