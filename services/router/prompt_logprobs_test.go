package router_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// choices are those of a completion.
type choices struct {
	Choices []struct {
		Text     string
		Logprobs *struct {
			Tokens   []string
			Logprobs []*float64           `json:"token_logprobs"`
			Top      []map[string]float64 `json:"top_logprobs"`
			Offsets  []int                `json:"text_offset"`
		}
		Finish string                      `json:"finish_reason"`
		Prompt []map[string]map[string]any `json:"prompt_logprobs"`
	}
	Prompt []map[string]map[string]any `json:"prompt_logprobs"`
	Usage  struct {
		Completion int `json:"completion_tokens"`
	}
}

func (m *mesh) choices(path, body string) (out choices) {
	m.t.Helper()
	w := m.post(m.t.Context(), path, body)
	if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != http.StatusOK {
		m.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return out
}

// An echo says how likely the prompt's tokens are, for texts and tokens, for each of several
// answers, and without an answer.
func TestEchoWithLogprobs(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		tok, err := fable()
		if err != nil {
			t.Fatal(err)
		}
		ids := tok.Encode("There was a king who had three daughters", true)
		list, _ := json.Marshal(ids)
		for name, c := range map[string]struct {
			body    string
			answers int
			tokens  int
		}{
			"a text":          {`{"prompt":"There was a king who had three daughters","echo":true,"logprobs":2,"max_tokens":3}`, 1, 3},
			"tokens":          {`{"prompt":[` + string(list) + `],"echo":true,"logprobs":2,"max_tokens":3}`, 1, 3},
			"several answers": {`{"prompt":` + string(list) + `,"echo":true,"logprobs":2,"max_tokens":3,"n":3,"seed":1}`, 3, 9},
			"no answer":       {`{"prompt":` + string(list) + `,"echo":true,"logprobs":2,"max_tokens":0}`, 1, 0},
			"several prompts": {`{"prompt":[` + string(list) + `,` + string(list) + `],"echo":true,"logprobs":2,"max_tokens":0}`, 2, 0},
		} {
			got := m.choices("/v1/completions", c.body)
			if len(got.Choices) != c.answers || got.Usage.Completion != c.tokens {
				t.Errorf("%s: %d answers with %d tokens", name, len(got.Choices), got.Usage.Completion)
			}
			for _, choice := range got.Choices {
				l := choice.Logprobs
				if want := len(ids) + c.tokens/c.answers; len(l.Tokens) != want || len(l.Logprobs) != want || len(l.Top) != want || len(l.Offsets) != want {
					t.Fatalf("%s: %d tokens, want %d", name, len(l.Tokens), want)
				}
				if !strings.HasPrefix(choice.Text, "There was a king who had three daughters") || choice.Finish != "length" {
					t.Errorf("%s: %q, %s", name, choice.Text, choice.Finish)
				}
				if l.Logprobs[0] != nil || l.Top[0] != nil || l.Offsets[0] != 0 || !slices.IsSorted(l.Offsets) {
					t.Errorf("%s: the first token has %v, %v, offsets %v", name, l.Logprobs[0], l.Top[0], l.Offsets)
				}
				for i := 1; i < len(ids); i++ { // as the workers of tests make them up
					if *l.Logprobs[i] != -float64(i)/8 || l.Tokens[i] != string(tok.TokenBytes(ids[i])) || l.Top[i][l.Tokens[i]] == 0 {
						t.Errorf("%s: token %d is %q with %v, %v", name, i, l.Tokens[i], *l.Logprobs[i], l.Top[i])
					}
				}
			}
		}
		// Tokens alone, said as text.
		if got := m.choices("/v1/completions", `{"prompt":`+string(list)+`,"echo":true,"max_tokens":1}`); !strings.HasPrefix(got.Choices[0].Text, "There was a king who had three daughters") || got.Choices[0].Logprobs != nil {
			t.Errorf("%+v", got.Choices[0])
		}
		w := m.post(t.Context(), "/v1/completions", `{"prompt":`+string(list)+`,"echo":true,"logprobs":0,"max_tokens":2,"stream":true}`)
		events := strings.Split(strings.TrimSpace(w.Body.String()), "\n\n")
		if len(events) != 5 || !strings.Contains(events[0], `"text":"There was a king`) || !strings.Contains(events[0], `"token_logprobs":[null,-0.125,`) || events[4] != "data: [DONE]" {
			t.Errorf("%s", w.Body)
		}
		m.quiet()
	})
}

// vLLM's prompt_logprobs, of completions and chats, of a prompt with one token, too.
func TestPromptLogprobsOverHTTP(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		got := m.choices("/v1/completions", `{"prompt":[7,8,9],"prompt_logprobs":1,"max_tokens":2,"n":2}`)
		for _, c := range got.Choices {
			if len(c.Prompt) != 3 || c.Prompt[0] != nil || c.Prompt[2]["9"]["logprob"] != -.25 || c.Prompt[2]["9"]["rank"] != 2. || c.Logprobs != nil {
				t.Errorf("%+v", c)
			}
		}
		if got := m.choices("/v1/completions", `{"prompt":[7],"prompt_logprobs":1,"max_tokens":2}`); len(got.Choices[0].Prompt) != 1 || got.Choices[0].Prompt[0] != nil {
			t.Errorf("%+v", got.Choices[0])
		}
		m.quiet()
	})
}

// Who asks for it of a worker that does not know it is not told less than was asked for.
func TestPromptLogprobsOfAnEarlierWorker(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))[0].Ignorant = true
		q := ask(inferencev1.Mode_MODE_AUTO, 4)
		q.PromptLogprobs = proto.Uint32(1)
		if r := m.generate(t.Context(), q); r.err == nil || !strings.Contains(r.err.Error(), "log probabilities of the prompt") {
			t.Errorf("%v", r.err)
		}
		q.Mode = inferencev1.Mode_MODE_DISAGGREGATED
		if r := m.generate(t.Context(), q); status.Code(r.err) != codes.InvalidArgument {
			t.Errorf("%v", r.err)
		}
		m.quiet()
	})
}
