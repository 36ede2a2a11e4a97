package openai_test

import (
	"fmt"
	"net/http"
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
