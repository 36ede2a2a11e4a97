package router_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/auth"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// limited is a router where the context's caller has limits.
func (m *mesh) limited(t *testing.T, limits *controlv1.TenantLimits) (service *router.Service, inference inferencev1.InferenceClient, caller context.Context, end func()) {
	t.Helper()
	key, record := auth.NewKey(time.Now())
	record.Tenant, record.Scopes, record.Limits = "acme", []string{string(auth.Generate)}, limits
	asks := auth.New(auth.Options{})
	asks.SetKeys([]*controlv1.ApiKey{record})
	service, inference, end = m.another(t, asks)
	synctest.Wait()
	return service, inference, metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+key), end
}

// left checks how many tokens a caller has left, with a request that takes two of them and that
// workers serve from now on.
func (m *mesh) left(caller context.Context, t *testing.T, inference inferencev1.InferenceClient, want int) {
	t.Helper()
	for _, w := range m.workers {
		w.Hook = nil
	}
	q := ask(agg, 1)
	q.MaxTokens, q.IgnoreEos = new(uint32(1)), true
	stream, err := inference.Generate(caller, q)
	if err != nil {
		t.Fatal(err)
	}
	header, err := stream.Header()
	if err != nil {
		t.Fatal(err)
	}
	if left := header.Get("x-ratelimit-remaining-tokens"); len(left) != 1 || left[0] != strconv.Itoa(want-2) {
		t.Errorf("left: %v, want %d", left, want-2)
	}
	if r := m.collect(stream, 0); r.err != nil {
		t.Error(r.err)
	}
}

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
		{"its constraint and biases leave no token", agg, func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
			if stage == workertest.Token {
				return rpc.InvalidArgument("structured_output", "no token goes on")
			}
			return nil
		}, nil, codes.InvalidArgument, prompt},
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
				_, inference, ctx, end := m.limited(t, &controlv1.TenantLimits{TokensPerMinute: 1000})
				defer end()
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
				m.left(ctx, t, inference, 1000-c.used)
				m.quiet()
			})
		})
	}
}

// What is refused for what it asks counts as one request, also where no worker can ever have it.
func TestRefusedRequestsCountOnce(t *testing.T) {
	const limit = 4
	small := decodeRecord("d1")
	small.Capacity.Blocks = 1 // of 32 tokens
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, small)
		service, inference, ctx, end := m.limited(t, &controlv1.TenantLimits{RequestsPerMinute: limit})
		defer end()
		md, _ := metadata.FromOutgoingContext(ctx)
		post := func(path string, body any) (code codes.Code) {
			data, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			q := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(data))
			q.Header.Set("Authorization", md.Get("authorization")[0])
			w := httptest.NewRecorder()
			if service.HTTP().ServeHTTP(w, q); w.Code == http.StatusBadRequest {
				return codes.InvalidArgument
			}
			return codes.Unknown
		}
		left := func() int {
			q := httptest.NewRequest(http.MethodGet, "/v1/models", nil)
			q.Header.Set("Authorization", md.Get("authorization")[0])
			w := httptest.NewRecorder()
			service.HTTP().ServeHTTP(w, q)
			n, err := strconv.Atoi(w.Header().Get("x-ratelimit-remaining-requests"))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		prompt := ask(agg, 40).GetTokenIds()
		for name, call := range map[string]func() codes.Code{
			"Generate": func() codes.Code {
				stream, err := inference.Generate(ctx, ask(agg, 40))
				if err != nil {
					t.Fatal(err)
				}
				return status.Code(m.collect(stream, 0).err)
			},
			"Embed": func() codes.Code {
				_, err := inference.Embed(ctx, &inferencev1.EmbedRequest{Inputs: []*inferencev1.EmbedInput{{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: prompt}}}})
				return status.Code(err)
			},
			"completions": func() codes.Code { return post("/v1/completions", map[string]any{"prompt": prompt.GetIds()}) },
			"stream": func() codes.Code {
				return post("/v1/completions", map[string]any{"prompt": prompt.GetIds(), "stream": true})
			},
			"embeddings": func() codes.Code { return post("/v1/embeddings", map[string]any{"input": prompt.GetIds()}) },
		} {
			if code := call(); code != codes.InvalidArgument || left() != limit-1 {
				t.Errorf("%s: %v, %d of %d requests are left", name, code, left(), limit)
			}
			time.Sleep(2 * time.Minute)
		}
		m.quiet()
	})
}

// A request that is refused while nobody reads it counts too: nobody gets the error that would count.
func TestRefusedWithoutAReaderCounts(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(failAt("d1", workertest.Token, 0, func(context.Context, *workertest.Worker) error {
			time.Sleep(time.Second)
			return rpc.InvalidArgument("structured_output", "no token goes on")
		}), decodeRecord("d1"))
		_, inference, ctx, end := m.limited(t, &controlv1.TenantLimits{RequestsPerMinute: 4})
		defer end()
		q := ask(agg, 20)
		q.ResumableFor = durationpb.New(10 * time.Second)
		leaves, cancel := context.WithCancel(ctx)
		defer cancel()
		time.AfterFunc(100*time.Millisecond, cancel)
		stream, err := inference.Generate(leaves, q)
		if err != nil {
			t.Fatal(err)
		}
		if r := m.collect(stream, 0); status.Code(r.err) != codes.Canceled {
			t.Fatalf("%+v", r)
		}
		time.Sleep(5 * time.Second) // it is refused meanwhile
		stream, err = inference.Generate(ctx, ask(agg, 1))
		if err != nil {
			t.Fatal(err)
		}
		header, err := stream.Header()
		if left := header.Get("x-ratelimit-remaining-requests"); err != nil || len(left) != 1 || left[0] != "2" {
			t.Errorf("%v of 4 requests are left after two, %v", left, err)
		}
		m.collect(stream, 0)
		m.quiet()
	})
}

// A router that stops refuses a request before it spends anything on it, and what it refuses costs nothing.
func TestChargeOfARouterThatStops(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		d := m.start(nil, decodeRecord("d1"))[0]
		m.members.set(true, d.Record, routerRecord("router-2", "router:3"), routerRecord("router-silent", "router:4"))
		service, inference, ctx, end := m.limited(t, &controlv1.TenantLimits{RequestsPerMinute: 4}) // of which two here
		defer end()
		generate := func(q *inferencev1.GenerateRequest) error {
			stream, err := inference.Generate(ctx, q)
			if err != nil {
				return err
			}
			return m.collect(stream, 0).err
		}
		admitted := make(chan error, 1)
		go func() { admitted <- generate(ask(agg, 4)) }() // waits for what the silent router has to say
		time.Sleep(time.Second)
		_ = service.Stop(ctx)
		wrong := ask(agg, 4)
		wrong.Model = "there is none"
		for what, err := range map[string]error{"that was to wait": <-admitted, "that comes later": generate(wrong)} {
			if rpc.Reason(err) != api.ReasonRouterShutdown {
				t.Errorf("a request %s: %v", what, err)
			}
		}
		for i, want := range []codes.Code{codes.OK, codes.OK, codes.ResourceExhausted} {
			if _, err := inference.Tokenize(ctx, &inferencev1.TokenizeRequest{Text: "a"}); status.Code(err) != want {
				t.Errorf("call %d: %v", i, err)
			}
		}
		m.quiet()
	})
}

// An answer that ends because another of its call fails costs nothing, as that one: the client waits
// for both.
func TestChargeBesideAFailure(t *testing.T) {
	const long, short = 20, 10 // tokens of the prompts; the worker fails the shorter
	embeds := func(ctx context.Context, _ http.Handler, inference inferencev1.InferenceClient) error {
		q := &inferencev1.EmbedRequest{}
		for _, n := range []int{long, short} {
			q.Inputs = append(q.Inputs, &inferencev1.EmbedInput{Input: &inferencev1.EmbedInput_TokenIds{TokenIds: ask(agg, n).GetTokenIds()}})
		}
		_, err := inference.Embed(ctx, q)
		return err
	}
	completes := func(ctx context.Context, api http.Handler, _ inferencev1.InferenceClient) error {
		body, err := json.Marshal(map[string]any{"prompt": [][]uint32{ask(agg, long).GetTokenIds().GetIds(), ask(agg, short).GetTokenIds().GetIds()}, "max_tokens": 4})
		if err != nil {
			return err
		}
		q := httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/completions", bytes.NewReader(body))
		md, _ := metadata.FromOutgoingContext(ctx)
		q.Header.Set("Authorization", md.Get("authorization")[0])
		w := httptest.NewRecorder()
		if api.ServeHTTP(w, q); w.Code != http.StatusServiceUnavailable {
			return fmt.Errorf("HTTP status %d: %s", w.Code, w.Body)
		}
		return status.Error(codes.Unavailable, w.Body.String())
	}
	for name, call := range map[string]func(context.Context, http.Handler, inferencev1.InferenceClient) error{"embeddings": embeds, "completions": completes} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				computes := make(chan struct{})
				computing := sync.OnceFunc(func() { close(computes) })
				m.start(func(ctx context.Context, _ *workertest.Worker, task *workerv1.Task, stage workertest.Stage, _ int) error {
					if stage != workertest.Token {
						return nil
					}
					if len(task.GetTokenIds()) == long {
						computing()
						<-ctx.Done()
						return status.FromContextError(ctx.Err()).Err()
					}
					<-computes
					return status.Error(codes.Internal, "broken")
				}, decodeRecord("d1"))
				service, inference, ctx, end := m.limited(t, &controlv1.TenantLimits{TokensPerMinute: 1000})
				defer end()
				if err := call(ctx, service.HTTP(), inference); status.Code(err) != codes.Unavailable {
					t.Fatal(err)
				}
				synctest.Wait()
				m.left(ctx, t, inference, 1000)
				m.quiet()
			})
		})
	}
}
