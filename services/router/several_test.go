package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// completion is a request with a prompt of so many tokens.
func completion(tokens int, rest string) string {
	return `{"prompt":[` + strings.TrimSuffix(strings.Repeat("5,", tokens), ",") + `],"max_tokens":12,"temperature":1,"ignore_eos":true` + rest + `}`
}

// texts are the answers to a completion, by their index.
func (m *mesh) texts(body string) (out []string) {
	m.t.Helper()
	w := m.post(m.t.Context(), "/v1/completions", body)
	var got struct{ Choices []struct{ Text string } }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusOK {
		m.t.Fatalf("%d %s", w.Code, w.Body)
	}
	for _, c := range got.Choices {
		out = append(out, c.Text)
	}
	return out
}

// seeded draws tokens that depend on the seed.
func seeded(_ []uint32, seed uint64, offset int) uint32 {
	return uint32(300 + (seed*31+uint64(offset)*7)%500)
}

// disaggregating has every request go to two workers.
func disaggregating(c *router.Config) { c.Routing.Policy = "disaggregated" }

// The answers to one prompt are those of requests with the next seeds. The first is computed
// alone; the others begin when a worker has its KV, and go to that worker.
func TestSeveralAnswersFollowTheFirst(t *testing.T) {
	const n, prompt = 5, 100
	for name, change := range map[string]func(*router.Config){"as is cheapest": nil, "disaggregated": disaggregating} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, change, func(t *testing.T, m *mesh) {
				m.net.Next, m.net.StepTime = seeded, 10*time.Millisecond
				var workers []*workertest.Worker
				for _, id := range []string{"p1", "p2"} {
					workers = append(workers, m.start(nil, prefillRecord(id))...)
				}
				for _, id := range []string{"d1", "d2", "d3"} {
					workers = append(workers, m.start(nil, decodeRecord(id))...)
				}
				var want []string
				for i := range n {
					want = append(want, m.texts(completion(prompt, fmt.Sprintf(`,"seed":%d,"cache_salt":"apart"`, 40+i)))...)
				}
				before := make(map[*workertest.Worker]int)
				for _, w := range workers {
					before[w] = len(w.Tasks())
				}
				if got := m.texts(completion(prompt, fmt.Sprintf(`,"seed":40,"n":%d`, n))); !slices.Equal(got, want) {
					t.Errorf("%q, one by one %q", got, want)
				}
				on := make(map[string]int)
				for _, w := range workers {
					if more := len(w.Tasks()) - before[w]; more > 0 && w.Record.GetId()[0] == 'd' {
						on[w.Record.GetId()] = more
					}
				}
				if len(on) != 1 {
					t.Errorf("the answers were on several decode workers: %v", on)
				}
				m.quiet()
			})
		})
	}
}

// Where the first answer's worker dies, before the prompt is computed or after, all answers are
// the same still.
func TestSeveralAnswersSurviveADeath(t *testing.T) {
	const n, prompt = 4, 100
	for _, stage := range []workertest.Stage{workertest.Reserve, workertest.Admit, workertest.Token} {
		t.Run(string(stage), func(t *testing.T) {
			inMesh(t, disaggregating, func(t *testing.T, m *mesh) {
				m.net.Next, m.net.StepTime = seeded, 10*time.Millisecond
				var died atomic.Bool
				hook := func(ctx context.Context, w *workertest.Worker, task *workerv1.Task, at workertest.Stage, generated int) error {
					if at == stage && (stage != workertest.Token || generated == 5) && task.GetEnvelope().GetCacheSalt() == "dies" && died.CompareAndSwap(false, true) {
						go w.Kill()
						<-ctx.Done() // it says nothing any more
						return ctx.Err()
					}
					return nil
				}
				m.start(nil, prefillRecord("p1"))
				m.start(hook, decodeRecord("d1"), decodeRecord("d2"))
				var want []string
				for i := range n {
					want = append(want, m.texts(completion(prompt, fmt.Sprintf(`,"seed":%d`, 7+i)))...)
				}
				if got := m.texts(completion(prompt, fmt.Sprintf(`,"seed":7,"cache_salt":"dies","n":%d`, n))); !slices.Equal(got, want) || !died.Load() {
					t.Errorf("%q, one by one %q; a worker died: %v", got, want, died.Load())
				}
			})
		})
	}
}

// The best of several answers are those with the highest mean log probability, the best first, and
// all are paid for.
func TestBestOf(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.Next = func(_ []uint32, seed uint64, offset int) uint32 {
			if seed%3 == 0 && offset == 3 { // short: the later a token, the less likely it is
				return eos
			}
			return seeded(nil, seed, offset)
		}
		m.start(nil, decodeRecord("d1"))
		q := func(rest string) string { return strings.Replace(completion(100, rest), `,"ignore_eos":true`, "", 1) }
		short := append(m.texts(q(`,"seed":6`)), m.texts(q(`,"seed":9`))...)
		long := m.texts(q(`,"seed":5`))
		for body, want := range map[string][]string{
			q(`,"seed":5,"n":2,"best_of":6`): short, q(`,"seed":5,"n":1,"best_of":2`): short[:1], q(`,"seed":5,"n":3,"best_of":5`): append(slices.Clone(short), long...),
		} {
			if got := m.texts(body); !slices.Equal(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
		w := m.post(t.Context(), "/v1/completions", q(`,"seed":5,"n":1,"best_of":2`))
		if !strings.Contains(w.Body.String(), `"prompt_tokens":100,"completion_tokens":16`) || !strings.Contains(w.Body.String(), `"logprobs":null`) {
			t.Errorf("%s", w.Body)
		}
		m.quiet()
	})
}

// Answers that a client reads as they come do not pile up, though only some of them run at a time.
func TestSeveralAnswersAreReadAsTheyCome(t *testing.T) {
	for _, prompt := range []int{1, 100} { // without a block to share, and with some
		inMesh(t, func(c *router.Config) { c.Serving.UnreadRequest, c.Serving.UnreadMemory = 64<<10, 64<<10 }, func(t *testing.T, m *mesh) {
			m.net.Next, m.net.StepTime = seeded, 10*time.Millisecond
			few := decodeRecord("d1")
			few.Capacity.MaxSequences, few.Capacity.MaxWaiting = 2, 1
			m.start(nil, few)
			body := strings.Replace(completion(prompt, `,"seed":1,"n":6,"stream":true,"logprobs":20`), `"max_tokens":12`, `"max_tokens":100`, 1)
			w := m.post(t.Context(), "/v1/completions", body)
			if n := strings.Count(w.Body.String(), `"finish_reason":"length"`); w.Code != http.StatusOK || n != 6 || !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
				t.Errorf("%d, %d answers end: %.300s", w.Code, n, w.Body.String()[max(0, w.Body.Len()-300):])
			}
			if n := m.sum("tandem_router_unread_ended_total"); n != 0 {
				t.Errorf("%v answers were cut off", n)
			}
			m.quiet()
		})
	}
}

// Neither do those to several prompts, of which one is computed only when an answer to another has ended:
// its first answer waits at the router or at the worker.
func TestSeveralPromptsAreReadAsTheyCome(t *testing.T) {
	for _, waiting := range []uint32{0, 8} { // at the worker
		inMesh(t, func(c *router.Config) { c.Serving.UnreadRequest, c.Serving.UnreadMemory = 64<<10, 64<<10 }, func(t *testing.T, m *mesh) {
			m.net.Next, m.net.StepTime = seeded, 10*time.Millisecond
			one := decodeRecord("d1")
			one.Capacity.MaxSequences, one.Capacity.MaxWaiting = 1, waiting
			place := make(chan struct{}, 1)
			m.start(func(ctx context.Context, _ *workertest.Worker, _ *workerv1.Task, at workertest.Stage, generated int) error {
				switch {
				case at == workertest.Reserve:
					select {
					case place <- struct{}{}:
					case <-ctx.Done():
						return ctx.Err()
					}
				case at == workertest.Token && generated == 99:
					<-place
				}
				return nil
			}, one)
			prompt := strings.Repeat("5,", 99)
			w := m.post(t.Context(), "/v1/completions", `{"prompt":[[`+prompt+`5],[`+prompt+`6]],"n":2,"max_tokens":100,"temperature":1,"ignore_eos":true,"seed":1,"stream":true,"logprobs":20}`)
			if n := strings.Count(w.Body.String(), `"finish_reason":"length"`); w.Code != http.StatusOK || n != 4 || !strings.HasSuffix(w.Body.String(), "data: [DONE]\n\n") {
				t.Errorf("%d waiting: %d, %d answers end: %.300s", waiting, w.Code, n, w.Body.String()[max(0, w.Body.Len()-300):])
			}
			if n := m.sum("tandem_router_unread_ended_total"); n != 0 {
				t.Errorf("%d waiting: %v answers were cut off", waiting, n)
			}
			m.quiet()
		})
	}
}

// Where one of the answers is refused at once, so is the request, with a status, though others run.
func TestSeveralAnswersAreRefusedTogether(t *testing.T) {
	for _, prompt := range []int{1, 100} {
		inMesh(t, func(c *router.Config) { c.Routing.TenantMaxRequests = 4 }, func(t *testing.T, m *mesh) {
			m.net.Next, m.net.StepTime = seeded, time.Second
			m.start(nil, decodeRecord("d1"))
			var other sync.WaitGroup
			other.Go(func() { m.post(t.Context(), "/v1/completions", completion(1, "")) })
			synctest.Wait()
			w := m.post(t.Context(), "/v1/completions", completion(prompt, `,"n":4,"stream":true`))
			if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "tenant_limit") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			other.Wait()
			m.quiet()
		})
	}
}

// 128 answers are served, though workers have places for few.
func TestManyAnswers(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.Next = seeded
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		if got := m.texts(completion(100, `,"seed":1,"n":128`)); len(got) != 128 || got[127] == got[0] {
			t.Errorf("%d answers", len(got))
		}
		m.quiet()
	})
}
