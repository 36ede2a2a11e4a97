package scalingdriver_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/services/router/scalingdriver"
)

// source is a router that gets requests at a rate, and has one worker in each pool, and more.
type source struct {
	rate float64
	more int
}

func (s *source) Demand(string) scaling.Demand {
	return scaling.Demand{RequestsPerSecond: s.rate, GapSCV: 1, PromptTokens: 1000, ContextTokens: 1000, OutputTokens: 200, TTFT: time.Second, TPOT: 100 * time.Millisecond, TightTTFT: time.Second, TightTPOT: 100 * time.Millisecond}
}

func (s *source) Mesh(string) scaling.Mesh {
	p := scaling.Pool{Workers: 1 + s.more, Known: true, Step: latency.Model{BaseMs: 20, PerTokenMs: 0.1, PerContextTokenMs: 0.0006}, StepTokens: 2048, Sequences: 64}
	return scaling.Mesh{Pools: scaling.Pools[scaling.Pool]{Prefill: p, Decode: p}}
}

var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// newSizes are those of router-1, beside the routers of these ids.
func newSizes(t *testing.T, s *source, registry prometheus.Registerer, others ...string) *scalingdriver.Sizes {
	t.Helper()
	config := scaling.DefaultConfig()
	sizes, err := scalingdriver.New(config, "router-1", []string{"m"}, s, registry)
	if err != nil {
		t.Fatal(err)
	}
	records := []*controlv1.WorkerRecord{{Id: "router-1", Role: controlv1.Role_ROLE_ROUTER, Epoch: 1}, {Id: "decode-1", Role: controlv1.Role_ROLE_DECODE, Epoch: 1}}
	for _, id := range others {
		records = append(records, &controlv1.WorkerRecord{Id: id, Role: controlv1.Role_ROLE_ROUTER, Epoch: 7})
	}
	sizes.TakeView(membership.View{Workers: records, AsOf: began})
	sizes.Evaluate(began.Add(-scalingdriver.Every)) // from now on there is a view
	return sizes
}

// total is how many workers are desired in all.
func total(t *testing.T, sizes *scalingdriver.Sizes) int {
	t.Helper()
	of, known := sizes.Of("m")
	if !known {
		t.Fatal("nothing is computed")
	}
	return of.Prefill.Desired + of.Decode.Desired
}

// said is what another router says.
func said(id string, epoch uint64, model string, rate float64) *controlv1.QueueReport {
	return &controlv1.QueueReport{Origin: &controlv1.Origin{Id: id, Epoch: epoch, Sequence: 1}, Model: model, Demand: &controlv1.Demand{
		RequestsPerSecond: rate, GapScv: 1, PromptTokens: 1000, ContextTokens: 1000, OutputTokens: 200, TtftMs: 1000, TpotMs: 100, TightTtftMs: 900, TightTpotMs: 90,
	}}
}

// What several routers get counts together: two that get half each desire what one that gets all
// does.
func TestSeveralRouters(t *testing.T) {
	alone := newSizes(t, &source{rate: 40}, nil)
	alone.Evaluate(began)
	both := newSizes(t, &source{rate: 20}, nil, "router-2")
	both.Take(began, said("router-2", 7, "m", 20))
	both.Evaluate(began)
	if a, b := total(t, alone), total(t, both); a != b || a < 10 {
		t.Errorf("one router desires %d workers, two together %d", a, b)
	}
}

// A router that starts says nothing until it has had time to connect to the workers in etcd: it
// would desire the lower bound, however many serve.
func TestStart(t *testing.T) {
	registry := prometheus.NewRegistry()
	mesh := &source{more: -1}
	sizes, err := scalingdriver.New(scaling.DefaultConfig(), "router-1", []string{"m"}, mesh, registry)
	if err != nil {
		t.Fatal(err)
	}
	silent := func(when string) {
		t.Helper()
		n, err := testutil.GatherAndCount(registry, "tandem_router_desired_workers")
		if _, known := sizes.Of("m"); known || n != 0 || err != nil {
			t.Errorf("%s: it is computed: %v; %d series; %v", when, known, n, err)
		}
	}
	now := began.Add(time.Minute)
	sizes.Evaluate(began)
	sizes.Evaluate(now)
	silent("without a view")
	sizes.TakeView(membership.View{})
	sizes.Evaluate(now)
	sizes.Evaluate(now.Add(scalingdriver.Every))
	silent("before etcd has answered")
	sizes.TakeView(membership.View{AsOf: now})
	sizes.Evaluate(now)
	sizes.Evaluate(now.Add(scalingdriver.Every - time.Millisecond))
	silent("just after the first view")
	mesh.more = 2
	sizes.Evaluate(now.Add(scalingdriver.Every))
	if n := total(t, sizes); n != 6 {
		t.Errorf("%d workers desired of 6 that there are, before anything is known of the load", n)
	}
	if n, err := testutil.GatherAndCount(registry, "tandem_router_desired_workers"); n != 2 || err != nil {
		t.Errorf("%d series; %v", n, err)
	}
}

// What nobody in etcd says, or what can be of no router, counts for nothing.
func TestStrangers(t *testing.T) {
	quiet := newSizes(t, &source{rate: 5}, nil, "router-2")
	quiet.Take(began, said("router-2", 7, "m", 0))
	quiet.Evaluate(began)
	want := total(t, quiet)
	for _, report := range []*controlv1.QueueReport{
		said("router-9", 7, "m", 1000), said("router-1", 1, "m", 1000), said("decode-1", 1, "m", 1000),
		said("router-2", 8, "m", 1000), said("router-2", 7, "another", 1000),
		said("router-2", 7, "m", math.NaN()), said("router-2", 7, "m", math.Inf(1)), said("router-2", 7, "m", -1e9), said("router-2", 7, "m", 1e300),
		{Origin: &controlv1.Origin{Id: "router-2", Epoch: 7}, Model: "m"},
	} {
		sizes := newSizes(t, &source{rate: 5}, nil, "router-2")
		sizes.Take(began, report)
		sizes.Evaluate(began)
		if got := total(t, sizes); got != want {
			t.Errorf("after %v: %d workers, want %d", report, got, want)
		}
	}
}

// While another router is silent, nothing shrinks: what it gets may be most.
func TestSilentRouter(t *testing.T) {
	load := &source{rate: 40}
	sizes := newSizes(t, load, nil, "router-2")
	sizes.Evaluate(began)
	before := total(t, sizes)
	load.rate = 1
	now := began
	for range 200 {
		now = now.Add(scalingdriver.Every)
		sizes.Evaluate(now)
	}
	of, _ := sizes.Of("m")
	if got := total(t, sizes); got != before || !strings.Contains(of.Decode.Reason, "not all routers say") {
		t.Errorf("%d workers after %d: %s", got, before, of.Decode.Reason)
	}
	for range 200 {
		now = now.Add(scalingdriver.Every)
		sizes.Take(now, said("router-2", 7, "m", 0))
		sizes.Evaluate(now)
	}
	if got := total(t, sizes); got >= before {
		t.Errorf("%d workers, and %d at forty times the load", got, before)
	}
}

// A router of another model says nothing of this one, and nobody waits for it.
func TestRouterOfAnotherModel(t *testing.T) {
	load := &source{rate: 40}
	sizes := newSizes(t, load, nil)
	sizes.TakeView(membership.View{Workers: []*controlv1.WorkerRecord{{Id: "router-2", Role: controlv1.Role_ROLE_ROUTER, Epoch: 7, Model: "another"}}})
	sizes.Evaluate(began)
	before := total(t, sizes)
	load.rate = 1
	for i := range 200 {
		sizes.Evaluate(began.Add(time.Duration(i+1) * scalingdriver.Every))
	}
	if got := total(t, sizes); got >= before {
		t.Errorf("%d workers, and %d at forty times the load", got, before)
	}
}

// The metric has what the API and the report have.
func TestShown(t *testing.T) {
	registry := prometheus.NewRegistry()
	sizes := newSizes(t, &source{rate: 40}, registry)
	if n := len(sizes.Pools(controlv1.Role_ROLE_UNSPECIFIED)); n != 0 {
		t.Errorf("%d pools before anything is computed", n)
	}
	sizes.Evaluate(began)
	report := &controlv1.QueueReport{Model: "m"}
	sizes.Report(report)
	if d := report.GetDemand(); d.GetRequestsPerSecond() != 40 || d.GetTtftMs() != 1000 || d.GetTpotMs() != 100 || d.GetTightTtftMs() != 1000 || d.GetTightTpotMs() != 100 {
		t.Errorf("it says %v", d)
	}
	pools := sizes.Pools(controlv1.Role_ROLE_DECODE)
	if len(pools) != 1 || len(report.GetPools()) != 2 || report.GetPools()[1].GetDesired() != pools[0].GetDesired() || pools[0].GetWorkers() != 1 || pools[0].GetReason() == "" {
		t.Fatalf("%v and %v", report.GetPools(), pools)
	}
	want := fmt.Sprintf(`
# HELP tandem_router_desired_workers Workers that the pool should have, by the load of all routers. Absent until it is computed.
# TYPE tandem_router_desired_workers gauge
tandem_router_desired_workers{model="m",pool="decode"} %d
tandem_router_desired_workers{model="m",pool="prefill"} %d
`, pools[0].GetDesired(), report.GetPools()[0].GetDesired())
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tandem_router_desired_workers"); err != nil {
		t.Error(err)
	}
}

// TestQueues checks what operators see of the queues: those of routers in etcd that report.
func TestQueues(t *testing.T) {
	sizes := newSizes(t, &source{rate: 5}, nil, "router-2", "router-3", "router-4")
	sizes.Take(began, said("router-4", 7, "m", 1))
	now := began.Add(6 * time.Second) // that report is old by then
	report := said("router-2", 7, "m", 2)
	report.Pools, report.Demand.TtftMs = []*controlv1.PoolSize{{Desired: 9}}, math.NaN()
	report.Queues = make([]*controlv1.QueueDepth, 1000)
	for i := range report.Queues {
		report.Queues[i] = &controlv1.QueueDepth{Priority: int32(i), Requests: 1}
	}
	sizes.Take(now, report)
	sizes.Take(now, said("router-9", 7, "m", 3))
	queues := sizes.Queues(now, map[string][]*controlv1.QueueDepth{"m": {{Requests: 4}}})
	if len(queues) != 2 {
		t.Fatalf("%d reports: %v", len(queues), queues)
	}
	if own := queues[0]; own.GetOrigin().GetId() != "router-1" || own.GetModel() != "m" || own.GetQueues()[0].GetRequests() != 4 || own.GetDemand().GetRequestsPerSecond() != 5 {
		t.Errorf("of itself: %v", own)
	}
	if other := queues[1]; other.GetOrigin().GetId() != "router-2" || other.GetPools() != nil || len(other.GetQueues()) != 64 || other.GetDemand().GetRequestsPerSecond() != 2 || other.GetDemand().GetTtftMs() != 0 || other.GetDemand().GetTightTtftMs() != 900 || other.GetDemand().GetTightTpotMs() != 90 {
		t.Errorf("of another: %v", other)
	}
}
