package router_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// hangs says nothing more and keeps the stream open, as a stopped process does.
func hangs(ctx context.Context, _ *workertest.Worker) error {
	<-ctx.Done()
	return ctx.Err()
}

// A worker that takes a request and then is silent loses it to another one,
// wherever it stops.
func TestSilentWorkerLosesTheRequest(t *testing.T) {
	for _, test := range []struct {
		name  string
		mode  inferencev1.Mode
		id    string
		stage workertest.Stage
		after int
		limit time.Duration
	}{
		{"before reserving", dis, "d1", workertest.Reserve, 0, 30 * time.Second},
		{"before starting", dis, "p1", workertest.Start, 0, 30 * time.Second},
		{"in the prompt", dis, "p1", workertest.First, 0, 60 * time.Second},
		{"in the transfer", dis, "p1", workertest.Sent, 0, 60 * time.Second},
		{"before admission", dis, "d1", workertest.Admit, 0, 30 * time.Second},
		{"between tokens", dis, "d1", workertest.Token, 9, 10 * time.Second},
		{"before admission, aggregated", agg, "d1", workertest.Admit, 0, 30 * time.Second},
		{"in the prompt, aggregated", agg, "d1", workertest.Token, 0, 60 * time.Second},
		{"between tokens, aggregated", agg, "d1", workertest.Token, 9, 10 * time.Second},
		{"before its last word", agg, "d1", workertest.End, 0, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(failAt(test.id, test.stage, test.after, hangs), prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
				began := time.Now()
				r := m.generate(t.Context(), ask(test.mode, 100))
				if r.err != nil || r.text != story {
					t.Fatalf("text %q, error %v", r.text, r.err)
				}
				if took := time.Since(began); took < test.limit || took > test.limit+time.Second {
					t.Errorf("took %s, want %s", took, test.limit)
				}
				if test.stage != workertest.End && r.finished.GetRoute().GetRetries() != 1 {
					t.Errorf("route %v", r.finished.GetRoute())
				}
				m.quiet()
				// The next one does not try it. What stalled a transfer is not known.
				r = m.generate(t.Context(), ask(test.mode, 100))
				route := r.finished.GetRoute()
				if r.err != nil || test.stage != workertest.Sent && test.stage != workertest.End && (route.GetPrefill() == test.id || route.GetDecode() == test.id) {
					t.Errorf("the next one: route %v, error %v", route, r.err)
				}
			})
		})
	}
}

// With nobody else there the silence of the last worker is a typed error.
func TestSilenceOfTheLastWorker(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(failAt("d1", workertest.Token, 3, hangs), decodeRecord("d1"))
		began := time.Now()
		r := m.generate(t.Context(), ask(agg, 10))
		if status.Code(r.err) != codes.Unavailable || rpc.Reason(r.err) != "WORKER_LOST" || len(r.tokens) != 3 {
			t.Errorf("%d tokens, error %v", len(r.tokens), r.err)
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("took %s", took)
		}
		m.quiet()
	})
}

// A worker that is slow and not silent is left alone, up to the longest time of a
// request, whatever deadline the client has set.
func TestLongestRequest(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Serving.MaxRequestTime = time.Minute }, func(t *testing.T, m *mesh) {
		m.net.StepTime = 9 * time.Second
		m.start(nil, decodeRecord("d1"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		r := m.generate(ctx, ask(agg, 10))
		if status.Code(r.err) != codes.DeadlineExceeded || rpc.Reason(r.err) != "DEADLINE" || len(r.tokens) != 6 {
			t.Errorf("%d tokens, error %v", len(r.tokens), r.err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("took %s", took)
		}
		m.quiet()
	})
}
