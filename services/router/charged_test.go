package router_test

import (
	"cmp"
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
)

// Who leaves while a worker computes the prompt pays for that; who is refused, or whose worker fails,
// does not.
func TestChargeWithoutAToken(t *testing.T) {
	const prompt = 20
	waits := func(ctx context.Context, _ *workertest.Worker) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	leaves := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		return ctx, cancel
	}
	leavesEarly := func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(5*time.Millisecond, cancel)
		return ctx, cancel
	}
	times := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	}
	full, computes := failAt("p1", workertest.Start, 0, refuses(codes.ResourceExhausted, "QUEUE_FULL")), failAt("p1", workertest.First, 0, waits)
	for _, c := range []struct {
		name  string
		mode  inferencev1.Mode
		hook  workertest.Hook
		until func(context.Context) (context.Context, context.CancelFunc) // nil: the client waits
		want  codes.Code
		used  int
	}{
		{"leaves while its prompt is computed", agg, failAt("d1", workertest.Token, 0, waits), leaves, codes.Canceled, prompt},
		{"leaves while prefill computes", dis, failAt("p1", workertest.First, 0, waits), leaves, codes.Canceled, prompt},
		{"leaves while prefill computes, after it was full", dis, func(ctx context.Context, w *workertest.Worker, task *workerv1.Task, stage workertest.Stage, n int) error {
			return cmp.Or(full(ctx, w, task, stage, n), computes(ctx, w, task, stage, n))
		}, leaves, codes.Canceled, prompt},
		{"its deadline comes", agg, failAt("d1", workertest.Token, 0, waits), times, codes.DeadlineExceeded, prompt},
		{"leaves before a worker takes it", agg, failAt("d1", workertest.Reserve, 0, waits), leaves, codes.Canceled, 0},
		{"leaves while it waits for another worker, after one failed", agg, func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
			if stage == workertest.Token {
				return status.Error(codes.Internal, "broken")
			}
			return nil
		}, leavesEarly, codes.Canceled, 0},
		{"workers fail", agg, func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
			if stage == workertest.Token {
				return status.Error(codes.Internal, "broken")
			}
			return nil
		}, nil, codes.Unavailable, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(c.hook, prefillRecord("p1"), decodeRecord("d1"))
				key, record := auth.NewKey(time.Now())
				record.Tenant, record.Scopes, record.Limits = "acme", []string{string(auth.Generate)}, &controlv1.TenantLimits{TokensPerMinute: 1000}
				asks := auth.New(auth.Options{})
				asks.SetKeys([]*controlv1.ApiKey{record})
				_, inference, end := m.another(t, asks)
				defer end()
				synctest.Wait()
				ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key)
				q, calls := ask(c.mode, prompt), ctx
				if c.until != nil {
					var cancel context.CancelFunc
					calls, cancel = c.until(ctx)
					defer cancel()
				}
				stream, err := inference.Generate(calls, q)
				if err != nil {
					t.Fatal(err)
				}
				if r := m.collect(stream, 0); status.Code(r.err) != c.want || len(r.tokens) > 0 {
					t.Fatalf("%+v", r)
				}
				synctest.Wait()
				for _, w := range m.workers {
					w.Hook = nil
				}
				q = ask(agg, 1)
				q.MaxTokens, q.IgnoreEos = new(uint32(1)), true
				stream, err = inference.Generate(ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				header, err := stream.Header()
				if err != nil {
					t.Fatal(err)
				}
				if left := header.Get("x-ratelimit-remaining-tokens"); len(left) != 1 || left[0] != strconv.Itoa(1000-c.used-2) {
					t.Errorf("left: %v, want %d", left, 1000-c.used-2)
				}
				if r := m.collect(stream, 0); r.err != nil {
					t.Error(r.err)
				}
				m.quiet()
			})
		})
	}
}
