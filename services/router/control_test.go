package router_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
)

// lost starts a request and loses its client after some tokens.
func lost(t *testing.T, m *mesh, q *inferencev1.GenerateRequest, tokens int) (accepted *inferencev1.Accepted) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := m.inference.Generate(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	for range 1 + tokens {
		event, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if a := event.GetAccepted(); a != nil {
			accepted = a
		}
	}
	return accepted
}

func TestResume(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 50 * time.Millisecond
		m.start(nil, decodeRecord("d1"))
		q := ask(agg, 4)
		q.ResumableFor = durationpb.New(10 * time.Second)
		accepted := lost(t, m, q, 3)
		resume := func(offset uint64) result {
			stream, err := m.inference.Resume(t.Context(), &inferencev1.ResumeRequest{RequestId: accepted.GetRequestId(), Secret: accepted.GetSecret(), Offset: offset})
			if err != nil {
				t.Fatal(err)
			}
			return m.collect(stream, int(offset))
		}
		if r := resume(1000); status.Code(r.err) != codes.InvalidArgument || rpc.Field(r.err) != "offset" {
			t.Errorf("an offset not reached: %v", r.err)
		}
		time.Sleep(time.Second)
		rest := resume(3) // while it runs
		if rest.err != nil || !strings.HasSuffix(story, rest.text) || rest.accepted.GetRequestId() != accepted.GetRequestId() {
			t.Errorf("%+v", rest)
		}
		whole := resume(0) // after it has ended
		if whole.err != nil || whole.text != story || len(whole.tokens) != len(rest.tokens)+3 {
			t.Errorf("%+v", whole)
		}
		time.Sleep(11 * time.Second)
		if r := resume(0); status.Code(r.err) != codes.NotFound {
			t.Errorf("after its time: %v", r.err)
		}
		m.quiet()
	})
}

func TestResumableIsCancelledInTheEnd(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = time.Second
		d := m.start(nil, decodeRecord("d1"))[0]
		q := ask(agg, 4)
		q.ResumableFor = durationpb.New(5 * time.Second)
		lost(t, m, q, 2)
		time.Sleep(4 * time.Second)
		if d.Open() != 1 {
			t.Error("ended too early")
		}
		time.Sleep(2 * time.Second)
		if d.Open() != 0 {
			t.Error("runs on")
		}
	})
}

func TestExplain(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(failAt("d1", workertest.Token, 3, refuses(codes.Internal, "BUG")), decodeRecord("d1"), decodeRecord("d2"))
		ctx := metadata.AppendToOutgoingContext(t.Context(), api.HeaderRequestID, "my-request")
		if r := m.generate(ctx, ask(agg, 4)); r.err != nil || r.accepted.GetRequestId() != "my-request" {
			t.Fatalf("%+v", r)
		}
		e, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: "my-request"})
		if err != nil {
			t.Fatal(err)
		}
		if e.GetStatus() != "OK" || len(e.GetDecisions()) != 2 || e.GetTimings().GetTotalNs() == 0 || e.GetTimings().GetRetriedNs() == 0 {
			t.Errorf("%v", e)
		}
		if d := e.GetDecisions()[0]; d.GetDecode() != "d1" || !strings.Contains(d.GetFailure(), "d1: INTERNAL") || len(d.GetCandidates()) != 2 {
			t.Errorf("%v", d)
		}
		_, err = m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: "other"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("unknown: %v", err)
		}
	})
}

// A request can be asked about by as much of its id as no other has, as reports print it.
func TestExplainByTheBeginningOfAnID(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		var secret string // of the last one
		for _, id := range []string{"order-1", "order-12", "order-2"} {
			r := m.generate(metadata.AppendToOutgoingContext(t.Context(), api.HeaderRequestID, id), ask(agg, 4))
			if r.err != nil || r.accepted.GetRequestId() != id {
				t.Fatalf("%+v", r)
			}
			secret = r.accepted.GetSecret()
		}
		operator := func(id string) (*controlv1.ExplainResponse, error) {
			return m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: id})
		}
		caller := func(id string) (*controlv1.ExplainResponse, error) {
			return m.requests.Explain(t.Context(), &controlv1.ExplainOwnRequest{RequestId: id, Secret: secret})
		}
		for _, c := range []struct {
			name string
			ask  func(id string) (*controlv1.ExplainResponse, error)
			id   string
			want string // the request's id, or what the error says
		}{
			{"operator", operator, "order-12", "order-12"},
			{"operator", operator, "order-1", "order-1"},
			{"operator", operator, "order-2", "order-2"},
			{"operator", operator, "order", `3 requests have an id that begins with "order": give more of it`},
			{"operator", operator, "", "is not among"},
			{"operator", operator, "rder-1", "is not among"},
			{"caller", caller, "order-2", "order-2"},
			{"caller", caller, "ord", "order-2"}, // the others are not of this caller
			{"caller", caller, "order-1", "no request"},
			{"caller", caller, "", "no request"},
		} {
			e, err := c.ask(c.id)
			if got := cmp.Or(e.GetRequestId(), status.Convert(err).Message()); got != c.want && (err == nil || !strings.Contains(got, c.want)) {
				t.Errorf("%s asks for %q: got %q, want %q", c.name, c.id, got, c.want)
			}
		}
	})
}

// Of many tries on many workers the record stays small and keeps what was chosen.
func TestExplainIsBounded(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Serving.MaxAttempts = 8 }, func(t *testing.T, m *mesh) {
		const workers = 80
		var tries atomic.Int32
		hook := func(_ context.Context, _ *workertest.Worker, _ *workerv1.Task, stage workertest.Stage, _ int) error {
			if stage == workertest.Reserve {
				if tries.Add(1) < 7 {
					return rpc.Error(codes.Internal, "BUG", "", 0)
				}
			}
			return nil
		}
		var records []*controlv1.WorkerRecord
		for i := range workers {
			records = append(records, decodeRecord(fmt.Sprintf("d%02d", workers-i)))
		}
		m.start(hook, records...)
		r := m.generate(t.Context(), ask(agg, 4))
		if r.err != nil || r.finished.GetRoute().GetRetries() != 6 {
			t.Fatalf("%+v", r)
		}
		e, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
		if err != nil {
			t.Fatal(err)
		}
		if len(e.GetDecisions()) != 4 {
			t.Errorf("%d decisions", len(e.GetDecisions()))
		}
		for i, d := range e.GetDecisions() {
			chosen := slices.ContainsFunc(d.GetCandidates(), func(c *controlv1.Candidate) bool { return c.GetWorkerId() == d.GetDecode() })
			if len(d.GetCandidates()) != 8 || !chosen || (d.GetFailure() == "") != (i == 3) {
				t.Errorf("decision %d: %d candidates, chosen %v, failure %q", i, len(d.GetCandidates()), chosen, d.GetFailure())
			}
		}
	})
}

func TestWorkersAndDrain(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		watch, err := m.control.WatchWorkers(ctx, &controlv1.ListWorkersRequest{Role: controlv1.Role_ROLE_DECODE})
		if err != nil {
			t.Fatal(err)
		}
		if v, err := watch.Recv(); err != nil || len(v.GetWorkers()) != 0 {
			t.Fatalf("%v %v", v, err)
		}
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		for {
			v, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if w := v.GetWorkers(); len(w) == 1 && w[0].GetConnected() && w[0].GetRegistered() {
				break
			}
		}
		drain, err := m.control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: "d1", Force: true})
		if err != nil {
			t.Fatal(err)
		}
		var left []uint32
		for {
			p, err := drain.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			left = append(left, p.GetSequences())
		}
		if len(left) != 3 || left[2] != 0 {
			t.Errorf("progress %v", left)
		}
		if v, err := m.control.ListWorkers(t.Context(), &controlv1.ListWorkersRequest{Role: controlv1.Role_ROLE_DECODE}); err != nil || v.GetWorkers()[0].GetRecord().GetState() != controlv1.WorkerState_WORKER_STATE_DRAINED {
			t.Errorf("drained, but %v %v", v, err)
		}
		drain, err = m.control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: "d1"})
		if err == nil {
			_, err = drain.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("drain of a drained worker: %v", err)
		}
		drain, err = m.control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: "nobody"})
		if err == nil {
			_, err = drain.Recv()
		}
		if status.Code(err) != codes.NotFound {
			t.Errorf("drain of nobody: %v", err)
		}
	})
}

// A worker that is undrained while etcd is away serves at once: the record in etcd, or that
// there is none, is of before.
func TestUndrainWhileEtcdIsAway(t *testing.T) {
	drains := decodeRecord("d1")
	drains.State = controlv1.WorkerState_WORKER_STATE_DRAINING
	for name, last := range map[string][]*controlv1.WorkerRecord{"it had left": {}, "it was draining": {drains}} {
		t.Run(name, func(t *testing.T) {
			inMesh(t, nil, func(t *testing.T, m *mesh) {
				m.start(nil, decodeRecord("d1"))
				m.members.set(true, drains)
				synctest.Wait()
				m.members.set(true, last...)
				synctest.Wait()
				m.members.set(false, last...)
				synctest.Wait()
				if _, err := m.control.Undrain(t.Context(), &controlv1.UndrainRequest{WorkerId: "d1"}); err != nil {
					t.Fatal(err)
				}
				if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.text != story {
					t.Errorf("%q, %v", r.text, r.err)
				}
				m.members.set(true) // etcd is back; the worker registers soon
				time.Sleep(5 * time.Second)
				m.list()
				if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil {
					t.Errorf("when etcd is back: %v", r.err)
				}
			})
		})
	}
}

// What etcd lists of other workers does not take a drain back that it does not list yet; an undrain
// does, at once.
func TestUndrainOfADrainThatEtcdDidNotList(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"))
		drain, err := m.control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: "d1", Force: true})
		for err == nil {
			_, err = drain.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		m.list()
		if r := m.generate(t.Context(), ask(agg, 4)); status.Code(r.err) != codes.Unavailable {
			t.Errorf("while it is drained: %q, %v", r.text, r.err)
		}
		if _, err := m.control.Undrain(t.Context(), &controlv1.UndrainRequest{WorkerId: "d1"}); err != nil {
			t.Fatal(err)
		}
		if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.text != story {
			t.Errorf("%q, %v", r.text, r.err)
		}
	})
}

// An undrain ends a drain that waits: its caller learns that the worker is not drained, and the worker
// serves at once.
func TestUndrainWhileADrainWaits(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		undone := make(chan struct{})
		m.start(nil, decodeRecord("d1"))[0].Drains = func(ctx context.Context, left uint32) error {
			if left == 2 {
				return nil
			}
			select {
			case <-undone:
				return rpc.Error(codes.Aborted, api.ReasonDrainUndone, "the drain was taken back", 0)
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		drain, err := m.control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: "d1", Force: true})
		if err == nil {
			_, err = drain.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.control.Undrain(t.Context(), &controlv1.UndrainRequest{WorkerId: "d1"}); err != nil {
			t.Fatal(err)
		}
		close(undone)
		if _, err := drain.Recv(); rpc.Reason(err) != api.ReasonDrainUndone {
			t.Errorf("the drain ends with %v", err)
		}
		if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.text != story {
			t.Errorf("%q, %v", r.text, r.err)
		}
	})
}

// A worker without which nobody of its role would serve is drained by force only.
func TestDrainOfTheLastWorker(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		leaves := decodeRecord("d3")
		leaves.State = controlv1.WorkerState_WORKER_STATE_DRAINING
		foreign := decodeRecord("d4")
		foreign.ModelDigest, foreign.Layout.ModelDigest = strings.Repeat("f", 32), strings.Repeat("f", 32)
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"), decodeRecord("d2"), leaves, foreign)
		drain := func(id string, force bool) error {
			stream, err := m.control.Drain(t.Context(), &controlv1.DrainRequest{WorkerId: id, Force: force})
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := drain("d1", false); err != nil {
			t.Errorf("one of two: %v", err)
		}
		// etcd has not said yet that d1 drains.
		for _, id := range []string{"d2", "p1"} {
			if err := drain(id, false); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--force") || rpc.Reason(err) != "LAST_WORKER" {
				t.Errorf("the last one, %s: %v", id, err)
			}
			if err := drain(id, true); err != nil {
				t.Errorf("the last one, %s, by force: %v", id, err)
			}
		}
		if err := drain("d4", false); err != nil {
			t.Errorf("one that gets no requests: %v", err)
		}
	})
}

// A worker that never says that it drains holds up no other drain for longer than its time, and none
// whose caller leaves.
func TestDrainOfAWorkerThatHangs(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, decodeRecord("d1"), decodeRecord("d2"))
		m.start(nil, decodeRecord("d3"))[0].Drains = func(ctx context.Context, _ uint32) error {
			<-ctx.Done()
			return ctx.Err()
		}
		m.start(nil, decodeRecord("d4"))[0].Drains = func(_ context.Context, left uint32) error {
			if left < 2 {
				time.Sleep(time.Minute)
			}
			return nil
		}
		drain := func(ctx context.Context, id string) error {
			stream, err := m.control.Drain(ctx, &controlv1.DrainRequest{WorkerId: id})
			for err == nil {
				_, err = stream.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		hung, next := make(chan error, 1), make(chan error, 1)
		go func() { hung <- drain(t.Context(), "d3") }()
		synctest.Wait()
		leaves, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if err := drain(leaves, "d1"); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("while another waits: %v", err)
		}
		go func() { next <- drain(t.Context(), "d2") }()
		if err := <-hung; status.Code(err) != codes.Unavailable || rpc.Reason(err) != "WORKER_SILENT" {
			t.Errorf("the one that hangs: %v", err)
		}
		if err := <-next; err != nil {
			t.Errorf("after it: %v", err)
		}
		if err := drain(t.Context(), "d4"); err != nil {
			t.Errorf("one that has much to finish: %v", err)
		}
	})
}

func TestSetPolicy(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		p, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{DisaggregateMinTokens: proto.Uint32(200)}})
		if err != nil || p.GetPolicy().GetDisaggregateMinTokens() != 200 || p.GetPolicy().GetTenantMaxRequests() == 0 {
			t.Fatalf("%v %v", p, err)
		}
		if r := m.generate(t.Context(), ask(auto, 100)); r.finished.GetRoute().GetMode() != agg {
			t.Errorf("route %v", r.finished.GetRoute())
		}
		if m.members.policy.GetDisaggregateMinTokens() != 200 {
			t.Error("other routers do not hear of it")
		}
		if _, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{Routing: proto.String("sloo")}}); rpc.Field(err) != "policy.routing" {
			t.Errorf("error %v", err)
		}
		if p, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{Routing: proto.String("aggregated")}}); err != nil || p.GetPolicy().GetRouting() != "aggregated" {
			t.Errorf("%v %v", p, err)
		}
		if r := m.generate(t.Context(), ask(auto, 100)); r.finished.GetRoute().GetMode() != agg {
			t.Errorf("route %v", r.finished.GetRoute())
		}
		// One that another way into etcd has made invalid locks nobody out, and the
		// rest of it counts.
		locks := &controlv1.Policy{TenantMaxRequests: proto.Uint32(0), Routing: proto.String("none such"), DisaggregateMinTokens: proto.Uint32(5)}
		if _, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: locks}); rpc.Field(err) != "policy.tenant_max_requests" {
			t.Errorf("error %v", err)
		}
		if _, err := m.members.SetPolicy(t.Context(), locks, membership.AnyRevision); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if r := m.generate(t.Context(), ask(auto, 4)); r.err != nil || r.finished.GetRoute().GetMode() != agg {
			t.Errorf("route %v, error %v", r.finished.GetRoute(), r.err)
		}
	})
}

// Of two policies that are set at once, every router goes by the one that etcd has.
func TestPoliciesSetAtOnce(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.members.overtaking = &controlv1.Policy{TenantMaxRequests: proto.Uint32(9)}
		if p, err := m.control.SetPolicy(t.Context(), &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{TenantMaxRequests: proto.Uint32(8)}}); err != nil || p.GetPolicy().GetTenantMaxRequests() != 9 {
			t.Errorf("%v %v", p, err)
		}
		set, err := m.control.GetPolicy(t.Context(), &controlv1.GetPolicyRequest{})
		if err != nil || set.GetPolicy().GetTenantMaxRequests() != 9 || set.GetRevision() != 2 {
			t.Errorf("%v %v", set, err)
		}
		// Who changes one that has changed meanwhile hears of it.
		q := &controlv1.SetPolicyRequest{Policy: &controlv1.Policy{TenantMaxRequests: proto.Uint32(7)}, IfRevision: proto.Int64(1)}
		if _, err := m.control.SetPolicy(t.Context(), q); status.Code(err) != codes.Aborted || rpc.Reason(err) != api.ReasonPolicyChanged {
			t.Errorf("%v", err)
		}
		q.IfRevision = proto.Int64(2)
		if p, err := m.control.SetPolicy(t.Context(), q); err != nil || p.GetPolicy().GetTenantMaxRequests() != 7 {
			t.Errorf("%v %v", p, err)
		}
	})
}

// Losing etcd, or a worker's lease while its connection works, fails nothing.
func TestMembershipOutage(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), decodeRecord("d1"))
		m.members.set(false)
		time.Sleep(30 * time.Second)
		if r := m.generate(t.Context(), ask(dis, 4)); r.err != nil {
			t.Errorf("while etcd is away: %v", r.err)
		}
		m.members.set(true) // back, and all leases gone
		time.Sleep(5 * time.Second)
		if r := m.generate(t.Context(), ask(dis, 4)); r.err != nil {
			t.Errorf("while leases are gone: %v", r.err)
		}
		m.list()
		if r := m.generate(t.Context(), ask(dis, 4)); r.err != nil {
			t.Errorf("when they are back: %v", r.err)
		}
	})
}

// A new worker is used at once after the only one died, and a queue that built
// up meanwhile is served.
func TestNewWorkerIsUsed(t *testing.T) {
	inMesh(t, func(c *router.Config) { c.Routing.NoWorkerGrace = time.Minute }, func(t *testing.T, m *mesh) {
		d1 := m.start(nil, decodeRecord("d1"))[0]
		d1.Kill()
		synctest.Wait()
		var wait sync.WaitGroup
		for range 5 {
			wait.Go(func() {
				if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil || r.text != story {
					t.Errorf("%q %v", r.text, r.err)
				}
			})
		}
		time.Sleep(5 * time.Second)
		m.queue.mu.Lock()
		last := m.queue.reports[len(m.queue.reports)-1]
		m.queue.mu.Unlock()
		if q := last.GetQueues(); len(q) != 1 || q[0].GetRequests() != 5 || q[0].GetOldestWaitMs() < 4000 || last.GetModel() != "fable" {
			t.Errorf("queue report %v", last)
		}
		for pool, want := range map[string]uint64{"decode": last.GetQueues()[0].GetTokens(), "prefill": 0} {
			if got := m.sample("tandem_router_backlog_tokens", "pool", pool).GetGauge().GetValue(); got != float64(want) {
				t.Errorf("backlog of the %s pool is %v tokens, the report says %d", pool, got, want)
			}
		}
		began := time.Now()
		m.start(nil, decodeRecord("d2"))
		wait.Wait()
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}
	})
}

// The second address is used when the first does not work.
func TestSecondAddress(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		r := decodeRecord("d1")
		w := m.net.Start(r, nil)
		m.workers = append(m.workers, w)
		told := proto.CloneOf(r)
		told.Addresses = append([]string{"nowhere:1"}, r.GetAddresses()...)
		m.members.set(true, told)
		time.Sleep(5 * time.Second)
		if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil {
			t.Error(r.err)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(nil, prefillRecord("p1"), prefillRecord("p2"), decodeRecord("d1"), decodeRecord("d2"))
		var wait sync.WaitGroup
		for i := range 64 {
			wait.Go(func() {
				r := m.generate(t.Context(), ask([]inferencev1.Mode{auto, dis, agg}[i%3], 1+3*i))
				if r.err != nil || r.text != story {
					t.Errorf("%q %v", r.text, r.err)
				}
			})
		}
		wait.Wait()
		m.quiet()
	})
}

// Stop lets requests finish, refuses new ones, and ends what takes too long.
func TestStop(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.net.StepTime = 100 * time.Millisecond
		m.start(nil, decodeRecord("d1"))
		var wait sync.WaitGroup
		slow := ask(agg, 4)
		slow.IgnoreEos = true // 252 tokens: 25 s
		wait.Go(func() {
			if r := m.generate(t.Context(), ask(agg, 4)); r.err != nil {
				t.Error("one that was nearly done:", r.err)
			}
		})
		wait.Go(func() {
			r := m.generate(t.Context(), slow)
			if status.Code(r.err) != codes.Unavailable || rpc.Reason(r.err) != "ROUTER_SHUTDOWN" {
				t.Error("one that takes long:", r.err)
			}
		})
		time.Sleep(500 * time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		wait.Go(func() { _ = m.service.Stop(ctx) })
		time.Sleep(100 * time.Millisecond)
		if r := m.generate(t.Context(), ask(agg, 4)); status.Code(r.err) != codes.Unavailable {
			t.Error("a new one:", r.err)
		}
		wait.Wait()
		m.quiet()
	})
}

func TestTokenizeAndModels(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		tokens, err := m.inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: story})
		if err != nil || tokens.GetTokenIds()[0] != 4093 {
			t.Fatalf("%v %v", tokens, err)
		}
		back, err := m.inference.Detokenize(t.Context(), &inferencev1.DetokenizeRequest{TokenIds: tokens.GetTokenIds(), SkipSpecialTokens: true})
		if err != nil || back.GetText() != story {
			t.Errorf("%v %v", back, err)
		}
		if _, err := m.inference.Tokenize(t.Context(), &inferencev1.TokenizeRequest{Text: strings.Repeat("a", 1<<20+1)}); rpc.Field(err) != "text" {
			t.Errorf("too long: %v", err)
		}
		if _, err := m.inference.Detokenize(t.Context(), &inferencev1.DetokenizeRequest{TokenIds: []uint32{9999}}); rpc.Field(err) != "token_ids[0]" {
			t.Errorf("out of range: %v", err)
		}
		models, err := m.inference.ListModels(t.Context(), &inferencev1.ListModelsRequest{})
		if err != nil || len(models.GetModels()) != 1 || models.GetModels()[0].GetContextTokens() != window {
			t.Errorf("%v %v", models, err)
		}
	})
}
