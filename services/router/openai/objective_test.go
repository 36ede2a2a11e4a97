package openai_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// A request has the class of its tier, and the objective of its header.
func TestObjectives(t *testing.T) {
	for _, test := range []struct {
		tier, header string
		want         *inferencev1.Slo
		param        string // of the error; "": none
		says         string // the error; "": any
	}{
		{``, "", nil, "", ""},
		{`"auto"`, "", nil, "", ""},
		{`null`, "", nil, "", ""},
		{`"scale"`, "", nil, "", ""},
		{`"default"`, "", &inferencev1.Slo{Class: "standard"}, "", ""},
		{`"priority"`, "", &inferencev1.Slo{Class: "interactive"}, "", ""},
		{`"flex"`, "", &inferencev1.Slo{Class: "batch"}, "", ""},
		{`"flex"`, "ttft:500ms", &inferencev1.Slo{Class: "batch", Ttft: durationpb.New(500 * time.Millisecond)}, "", ""},
		{``, "ttft:1s,tpot:30ms", &inferencev1.Slo{Ttft: durationpb.New(time.Second), Tpot: durationpb.New(30 * time.Millisecond)}, "", ""},
		{`"ultrafast"`, "", nil, "service_tier", ""},
		{`7`, "", nil, "service_tier", ""},
		{``, "ttft", nil, "X-SLO", ""},
		{``, "e2e:1s", nil, "X-SLO", ""},
		{``, "foo", nil, "X-SLO", `X-SLO: "foo" is no objective: write ttft:500ms, tpot:30ms or both with a comma between`},
		{``, "ttft:1s,tpot:" + strings.Repeat("9", 5000), nil, "X-SLO", ""},
		{``, strings.Repeat("ttft:1s,", 1000), nil, "X-SLO", ""},
	} {
		body := `{"prompt": "x"`
		if test.tier != "" {
			body += `, "service_tier": ` + test.tier
		}
		backend := &fake{words: []string{"a"}}
		q := httptest.NewRequest(http.MethodPost, completions, strings.NewReader(body+"}"))
		q.Header.Set("X-SLO", test.header)
		w := httptest.NewRecorder()
		handler(t, backend).ServeHTTP(w, q)
		if test.param != "" {
			if got := errorOf(t, w.Body.String()); w.Code != http.StatusBadRequest || got.Param != test.param || len(got.Message) > 200 || test.says != "" && got.Message != test.says {
				t.Errorf("%s %q: %d %s", test.tier, test.header, w.Code, w.Body)
			}
			continue
		}
		if w.Code != http.StatusOK || len(backend.asked) != 1 || !proto.Equal(backend.asked[0].GetSlo(), test.want) {
			t.Errorf("%s %q: %d, asked %v, want %v", test.tier, test.header, w.Code, backend.asked, test.want)
		}
	}
}
