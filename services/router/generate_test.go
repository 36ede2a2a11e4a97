package router_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

func TestModes(t *testing.T) {
	for _, test := range []struct {
		name          string
		mode          inferencev1.Mode
		prompt        int
		want          inferencev1.Mode
		reason        string
		prefill, deco string
	}{
		{"disaggregated", dis, 4, dis, "the request asks for disaggregated mode", "p1", "d1"},
		{"aggregated", agg, 100, agg, "the request asks for aggregated mode", "d1", "d1"},
		{"auto short", auto, 10, agg, "one worker does all: the first token predicted ", "d1", "d1"},
		{"auto long", auto, 100, dis, "prefill on p1: the first token predicted ", "p1", "d1"},
		{"unspecified", 0, 100, dis, "prefill on p1", "p1", "d1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
				r := m.generate(t.Context(), ask(test.mode, test.prompt))
				if r.err != nil {
					t.Fatal(r.err)
				}
				route := r.finished.GetRoute()
				if route.GetMode() != test.want || route.GetPrefill() != test.prefill || route.GetDecode() != test.deco {
					t.Errorf("route %v", route)
				}
				if !strings.Contains(route.GetReason(), test.reason) {
					t.Errorf("reason %q, want %q", route.GetReason(), test.reason)
				}
				if r.text != story || r.finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_STOP {
					t.Errorf("text %q, reason %v", r.text, r.finished.GetReason())
				}
				if r.accepted.GetPromptTokens() != uint32(test.prompt) || r.accepted.GetSeed() != 7 || len(r.header) != 1 || r.header[0] != r.accepted.GetRequestId() {
					t.Errorf("accepted %v, header %v", r.accepted, r.header)
				}
				if r.tokens[len(r.tokens)-1] != eos {
					t.Error("the end-of-sequence token is not among the tokens")
				}
				m.quiet()
			})
		})
	}
}

func TestShortAnswers(t *testing.T) {
	for _, mode := range []inferencev1.Mode{dis, agg} {
		t.Run(mode.String(), func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
				one := ask(mode, 4)
				one.MaxTokens = proto.Uint32(1)
				r := m.generate(t.Context(), one)
				if r.err != nil || len(r.tokens) != 1 || r.finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_LENGTH {
					t.Errorf("max_tokens 1: %+v", r)
				}
				m.quiet()

				for name, most := range map[string]*uint32{"all that fits": proto.Uint32(3), "as many as fit": nil} {
					full := ask(mode, window-3)
					full.MaxTokens = most
					if r := m.generate(t.Context(), full); r.err != nil || len(r.tokens) != 3 || r.finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_LENGTH {
						t.Errorf("%s: %+v", name, r)
					}
					m.quiet()
				}

				m.net.Next = func([]uint32, uint64, int) uint32 { return eos }
				if r := m.generate(t.Context(), ask(mode, 4)); r.err != nil || len(r.tokens) != 1 || r.text != "" || r.finished.GetReason() != inferencev1.FinishReason_FINISH_REASON_STOP {
					t.Errorf("first token ends the text: %+v", r)
				}
				m.quiet()
			})
		})
	}
}

func TestStopText(t *testing.T) {
	for _, test := range []struct{ name, stop string }{
		{"across tokens", "tle dog"},
		{"first word", "Once"},
		{"one letter", "k"},
		{"never", "nowhere"},
	} {
		for _, mode := range []inferencev1.Mode{dis, agg} {
			t.Run(test.name+" "+mode.String(), func(t *testing.T) {
				inMesh(t, nil, func(t *testing.T, m *mesh) {
					m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
					q := ask(mode, 4)
					q.Stop = []string{test.stop, "also nowhere"}
					r := m.generate(t.Context(), q)
					if r.err != nil {
						t.Fatal(r.err)
					}
					want, _, found := strings.Cut(story, test.stop)
					if r.text != want {
						t.Errorf("text %q, want %q", r.text, want)
					}
					if found != (r.finished.GetStop() == test.stop) {
						t.Errorf("stop %q", r.finished.GetStop())
					}
					m.quiet()
				})
			})
		}
	}
}

// failAt makes the worker of this id fail once at a stage.
func failAt(id string, stage workertest.Stage, generated int, how func(ctx context.Context, w *workertest.Worker) error) workertest.Hook {
	var done atomic.Bool
	return func(ctx context.Context, w *workertest.Worker, _ *workerv1.Task, s workertest.Stage, n int) error {
		if w.Record.GetId() != id || s != stage || n < generated || done.Swap(true) {
			return nil
		}
		return how(ctx, w)
	}
}

func refuses(code codes.Code, reason string) func(context.Context, *workertest.Worker) error {
	return func(context.Context, *workertest.Worker) error { return rpc.Error(code, reason, "as told", 0) }
}

func dies(ctx context.Context, w *workertest.Worker) error {
	go w.Kill()
	<-ctx.Done()
	return ctx.Err()
}

// Whatever happens to workers, the client gets the same text.
func TestSurvives(t *testing.T) {
	for _, test := range []struct {
		name string
		mode inferencev1.Mode
		hook workertest.Hook
	}{
		{"decode is full", dis, failAt("d1", workertest.Reserve, 0, refuses(codes.ResourceExhausted, "QUEUE_FULL"))},
		{"decode drains", agg, failAt("d1", workertest.Reserve, 0, refuses(codes.Unavailable, "WORKER_DRAINING"))},
		{"prefill is full", dis, failAt("p1", workertest.Start, 0, refuses(codes.ResourceExhausted, "QUEUE_FULL"))},
		{"transfer fails", dis, failAt("p1", workertest.Sent, 0, refuses(codes.Unavailable, "TRANSFER_FAILED"))},
		{"decode dies before reserving", dis, failAt("d1", workertest.Reserve, 0, dies)},
		{"decode dies while KV comes", dis, failAt("d1", workertest.Admit, 0, dies)},
		{"decode dies half-way", dis, failAt("d1", workertest.Token, 9, dies)},
		{"decode dies half-way, aggregated", agg, failAt("d1", workertest.Token, 9, dies)},
		{"decode dies before its last word", agg, failAt("d1", workertest.End, 0, dies)},
		{"prefill dies before the first token", dis, failAt("p1", workertest.First, 0, dies)},
		{"prefill dies after the first token", dis, failAt("p1", workertest.Sent, 0, dies)},
		{"decode breaks the protocol", agg, failAt("d1", workertest.Token, 5, refuses(codes.Internal, "BUG"))},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(test.hook, prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
				r := m.generate(t.Context(), ask(test.mode, 100))
				if r.err != nil || r.text != story {
					t.Fatalf("text %q, error %v", r.text, r.err)
				}
				if test.name != "decode dies before its last word" && r.finished.GetRoute().GetRetries() != 1 {
					t.Errorf("route %v", r.finished.GetRoute())
				}
				if !r.finished.GetRoute().GetReproducible() {
					t.Error("not reproducible")
				}
				m.quiet()
			})
		})
	}
}

// A retry that has no token yet is to have its first in time, if it still can.
func TestRetryKeepsItsObjective(t *testing.T) {
	full := refuses(codes.ResourceExhausted, "QUEUE_FULL")
	for _, c := range []struct {
		name string
		hook workertest.Hook
		due  bool
	}{
		{"refused", failAt("d1", workertest.Reserve, 0, full), true},
		{"refused late", failAt("d1", workertest.Reserve, 0, func(ctx context.Context, w *workertest.Worker) error {
			time.Sleep(11 * time.Second)
			return full(ctx, w)
		}), false},
		{"half-way", failAt("d1", workertest.Token, 9, dies), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				d2 := m.start(c.hook, decodeRecord("d1"), decodeRecord("d2"))[1]
				q := ask(agg, 100)
				q.Slo = &inferencev1.Slo{Ttft: durationpb.New(10 * time.Second)}
				if r := m.generate(t.Context(), q); r.err != nil || r.text != story {
					t.Fatalf("text %q, error %v", r.text, r.err)
				}
				if tasks := d2.Tasks(); len(tasks) != 1 || (tasks[0].GetFirstTokenNs() > 0) != c.due {
					t.Errorf("the next attempt is %v", tasks)
				}
			})
		})
	}
}

// With no other worker a death is a typed error, soon.
func TestLastWorkerDies(t *testing.T) {
	for _, generated := range []int{0, 9} {
		inMesh(t, nil, func(t *testing.T, m *mesh) {
			var died time.Time
			m.start(failAt("d1", workertest.Token, generated, func(ctx context.Context, w *workertest.Worker) error {
				died = time.Now()
				return dies(ctx, w)
			}), decodeRecord("d1"))
			r := m.generate(t.Context(), ask(agg, 10))
			if status.Code(r.err) != codes.Unavailable || rpc.Reason(r.err) != "WORKER_LOST" {
				t.Errorf("error %v, reason %q", r.err, rpc.Reason(r.err))
			}
			if after, ok := rpc.RetryAfter(r.err); !ok || after <= 0 {
				t.Error("no RetryInfo")
			}
			if waited := time.Since(died); waited > 2*time.Second {
				t.Errorf("told after %s", waited)
			}
			if len(r.tokens) != generated {
				t.Errorf("%d tokens", len(r.tokens))
			}
		})
	}
}

func TestNoWorkers(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.members.set(true)
		r := m.generate(t.Context(), ask(auto, 10))
		if status.Code(r.err) != codes.Unavailable || rpc.Reason(r.err) != "NO_WORKERS" {
			t.Errorf("error %v", r.err)
		}
		if len(r.header) != 0 {
			t.Error("a refused request has headers")
		}
		// A forced mode does not fall back.
		m.start(nil, decodeRecord("d1"))
		if r := m.generate(t.Context(), ask(dis, 10)); status.Code(r.err) != codes.Unavailable {
			t.Errorf("disaggregated without prefill workers: %v", r.err)
		}
		r = m.generate(t.Context(), ask(auto, 100))
		if r.err != nil || !strings.Contains(r.finished.GetRoute().GetReason(), "no prefill worker") {
			t.Errorf("auto without prefill workers: %v %v", r.err, r.finished)
		}
		// One whose KV has another shape is as good as none.
		odd := prefillRecord("p1")
		odd.LayoutDigest++
		m.start(nil, odd)
		if r := m.generate(t.Context(), ask(dis, 10)); status.Code(r.err) != codes.Unavailable || !strings.Contains(r.err.Error(), "layout") {
			t.Errorf("another layout: %v", r.err)
		}
	})
}

func TestClientGone(t *testing.T) {
	for _, mode := range []inferencev1.Mode{dis, agg} {
		inMesh(t, nil, func(t *testing.T, m *mesh) {
			m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
			m.net.StepTime = 100 * time.Millisecond
			ctx, cancel := context.WithCancel(t.Context())
			stream, err := m.inference.Generate(ctx, ask(mode, 10))
			if err != nil {
				t.Fatal(err)
			}
			for range 4 {
				if _, err := stream.Recv(); err != nil {
					t.Fatal(err)
				}
			}
			cancel()
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			for _, w := range m.workers {
				if w.Open() != 0 {
					t.Errorf("%s still works", w.Record.GetId())
				}
			}
			m.quiet()
		})
	}
}

func TestDeadline(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		m.net.StepTime = 100 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 550*time.Millisecond)
		defer cancel()
		r := m.generate(ctx, ask(dis, 10))
		if status.Code(r.err) != codes.DeadlineExceeded || len(r.tokens) == 0 {
			t.Errorf("%d tokens, %v", len(r.tokens), r.err)
		}
		m.quiet()
	})
}
