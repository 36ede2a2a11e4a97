package router_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

const (
	digest = "0123456789abcdef0123456789abcdef"
	window = 256 // the model's context, tokens
	eos    = 4094
	// story is what the workers of these tests always tell.
	story = "Once upon a time there was a little dog. He liked to run in the park. One day he saw a big red ball. The end."
)

var fable = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Open("../../models/fable") })

func spec() model.Spec {
	return model.Spec{Name: "fable", Digest: digest, VocabSize: 4096, ContextTokens: window, BOS: 4093, EOS: []int32{eos}}
}

// members is membership without etcd.
type members struct {
	mu         sync.Mutex
	view       membership.View
	policy     *controlv1.Policy
	revision   int64             // how often the policy was set
	overtaking *controlv1.Policy // set elsewhere right after the next one; nil: none is
	changed    chan struct{}
}

func (m *members) Watch(ctx context.Context, notify func(membership.View)) error {
	for {
		m.mu.Lock()
		view, changed := m.view, m.changed
		m.mu.Unlock()
		notify(view)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *members) WatchPolicy(ctx context.Context, notify func(*controlv1.Policy, int64)) error {
	for {
		m.mu.Lock()
		policy, revision, changed := m.policy, m.revision, m.changed
		m.mu.Unlock()
		notify(policy, revision)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (m *members) SetPolicy(_ context.Context, policy *controlv1.Policy, ifRevision int64) (revision int64, err error) {
	overtaken := false
	defer func() {
		if overtaken {
			time.Sleep(time.Second) // watches are faster than this answer
		}
	}()
	m.mu.Lock()
	defer m.mu.Unlock()
	if ifRevision != membership.AnyRevision && ifRevision != m.revision {
		return 0, membership.ErrConflict
	}
	m.policy = policy
	m.revision++
	revision = m.revision
	if m.overtaking != nil {
		m.policy, m.overtaking, overtaken = m.overtaking, nil, true
		m.revision++
	}
	close(m.changed)
	m.changed = make(chan struct{})
	return revision, nil
}

func (m *members) set(live bool, records ...*controlv1.WorkerRecord) {
	m.setView(membership.View{Workers: records, Live: live})
}

func (m *members) setView(view membership.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view = view
	close(m.changed)
	m.changed = make(chan struct{})
}

func record(id string, role controlv1.Role) *controlv1.WorkerRecord {
	return &controlv1.WorkerRecord{
		Id: id, Role: role, Epoch: 1, Addresses: []string{id + ":1"}, State: controlv1.WorkerState_WORKER_STATE_SERVING,
		Capacity: &controlv1.Capacity{Blocks: 64, BlockTokens: 32, ContextTokens: window, MaxBatchTokens: 128, MaxSequences: 8, MaxWaiting: 8},
		Model:    "fable", ModelDigest: digest, LayoutDigest: 7,
		Layout: &kvtransferv1.Layout{ModelDigest: digest, ArithmeticClass: "test/1", Layers: 4, BlockTokens: 32, SliceBytes: 4096},
	}
}

func prefillRecord(id string) *controlv1.WorkerRecord {
	return record(id, controlv1.Role_ROLE_PREFILL)
}
func decodeRecord(id string) *controlv1.WorkerRecord { return record(id, controlv1.Role_ROLE_DECODE) }

// mesh is a router with workers of workertest, in one synctest bubble.
type mesh struct {
	t             *testing.T
	net           *workertest.Net
	members       *members
	service       *router.Service
	inference     inferencev1.InferenceClient
	requests      controlv1.RequestsClient
	control       controlv1.ControlClient
	workers       []*workertest.Worker
	queue         *queueReports
	loads, others *loads // of the router, and of another
	registry      *prometheus.Registry
	spans         *tracetest.SpanRecorder
	log           bytes.Buffer // of the router; slog writes one line at a time
}

type queueReports struct {
	mu      sync.Mutex
	reports []*controlv1.QueueReport
}

func (q *queueReports) Queue(report *controlv1.QueueReport) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reports = append(q.reports, report)
}

func (*queueReports) Router(*controlv1.RouterReport) {}

func (*queueReports) Tenants(*controlv1.TenantReport) {}

// onlyZero always takes the first.
type onlyZero struct{}

func (onlyZero) IntN(int) int { return 0 }

// inMesh runs test in a bubble; when it returns everything is stopped, and the
// bubble fails if a goroutine is left.
func inMesh(t *testing.T, change func(*router.Config), test func(t *testing.T, m *mesh)) {
	t.Helper()
	inMeshOf(t, spec(), change, test)
}

// inMeshOf is inMesh with a model of the caller's.
func inMeshOf(t *testing.T, served model.Spec, change func(*router.Config), test func(t *testing.T, m *mesh)) {
	t.Helper()
	tok, err := fable()
	if err != nil {
		t.Fatal(err)
	}
	script := append(tok.Encode(story, false), eos)
	template, noTemplate := chatOf(served)
	synctest.Test(t, func(t *testing.T) {
		m := &mesh{t: t, members: &members{changed: make(chan struct{})}, queue: &queueReports{}, loads: &loads{}, others: &loads{}, registry: prometheus.NewRegistry(), spans: tracetest.NewSpanRecorder()}
		m.net = workertest.NewNet(func(_ []uint32, _ uint64, offset int) uint32 {
			return uint32(script[min(offset, len(script)-1)])
		})
		config := router.DefaultConfig()
		if change != nil {
			change(&config)
		}
		m.service, err = router.New(config, router.Deps{
			ID: "router-1", Models: []router.Model{{Spec: served, Tokenizer: tok, Aliases: []string{"gpt-*", "other"}, Chat: template, ChatError: noTemplate}},
			Members: m.members, Signals: m.loads, Publisher: m.queue, Dial: m.net.Dial, Rand: onlyZero{}, Registerer: m.registry,
			Logger:  slog.New(slog.NewTextHandler(&m.log, nil)),
			Tracing: router.Tracing{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(m.spans)).Tracer("test")},
		})
		if err != nil {
			t.Fatal(err)
		}
		server, control := rpc.NewServer(rpc.ServerConfig{Name: "router", Limits: config.Limits()}), rpc.NewServer(rpc.ServerConfig{Name: "control"})
		m.service.Register(server)
		m.service.RegisterControl(control)
		listener, operators := m.net.Listen("router:1"), m.net.Listen("router:2")
		var wait sync.WaitGroup
		wait.Go(func() { _ = server.Serve(listener) })
		wait.Go(func() { _ = control.Serve(operators) })
		ctx, cancel := context.WithCancel(context.Background())
		wait.Go(func() {
			if err := m.service.Run(ctx); err != nil {
				t.Error("run:", err)
			}
		})
		conn, err := m.net.Dial("router:1")
		if err != nil {
			t.Fatal(err)
		}
		operator, err := m.net.Dial("router:2")
		if err != nil {
			t.Fatal(err)
		}
		m.inference, m.requests = inferencev1.NewInferenceClient(conn), controlv1.NewRequestsClient(conn)
		m.control = controlv1.NewControlClient(operator)
		defer func() {
			stopCtx, stop := context.WithTimeout(context.Background(), time.Second)
			defer stop()
			if err := m.service.Stop(stopCtx); err != nil {
				t.Error("stop:", err)
			}
			cancel()
			_ = errors.Join(conn.Close(), operator.Close(), server.Stop(stopCtx), control.Stop(stopCtx))
			for _, w := range m.workers {
				w.Kill()
			}
			wait.Wait()
		}()
		test(t, m)
	})
}

// start starts workers and waits until the router is connected to them.
func (m *mesh) start(hook workertest.Hook, records ...*controlv1.WorkerRecord) []*workertest.Worker {
	var started []*workertest.Worker
	for _, r := range records {
		started = append(started, m.net.Start(r, hook))
	}
	m.workers = append(m.workers, started...)
	m.list()
	return started
}

// list registers every worker that was started.
func (m *mesh) list() {
	var all []*controlv1.WorkerRecord
	for _, w := range m.workers {
		all = append(all, w.Record)
	}
	m.members.set(true, all...)
	synctest.Wait()
}

// result is all that came of a request.
type result struct {
	accepted *inferencev1.Accepted
	tokens   []uint32
	logprobs []*inferencev1.TokenLogprobs
	text     string
	finished *inferencev1.Finished
	header   []string
	err      error
}

func (m *mesh) generate(ctx context.Context, q *inferencev1.GenerateRequest) result {
	stream, err := m.inference.Generate(ctx, q)
	if err != nil {
		return result{err: err}
	}
	return m.collect(stream, 0)
}

// collect reads a stream to its end and checks what always has to hold.
func (m *mesh) collect(stream grpc.ServerStreamingClient[inferencev1.GenerateEvent], from int) (r result) {
	m.t.Helper()
	for first := true; ; first = false {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			r.err = err
			break
		}
		if r.finished != nil {
			m.t.Error("event after Finished")
		}
		switch e := event.GetEvent().(type) {
		case *inferencev1.GenerateEvent_Accepted:
			if !first {
				m.t.Error("Accepted is not first")
			}
			r.accepted = e.Accepted
		case *inferencev1.GenerateEvent_Tokens:
			if int(event.GetOffset()) != from+len(r.tokens) {
				m.t.Errorf("offset %d, want %d", event.GetOffset(), from+len(r.tokens))
			}
			r.tokens = append(r.tokens, e.Tokens.GetTokenIds()...)
			r.logprobs = append(r.logprobs, e.Tokens.GetLogprobs()...)
			r.text += e.Tokens.GetText()
		case *inferencev1.GenerateEvent_Finished:
			r.finished = e.Finished
			r.text += e.Finished.GetText()
		}
	}
	if header, err := stream.Header(); err == nil {
		r.header = header.Get(api.HeaderRequestID)
	}
	if r.err == nil && r.finished == nil {
		m.t.Error("stream ended without Finished")
	}
	if r.finished != nil {
		checkTimings(m.t, r.finished.GetTimings())
		if n := int(r.finished.GetUsage().GetCompletionTokens()); n != from+len(r.tokens) {
			m.t.Errorf("usage says %d tokens, %d came", n, from+len(r.tokens))
		}
	}
	return r
}

func checkTimings(t *testing.T, m *inferencev1.Timings) {
	t.Helper()
	stages := api.StagesOf(m)
	var sum time.Duration
	for _, took := range stages {
		if took < 0 {
			t.Errorf("negative stage in %v", stages)
		}
		sum += took
	}
	if sum.Nanoseconds() != m.GetTotalNs() {
		t.Errorf("stages %v add up to %d, total is %d", stages, sum.Nanoseconds(), m.GetTotalNs())
	}
}

// quiet waits until no worker serves a stream any more.
func (m *mesh) quiet() {
	m.t.Helper()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	for _, w := range m.workers {
		if n := w.Open(); n != 0 {
			m.t.Errorf("worker %s still serves %d streams", w.Record.GetId(), n)
		}
	}
	response, err := m.control.ListWorkers(m.t.Context(), &controlv1.ListWorkersRequest{})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, w := range response.GetWorkers() {
		if w.GetInFlight() != 0 {
			m.t.Errorf("router believes that %d requests run on %s", w.GetInFlight(), w.GetRecord().GetId())
		}
	}
}

// ask is a request with a prompt of some tokens.
func ask(mode inferencev1.Mode, promptTokens int) *inferencev1.GenerateRequest {
	ids := slices.Repeat([]uint32{17}, promptTokens)
	return &inferencev1.GenerateRequest{
		Input:    &inferencev1.GenerateRequest_TokenIds{TokenIds: &inferencev1.TokenIds{Ids: ids}},
		Mode:     mode,
		Sampling: &inferencev1.Sampling{Temperature: proto.Float32(0), Seed: proto.Uint64(7)},
	}
}

const (
	auto = inferencev1.Mode_MODE_AUTO
	dis  = inferencev1.Mode_MODE_DISAGGREGATED
	agg  = inferencev1.Mode_MODE_AGGREGATED
)
