package openai_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/services/router/openai"
)

const embeddings = "/v1/embeddings"

func text(t string) *inferencev1.EmbedInput {
	return &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_Text{Text: t}}
}

func ids(n ...uint32) *inferencev1.EmbedInput {
	return &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: n}}}
}

func TestEmbeddings(t *testing.T) {
	d := description(t)
	const usage = `"model":"real","usage":{"prompt_tokens":%d,"total_tokens":%d}}`
	for _, c := range []struct {
		body, data string
		tokens     int
		want       *inferencev1.EmbedRequest
	}{
		{`{"input":"abc"}`, `{"object":"embedding","index":0,"embedding":[0,3,0.1,-0.5]}`, 3, &inferencev1.EmbedRequest{Inputs: []*inferencev1.EmbedInput{text("abc")}}},
		{
			`{"input":["a","bc"],"model":"real","dimensions":4,"encoding_format":"float","user":"u"}`,
			`{"object":"embedding","index":0,"embedding":[0,1,0.1,-0.5]},{"object":"embedding","index":1,"embedding":[1,2,0.1,-0.5]}`, 3,
			&inferencev1.EmbedRequest{Model: "real", Inputs: []*inferencev1.EmbedInput{text("a"), text("bc")}},
		},
		{`{"input":[7,8,9],"add_special_tokens":false}`, `{"object":"embedding","index":0,"embedding":[0,3,0.1,-0.5]}`, 3, &inferencev1.EmbedRequest{NoSpecialTokens: true, Inputs: []*inferencev1.EmbedInput{ids(7, 8, 9)}}},
		{
			// 1, 2, 0.1 and -0.5 as float32, little-endian, by Python: base64.b64encode(struct.pack("<4f", 1, 2, .1, -.5))
			`{"input":[[7],[8,9]],"encoding_format":"base64","priority":3,"service_tier":"flex"}`,
			`{"object":"embedding","index":0,"embedding":"AAAAAAAAgD/NzMw9AAAAvw=="},{"object":"embedding","index":1,"embedding":"AACAPwAAAEDNzMw9AAAAvw=="}`, 3,
			&inferencev1.EmbedRequest{Priority: -3, Slo: &inferencev1.Slo{Class: "batch"}, Inputs: []*inferencev1.EmbedInput{ids(7), ids(8, 9)}},
		},
	} {
		f := new(fake)
		w := ask(t, f, http.MethodPost, embeddings, c.body)
		want := `{"object":"list","data":[` + c.data + `],` + fmt.Sprintf(usage, c.tokens, c.tokens) + "\n"
		if w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%s: %d %s, want %s", c.body, w.Code, w.Body, want)
			continue
		}
		d.check(t, "/paths/~1v1~1embeddings/post/responses/200/content/application~1json/schema", w.Body.String())
		if !proto.Equal(f.embedded[0], c.want) {
			t.Errorf("%s: asked for %v, want %v", c.body, f.embedded[0], c.want)
		}
	}
}

func TestEmbeddingsRefused(t *testing.T) {
	many := `"a"` + strings.Repeat(`,"a"`, 2048)
	for _, c := range []struct {
		body, param string
		refuse      error
		status      int
	}{
		{`{}`, "input", nil, 400},
		{`{"input":[]}`, "input", nil, 400},
		{`{"input":7}`, "input", nil, 400},
		{`{"input":["a",7]}`, "input", nil, 400},
		{`{"input":[` + many + `]}`, "input", nil, 400},
		{`{"input":"a","encoding_format":"int8"}`, "encoding_format", nil, 400},
		{`{"input":"a","dimensions":3}`, "dimensions", nil, 400},
		{`{"input":"a","dimensions":0}`, "dimensions", nil, 400},
		{`{"input":"a","model":"other","dimensions":4}`, "model", nil, 404},
		{`{"input":["a","b"]}`, "input[1]", rpc.ContextLength("inputs[1].text", "This model's maximum context length is 5 tokens"), 400},
		{`{"input":"a"}`, "", rpc.Error(codes.ResourceExhausted, "X", "no", 0), 429},
	} {
		w := ask(t, &fake{refuse: c.refuse}, http.MethodPost, embeddings, c.body)
		if e := errorOf(t, w.Body.String()); w.Code != c.status || e.Param != c.param {
			t.Errorf("%.60s: %d %s", c.body, w.Code, w.Body)
		}
	}
	if w := ask(t, new(fake), http.MethodGet, embeddings, ""); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

// The description has the fields that the parser knows, and each is taken with the value that
// stands there as an example, or refused or ignored as it says.
func TestOpenAPIHasTheFieldsOfEmbeddings(t *testing.T) {
	s := description(t).Components.Schemas["EmbeddingRequest"]
	names := slices.Concat(slices.Collect(maps.Keys(s.Properties)), s.Refused, s.Ignored)
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(openai.KnownEmbeddingFields())); !slices.Equal(names, want) {
		t.Errorf("described %v\nthe parser knows %v", names, want)
	}
	send := func(name, value string) *httptest.ResponseRecorder {
		body := map[string]json.RawMessage{"input": json.RawMessage(`"a"`)}
		body[name] = json.RawMessage(value)
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		return ask(t, new(fake), http.MethodPost, embeddings, string(text))
	}
	for name, property := range s.Properties {
		if w := send(name, string(property.Examples[0])); w.Code != http.StatusOK && w.Code != http.StatusNotFound || w.Header().Get("X-Tandem-Ignored") != "" {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for _, name := range s.Refused {
		if w := send(name, `"x"`); w.Code != http.StatusBadRequest || errorOf(t, w.Body.String()).Param != name {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for _, name := range s.Ignored {
		if w := send(name, `"x"`); w.Code != http.StatusOK || w.Header().Get("X-Tandem-Ignored") != "" {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
	}
}

// Vectors take of the memory for answers, which bounds how many a request may ask for.
func TestEmbeddingsNeedMemory(t *testing.T) {
	f := &fake{}
	h, err := build(f, openai.Config{MaxHeldBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for texts, want := range map[int]int{16: http.StatusOK, 17: http.StatusBadRequest} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, embeddings, strings.NewReader(`{"input":["a"`+strings.Repeat(`,"a"`, texts-1)+`]}`)))
		if w.Code != want || want != http.StatusOK && errorOf(t, w.Body.String()).Param != "input" {
			t.Errorf("%d texts: %d %s", texts, w.Code, w.Body)
		}
	}
	if len(f.embedded) != 1 {
		t.Errorf("%d were asked for", len(f.embedded))
	}
}
