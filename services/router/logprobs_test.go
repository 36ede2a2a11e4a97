package router_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

// checkLogprobs: each token has what its worker said, with the bytes of the tokens.
func checkLogprobs(t *testing.T, r result, from int, wanted *uint32) {
	t.Helper()
	tok, err := fable()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.logprobs) != len(r.tokens) {
		t.Fatalf("log probabilities of %d tokens, there are %d", len(r.logprobs), len(r.tokens))
	}
	for i, token := range r.tokens {
		want := workertest.Logprobs(wanted, token, from+i)
		want.Text, want.Special = tok.TokenBytes(int32(token)), tok.IsSpecial(int32(token))
		for _, top := range want.GetTop() {
			top.Text = tok.TokenBytes(int32(top.GetTokenId()))
		}
		if !proto.Equal(r.logprobs[i], want) {
			t.Errorf("offset %d: %v, want %v", from+i, r.logprobs[i], want)
		}
	}
}

func TestLogprobs(t *testing.T) {
	for _, test := range []struct {
		name string
		mode inferencev1.Mode
		top  uint32
		hook workertest.Hook
	}{
		{"disaggregated", dis, 3, nil},
		{"aggregated", agg, 20, nil},
		{"the drawn token only", dis, 0, nil},
		{"decode dies half-way", dis, 2, failAt("d1", workertest.Token, 9, dies)},
		{"decode dies half-way, aggregated", agg, 2, failAt("d1", workertest.Token, 9, dies)},
		{"prefill dies after the first token", dis, 2, failAt("p1", workertest.Sent, 0, dies)},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(test.hook, prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
				q := ask(test.mode, 100)
				q.Logprobs = proto.Uint32(test.top)
				r := m.generate(t.Context(), q)
				if r.err != nil || r.text != story {
					t.Fatalf("text %q, error %v", r.text, r.err)
				}
				checkLogprobs(t, r, 0, q.Logprobs)
				q.Logprobs = nil
				if r := m.generate(t.Context(), q); r.err != nil || len(r.logprobs) != 0 {
					t.Errorf("nobody asked: %v, error %v", r.logprobs, r.err)
				}
				m.quiet()
			})
		})
	}
}

// Text that is held back does not hold the log probabilities of its tokens back.
func TestLogprobsBesideHeldText(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		q := ask(agg, 4)
		q.Logprobs = proto.Uint32(1)
		q.Stop = []string{"tle dog"}
		r := m.generate(t.Context(), q)
		if want, _, _ := strings.Cut(story, "tle dog"); r.err != nil || r.text != want {
			t.Errorf("text %q, error %v", r.text, r.err)
		}
		checkLogprobs(t, r, 0, q.Logprobs)
	})
}

// A special token takes no room in the text.
func TestOffsetsBehindASpecialToken(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.Next = func(_ []uint32, _ uint64, offset int) uint32 {
			if offset == 1 {
				return eos
			}
			return 300
		}
		m.start(nil, decodeRecord("d1"))
		c := m.choices("/v1/completions", `{"prompt":[5],"max_tokens":3,"ignore_eos":true,"logprobs":0}`).Choices[0]
		if one := len(c.Text) / 2; one == 0 || !slices.Equal(c.Logprobs.Offsets, []int{0, one, one}) {
			t.Errorf("%q has the tokens %q at %v", c.Text, c.Logprobs.Tokens, c.Logprobs.Offsets)
		}
	})
}

func TestLogprobsAreResumed(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		m.start(nil, decodeRecord("d1"))
		q := ask(agg, 4)
		q.Logprobs, q.ResumableFor = proto.Uint32(2), durationpb.New(10*time.Second)
		accepted := lost(t, m, q, 3)
		synctest.Wait()
		stream, err := m.inference.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: accepted.GetRequestId(), Secret: accepted.GetSecret(), Offset: 3})
		if err != nil {
			t.Fatal(err)
		}
		r := m.collect(stream, 3)
		if r.err != nil || len(r.tokens) == 0 {
			t.Fatalf("%+v", r)
		}
		checkLogprobs(t, r, 3, q.Logprobs)
	})
}

// Every try of a request samples alike, with what was generated before as such.
func TestTasksOfARestart(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		workers := m.start(failAt("d1", workertest.Token, 9, dies), prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
		q := ask(dis, 100)
		q.Logprobs = proto.Uint32(2)
		q.Sampling.PresencePenalty, q.Sampling.LogitBias = proto.Float32(1), map[uint32]float32{3: 1.5}
		if r := m.generate(t.Context(), q); r.err != nil {
			t.Fatal(r.err)
		}
		var first *workerv1.Task
		tasks := 0
		for _, w := range workers {
			for _, task := range w.Tasks() {
				tasks++
				if first == nil {
					first = task
				}
				if task.GetLogprobs() != 2 || !proto.Equal(task.GetSampling(), first.GetSampling()) || task.GetSampling().GetPresencePenalty() != 1 {
					t.Errorf("task %v", task)
				}
				if n := len(task.GetTokenIds()) - int(task.GetGenerated()); n != 100 {
					t.Errorf("%d tokens count as the prompt", n)
				}
			}
		}
		if tasks != 4 {
			t.Errorf("%d tasks", tasks)
		}
	})
}
