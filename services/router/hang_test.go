package router_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/signals"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

// loads is signals without NATS.
type loads struct {
	mu       sync.Mutex
	handlers signals.Handlers
}

func (l *loads) Subscribe(handlers signals.Handlers) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handlers = handlers
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.handlers = signals.Handlers{}
	}, nil
}

// tenants sends what tenants use at another router.
func (l *loads) tenants(report *controlv1.TenantReport) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handlers.Tenants(report)
}

func (l *loads) send(report *controlv1.LoadReport) {
	l.mu.Lock()
	load := l.handlers.Load
	l.mu.Unlock()
	if load != nil {
		load(report)
	}
}

// steps is what workers of a mesh count of their steps. They report it each second,
// as workers do whose engine hangs, too.
type steps struct {
	mu   sync.Mutex
	of   map[string]uint64
	hung map[string]bool // their counters stand still
}

func (s *steps) hang(id string, hung bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung[id] = hung
}

// reportSteps lets all workers of m report each second until the test ends.
func reportSteps(t *testing.T, m *mesh) *steps {
	s := &steps{of: make(map[string]uint64), hung: make(map[string]bool)}
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	number := uint64(0)
	wait.Go(func() {
		for ctx.Err() == nil {
			number++
			for _, w := range m.workers {
				id := w.Record.GetId()
				s.mu.Lock()
				if !s.hung[id] {
					s.of[id] += 10
				}
				report := &controlv1.LoadReport{
					Origin: &controlv1.Origin{Id: id, Epoch: w.Record.GetEpoch(), Sequence: number}, Role: w.Record.GetRole(), BlocksFree: 64, BlocksTotal: 64,
					StepTime: &controlv1.StepTimeModel{BaseMs: 1, PerTokenMs: .01, Samples: s.of[id]},
				}
				s.mu.Unlock()
				m.loads.send(report)
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { cancel(); wait.Wait() })
	synctest.Wait()
	return s
}

// A worker that hangs while its connection and its reports go on costs a request a
// few seconds, not those that its flags allow, and the next ones nothing, until it
// shows that it goes on.
func TestHungWorkerCostsSeconds(t *testing.T) {
	for _, test := range []struct {
		name  string
		mode  inferencev1.Mode
		id    string
		stage workertest.Stage
		after int
		limit time.Duration
	}{
		{"before reserving", dis, "d1", workertest.Reserve, 0, 5 * time.Second},
		{"before starting", dis, "p1", workertest.Start, 0, 5 * time.Second},
		{"in the prompt", dis, "p1", workertest.First, 0, 5 * time.Second},
		{"before admission", dis, "d1", workertest.Admit, 0, 5 * time.Second},
		{"between tokens", dis, "d1", workertest.Token, 9, 2 * time.Second},
		{"before admission, aggregated", agg, "d1", workertest.Admit, 0, 5 * time.Second},
		{"in the prompt, aggregated", agg, "d1", workertest.Token, 0, 5 * time.Second},
		{"between tokens, aggregated", agg, "d1", workertest.Token, 9, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				var s *steps
				var armed atomic.Bool
				m.start(func(ctx context.Context, w *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, n int) error {
					if armed.Load() && w.Record.GetId() == test.id && stage == test.stage && n >= test.after {
						s.hang(test.id, true)
						return hangs(ctx, w)
					}
					return nil
				}, prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
				s = reportSteps(t, m)
				for range 10 { // gaps between tokens have to be known
					if r := m.generate(t.Context(), ask(test.mode, 100)); r.err != nil {
						t.Fatal(r.err)
					}
				}
				time.Sleep(1500 * time.Millisecond) // what was computed is reported
				armed.Store(true)
				served := func(what string, least, most time.Duration) *inferencev1.Route {
					began := time.Now()
					r := m.generate(t.Context(), ask(test.mode, 100))
					if took := time.Since(began); r.err != nil || r.text != story || took < least || took > most {
						t.Errorf("%s: took %v, text %q, error %v", what, took, r.text, r.err)
					}
					return r.finished.GetRoute()
				}
				served("the first", test.limit, test.limit+time.Second)
				// Its reports say nothing new.
				for range 20 {
					route := served("another", 0, 500*time.Millisecond)
					if route.GetPrefill() == test.id || route.GetDecode() == test.id {
						t.Fatalf("the worker that hangs is used: %v", route)
					}
					time.Sleep(time.Second)
				}
				if !strings.Contains(m.log.String(), "worker is suspected") {
					t.Error("nothing is logged")
				}
				armed.Store(false)
				s.hang(test.id, false)
				time.Sleep(2 * time.Second)
				if route := served("when it goes on", 0, 500*time.Millisecond); route.GetPrefill() != test.id && route.GetDecode() != test.id {
					t.Errorf("it goes on and is not used: %v", route)
				}
				m.quiet()
			})
		})
	}
}

// A worker that hangs and is the only one is left to the flags: there is nowhere to go.
func TestHungWorkerThatIsTheOnlyOne(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		var armed atomic.Bool
		m.start(func(ctx context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, n int) error {
			if armed.Load() && stage == workertest.Token && n == 9 {
				time.Sleep(8 * time.Second) // long, and not for ever
			}
			return nil
		}, decodeRecord("d1"))
		reportSteps(t, m)
		for range 10 {
			m.generate(t.Context(), ask(agg, 100))
		}
		armed.Store(true)
		if r := m.generate(t.Context(), ask(agg, 100)); r.err != nil || r.finished.GetRoute().GetRetries() != 0 {
			t.Errorf("route %v, error %v", r.finished.GetRoute(), r.err)
		}
	})
}

// A worker that calls every request wrong changes nothing of what clients get, and
// is soon not asked any more.
func TestWorkerThatCallsEverythingWrong(t *testing.T) {
	for name, says := range map[string]error{
		"invalid":       rpc.InvalidArgument("task.token_ids", "I do not like it"),
		"too late":      status.Error(codes.DeadlineExceeded, "I am tired"),
		"unimplemented": status.Error(codes.Unimplemented, "unknown service"),
		"unavailable":   status.Error(codes.Unavailable, "connection lost, or so"),
		"not found":     status.Error(codes.NotFound, "what model"),
		"full":          rpc.Error(codes.ResourceExhausted, "QUEUE_FULL", "no room", 0),
	} {
		for _, liar := range []string{"d1", "p1"} {
			t.Run(name+" "+liar, func(t *testing.T) {
				inMesh(t, nil, func(t *testing.T, m *mesh) {
					m.start(func(_ context.Context, w *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
						if w.Record.GetId() == liar && (stage == workertest.Reserve || stage == workertest.Start) {
							return says
						}
						return nil
					}, prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
					for range 60 {
						r := m.generate(t.Context(), ask(dis, 100))
						if r.err != nil || r.text != story || r.finished.GetRoute().GetRetries() > 1 {
							t.Fatalf("text %q, route %v, error %v", r.text, r.finished.GetRoute(), r.err)
						}
						time.Sleep(300 * time.Millisecond) // it is left alone for less, at first
					}
					asked := 0
					for _, w := range m.workers {
						if w.Record.GetId() == liar {
							asked = len(w.Tasks())
						}
					}
					if asked == 0 || asked > 20 {
						t.Errorf("it was asked %d times in 60 requests", asked)
					}
					m.quiet()
				})
			})
		}
	}
}

// What all workers call wrong is wrong, and says so to the client; nobody is blamed.
func TestWorkersThatAgree(t *testing.T) {
	for _, workers := range []int{1, 2, 3} {
		inMesh(t, nil, func(t *testing.T, m *mesh) {
			records := []*controlv1.WorkerRecord{decodeRecord("d1"), decodeRecord("d2"), decodeRecord("d3")}[:workers]
			var fussy atomic.Bool
			fussy.Store(true)
			m.start(func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
				if fussy.Load() && stage == workertest.Reserve {
					return rpc.InvalidArgument("task.max_tokens", "is wrong")
				}
				return nil
			}, records...)
			for range 10 {
				r := m.generate(t.Context(), ask(agg, 100))
				if status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != "max_tokens" {
					t.Fatalf("%d workers: %v", workers, r.err)
				}
			}
			fussy.Store(false)
			began := time.Now()
			if r := m.generate(t.Context(), ask(agg, 100)); r.err != nil || time.Since(began) > time.Second {
				t.Errorf("%d workers, the next: %v after %v", workers, r.err, time.Since(began))
			}
		})
	}
}
