// Package scalingdriver drives pkg/scaling: it computes how many workers each pool should have
// from the load of all routers, and tells operators, other routers and autoscalers.
//
// The router imports it. It starts no goroutine: its owner calls Evaluate. Its methods are
// safe for concurrent use.
package scalingdriver

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

const (
	// Every is the interval between two computations of sizes, and how long the router has to
	// connect to workers before the first: the scaler begins with those that there are.
	Every = 5 * time.Second
	// fresh is how long a report of another router counts. Routers report every second.
	fresh = 5 * time.Second
	// mostRouters bounds the other routers whose reports count.
	mostRouters = 64
	// mostDepths bounds what is kept of the queues in a report, for operators.
	mostDepths = 64
)

// Source tells what this router knows.
type Source interface {
	// Demand is the load that requests for a model bring to this router.
	Demand(model string) scaling.Demand
	// Mesh is the capacity of a model's workers.
	Mesh(model string) scaling.Mesh
}

// Sizes are the desired sizes.
type Sizes struct {
	self    string
	source  Source
	desired *prometheus.GaugeVec // by model and pool

	mu     sync.Mutex
	models []*model
	viewed bool              // there was a view of membership
	due    time.Time         // zero until Evaluate has been called since
	others map[string]uint64 // epochs of the other routers in etcd that serve one of models, by id
}

// model is a model with its last sizes.
type model struct {
	name   string
	scaler *scaling.Scaler
	sizes  *scaling.Sizes // nil before the first computation
	told   map[string]told
}

// told is the last report of another router.
type told struct {
	epoch  uint64
	at     time.Time
	demand scaling.Demand
	report *controlv1.QueueReport // without Pools
}

// New returns the sizes of models, for the router with the id self. With a nil registerer they
// are not exported as metrics.
func New(config scaling.Config, self string, models []string, source Source, registerer prometheus.Registerer) (*Sizes, error) {
	s := &Sizes{
		self: self, source: source, others: make(map[string]uint64),
		desired: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_router_desired_workers", Help: "Workers that the pool should have, by the load of all routers. Absent until it is computed."}, []string{"model", "pool"}),
	}
	for _, name := range models {
		s.models = append(s.models, &model{name: name, scaler: scaling.New(config), told: make(map[string]told)})
	}
	set := metricset.New(registerer)
	set.Add(s.desired)
	return s, set.Err()
}

// TakeView updates the list of routers. Those that say that they serve none of the models do not
// count. A view that etcd has never confirmed does not make the list known.
func (s *Sizes) TakeView(v membership.View) {
	others := make(map[string]uint64)
	for _, r := range v.Workers {
		ours := r.GetModel() == "" || slices.ContainsFunc(s.models, func(m *model) bool { return m.name == r.GetModel() })
		if ours && r.GetRole() == controlv1.Role_ROLE_ROUTER && r.GetId() != s.self && len(others) < mostRouters {
			others[r.GetId()] = r.GetEpoch()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.others, s.viewed = others, s.viewed || v.Live || !v.AsOf.IsZero()
}

// Take takes another router's report of its requests. It ignores reports of routers that are not
// in etcd.
func (s *Sizes) Take(now time.Time, report *controlv1.QueueReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	origin := report.GetOrigin()
	i := slices.IndexFunc(s.models, func(m *model) bool { return m.name == report.GetModel() })
	if epoch, known := s.others[origin.GetId()]; i < 0 || report.GetDemand() == nil || !known || epoch != origin.GetEpoch() {
		return
	}
	demand := demandOf(report)
	report.Pools, report.Demand, report.Queues = nil, demandMessage(demand), slices.Clone(report.GetQueues()[:min(len(report.GetQueues()), mostDepths)])
	s.models[i].told[origin.GetId()] = told{origin.GetEpoch(), now, demand, report}
}

// Evaluate computes the sizes if it is time: not before the router has had Every to connect to the
// workers of its first view.
func (s *Sizes) Evaluate(now time.Time) {
	s.mu.Lock()
	due := s.viewed && !now.Before(s.due)
	first := s.due.IsZero()
	if due {
		s.due = now.Add(Every)
	}
	s.mu.Unlock()
	if !due || first {
		return
	}
	for _, m := range s.models {
		demand, mesh := s.source.Demand(m.name), s.source.Mesh(m.name) // before mu: both take the dispatcher's lock
		s.mu.Lock()
		sizes := m.scaler.Evaluate(now, scaling.Sum(append(s.heard(now, m), demand)...), mesh)
		m.sizes = &sizes
		s.mu.Unlock()
		s.desired.WithLabelValues(m.name, api.Name(controlv1.Role_ROLE_PREFILL)).Set(float64(sizes.Prefill.Desired))
		s.desired.WithLabelValues(m.name, api.Name(controlv1.Role_ROLE_DECODE)).Set(float64(sizes.Decode.Desired))
	}
}

// heard returns the recent reports of the other routers in etcd. The result is Partial if one of
// them has not reported. The caller holds mu.
func (s *Sizes) heard(now time.Time, m *model) (demands []scaling.Demand) {
	for id := range m.told {
		if _, is := s.others[id]; !is {
			delete(m.told, id)
		}
	}
	for id, epoch := range s.others {
		t, is := m.told[id]
		if !is || t.epoch != epoch || now.Sub(t.at) > fresh {
			t.demand = scaling.Demand{Partial: true}
		}
		demands = append(demands, t.demand)
	}
	return demands
}

// Of returns the sizes of a model; false before they are computed.
func (s *Sizes) Of(name string) (scaling.Sizes, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.models {
		if m.name == name && m.sizes != nil {
			return *m.sizes, true
		}
	}
	return scaling.Sizes{}, false
}

// Pools returns the sizes of a role's pools, or of both roles if it is unspecified.
func (s *Sizes) Pools(role controlv1.Role) (out []*controlv1.PoolSize) {
	for _, m := range s.models {
		out = append(out, s.pools(m.name, role)...)
	}
	return out
}

func (s *Sizes) pools(name string, role controlv1.Role) (out []*controlv1.PoolSize) {
	sizes, known := s.Of(name)
	if !known {
		return nil
	}
	mesh := s.source.Mesh(name) // workers may have come and gone since
	for _, of := range []struct {
		role    controlv1.Role
		workers int
		scaling.Size
	}{{controlv1.Role_ROLE_PREFILL, mesh.Prefill.Workers, sizes.Prefill}, {controlv1.Role_ROLE_DECODE, mesh.Decode.Workers, sizes.Decode}} {
		if role == controlv1.Role_ROLE_UNSPECIFIED || role == of.role {
			out = append(out, &controlv1.PoolSize{Pool: of.role, Model: name, Workers: uint32(of.workers), Desired: uint32(of.Desired), Reason: of.Reason})
		}
	}
	return out
}

// Report adds the demand and the sizes to a report of this router's queue.
func (s *Sizes) Report(report *controlv1.QueueReport) {
	report.Demand = demandMessage(s.source.Demand(report.GetModel()))
	report.Pools = s.pools(report.GetModel(), controlv1.Role_ROLE_UNSPECIFIED)
}

func demandMessage(d scaling.Demand) *controlv1.Demand {
	return &controlv1.Demand{
		RequestsPerSecond: d.RequestsPerSecond, GapScv: d.GapSCV, PromptTokens: d.PromptTokens, PromptScv: d.PromptSCV,
		ContextTokens: d.ContextTokens, OutputTokens: d.OutputTokens, TtftMs: d.TTFT.Seconds() * 1000, TpotMs: d.TPOT.Seconds() * 1000,
		TightTtftMs: d.TightTTFT.Seconds() * 1000, TightTpotMs: d.TightTPOT.Seconds() * 1000,
	}
}

// Queues are the reports of all routers for operators, this router's first and then by id. own is
// what waits here, by model. The reports are not to be changed.
func (s *Sizes) Queues(now time.Time, own map[string][]*controlv1.QueueDepth) (out []*controlv1.QueueReport) {
	for _, m := range s.models {
		out = append(out, &controlv1.QueueReport{Origin: &controlv1.Origin{Id: s.self}, Model: m.name, Queues: own[m.name], Demand: demandMessage(s.source.Demand(m.name))})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.others)) {
		for _, m := range s.models {
			if t, is := m.told[id]; is && t.epoch == s.others[id] && now.Sub(t.at) <= fresh {
				out = append(out, t.report)
			}
		}
	}
	return out
}

// demandOf reads the demand of a report. Impossible values count as 0.
func demandOf(report *controlv1.QueueReport) scaling.Demand {
	d := report.GetDemand()
	within := func(v, most float64) float64 {
		if !(v >= 0 && v <= most) {
			return 0
		}
		return v
	}
	ms := func(v float64) time.Duration { return time.Duration(within(v, 1e9) * float64(time.Millisecond)) }
	out := scaling.Demand{
		RequestsPerSecond: within(d.GetRequestsPerSecond(), 1e7), GapSCV: within(d.GetGapScv(), 1e3),
		PromptTokens: within(d.GetPromptTokens(), 1e8), PromptSCV: within(d.GetPromptScv(), 1e3),
		ContextTokens: within(d.GetContextTokens(), 1e8), OutputTokens: within(d.GetOutputTokens(), 1e8),
		TTFT: ms(d.GetTtftMs()), TPOT: ms(d.GetTpotMs()),
		TightTTFT: ms(d.GetTightTtftMs()), TightTPOT: ms(d.GetTightTpotMs()),
	}
	for _, q := range report.GetQueues() {
		out.Waiting += float64(q.GetRequests())
		out.WaitingTokens += within(float64(q.GetTokens()), 1e12)
	}
	return out
}
