package routingdriver

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/eventlog"
	"github.com/tandem-serving/tandem/pkg/eventlog/routerlog"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/scaling"
	"github.com/tandem-serving/tandem/pkg/telemetry/logthrottle"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
	"github.com/tandem-serving/tandem/services/router/workers"
)

// Dispatcher drives the routing core: it serializes events and carries out actions, none of
// which blocks.
type Dispatcher struct {
	log      *slog.Logger
	pool     *workers.Pool
	announce func(model, digest, class string) // nil: not called
	tell     Publisher                         // nil: nothing is published
	models   []string
	reported map[string]reported // by model; only the goroutine that reports uses it

	suspicions, distrusts *prometheus.CounterVec

	loop *coreloop.Loop[*routing.Router, routing.Event, routing.Action]

	// Guarded by loop.
	lost    logthrottle.Throttle // of log lines about broken paths
	policy  Policy
	foreign logthrottle.Throttle // of log lines about workers of other versions
	reports logthrottle.Throttle // of log lines about distrusted reports
	asking  map[string]asker
	changed chan struct{} // closed at the next change of workers or policy
	view    routing.ViewChanged
}

// asker is a request that waits for workers. Its channel holds one answer.
type asker struct {
	attempt int
	answers chan<- joining.Event
}

// Deps are the parts that a Dispatcher uses; router.Deps explains them.
type Deps struct {
	Dial           func(address string) (*grpc.ClientConn, error)
	ConnectTimeout time.Duration // for each address of a worker
	Rand           routing.Rand
	Log            *eventlog.Log                     // nil: nothing is recorded
	Announce       func(model, digest, class string) // nil: not called
	Publisher      Publisher                         // nil: nothing is published
	Registerer     prometheus.Registerer             // nil: metrics are not exported
	Logger         *slog.Logger
}

// New returns a dispatcher that knows no workers.
func New(config routing.Config, deps Deps) (*Dispatcher, error) {
	d := &Dispatcher{
		log:      deps.Logger,
		announce: deps.Announce,
		tell:     deps.Publisher,
		lost:     logthrottle.Throttle{Every: logEvery},
		foreign:  logthrottle.Throttle{Every: logEvery, Burst: foreignBurst},
		reports:  logthrottle.Throttle{Every: logEvery, Burst: foreignBurst},
		asking:   make(map[string]asker),
		changed:  make(chan struct{}),
		reported: make(map[string]reported),
	}
	core, recorder := routerlog.NewRouting(deps.Log, config, deps.Rand)
	d.loop = coreloop.New(core, d.apply)
	if recorder != nil {
		d.loop.Now, d.loop.Recorder = deps.Log.Now, recorder
	}
	for _, m := range config.Models {
		d.models = append(d.models, m.Name)
	}
	d.pool = workers.NewPool(deps.Dial, deps.ConnectTimeout, d.heard, deps.Logger)
	if err := d.show(metricset.New(deps.Registerer)); err != nil {
		return nil, err
	}
	return d, nil
}

// Handle gives the core an event.
func (d *Dispatcher) Handle(event routing.Event) {
	d.loop.Lock()
	defer d.loop.Unlock()
	d.step(event)
}

// heard is Handle for what the pool says, but for what came late: the core has forgotten the worker
// meanwhile, and may have asked for it again.
func (d *Dispatcher) heard(event routing.Event) {
	d.loop.Lock()
	defer d.loop.Unlock()
	switch e := event.(type) {
	case routing.Connected:
		if d.pool.Connection(e.Worker) != e.Connection {
			return
		}
	case routing.Disconnected:
		if d.pool.Connection(e.Worker) != 0 {
			return
		}
	}
	d.step(event)
}

// step is Handle under the lock.
func (d *Dispatcher) step(event routing.Event) {
	d.loop.Step(event)
	if view, is := event.(routing.ViewChanged); is {
		d.view = view
	}
	switch event.(type) {
	case routing.ViewChanged, routing.Connected, routing.ConnectFailed, routing.Disconnected, routing.LoadReported, routing.PolicyChanged, routing.Tick:
		close(d.changed)
		d.changed = make(chan struct{})
	}
}

// apply carries out the core's actions.
func (d *Dispatcher) apply(began time.Time, actions []routing.Action) {
	for _, action := range actions {
		switch a := action.(type) {
		case routing.Connect:
			d.pool.Add(a.Worker, a.Record.GetRole(), a.Record.GetAddresses())
		case routing.Forget:
			d.pool.Remove(a.Worker)
		case routing.DuplicateID:
			d.log.Warn("two workers have the same id and only one is used: give each its own id",
				slog.String("worker", a.ID), slog.String("role", a.Roles[0].String()), slog.String("other_role", a.Roles[1].String()))
		case routing.TooManyWorkers:
			d.log.Error("too many workers in etcd, and new ones may be ignored: delete the records of workers that no longer exist",
				slog.Int("ignored", a.Ignored))
		case routing.ListBlocks:
			d.pool.ListBlocks(a.Worker)
		case routing.PathLost:
			d.lost.Warn(d.log, began, "kv cannot be sent from a prefill worker to a decode worker, and the two are not paired for a while: check that the --kv-advertise of the decode worker is reachable and that both allow a common --kv-transport",
				slog.String("worker", a.Prefill.ID), slog.String("decode_worker", a.Decode.ID), slog.Duration("wait", a.Wait), slog.String("error", a.Why))
		case routing.Tell:
			if d.tell != nil {
				d.tell.Router(a.Report)
			}
		case routing.Distrusted:
			d.distrusted(began, a)
		case routing.Pinned:
			d.pinned(a)
		case routing.Disagree:
			d.disagree(a)
		case routing.Foreign:
			d.excluded(began, a)
		case routing.Suspected:
			cause := "contradicted"
			message := "worker is suspected and gets requests only if there is no other: check it"
			switch {
			case a.Silent:
				cause = "silent"
			case a.Slow:
				cause, message = "slow", "worker is slower than it reports and gets fewer requests, or only trials: check what its process, device or network waits for"
			}
			d.suspicions.WithLabelValues(cause).Inc()
			d.log.Warn(message,
				slog.String("worker", a.Worker.ID), slog.String("error", a.Why), slog.Duration("wait", a.Wait))
		case routing.Dispatch:
			d.answer(a.ID, func(attempt int) joining.Event {
				return joining.Dispatched{Attempt: attempt, Began: began, Dispatch: a}
			})
		case routing.Refuse:
			d.answer(a.ID, func(attempt int) joining.Event {
				return joining.Refused{Attempt: attempt, Err: &a.Refusal, Decision: a.Decision}
			})
		}
	}
}

func (d *Dispatcher) answer(id string, make func(attempt int) joining.Event) {
	if a, ok := d.asking[id]; ok {
		delete(d.asking, id)
		a.answers <- make(a.attempt) // never blocks: the channel has space for the one answer
	}
}

// Ask queues a request with a prompt. The answer, Dispatched or Refused, comes on answers,
// which holds one.
func (d *Dispatcher) Ask(r routing.Request, tokens []int32, salt string, answers chan<- joining.Event) {
	d.hash(&r, tokens, salt)
	d.loop.Lock()
	defer d.loop.Unlock()
	d.asking[r.ID] = asker{r.Attempt, answers}
	d.step(routing.Arrived{Request: r})
}

// Hedge asks for the workers of a hedged attempt, and returns the answer, Dispatched or Refused.
func (d *Dispatcher) Hedge(h routing.Hedge, tokens []int32, salt string) joining.Event {
	d.hash(&h.Request, tokens, salt)
	answers := make(chan joining.Event, 1)
	d.loop.Lock()
	defer d.loop.Unlock()
	d.asking[h.Request.ID] = asker{h.Request.Attempt, answers}
	d.step(h)
	select {
	case answer := <-answers:
		return answer
	default: // the policy answers at once
		delete(d.asking, h.Request.ID)
		return joining.Refused{Attempt: h.Request.Attempt, Err: &routing.Refusal{Code: codes.Internal, Reason: routing.HedgeNoCapacity}}
	}
}

// hash hashes the blocks of a prompt. It does so before it takes the lock, which all requests
// share.
func (d *Dispatcher) hash(r *routing.Request, tokens []int32, salt string) {
	r.SetHashes(look(d, func(rt *routing.Router) []routing.BlockKey { return rt.BlockKeys(r.Model, r.Version) }), salt, tokens)
}

// BlockTokens is the smallest block size of a model's workers; 0 without workers.
func (d *Dispatcher) BlockTokens(model string) (least int) {
	for _, key := range look(d, func(rt *routing.Router) []routing.BlockKey { return rt.BlockKeys(model, routing.Version{}) }) {
		if least == 0 || key.BlockTokens < least {
			least = key.BlockTokens
		}
	}
	return least
}

// Served returns the versions of a model that serve requests.
func (d *Dispatcher) Served(model string) []routing.Version {
	return look(d, func(rt *routing.Router) []routing.Version { return rt.Served(model) })
}

// Withdraw takes an ask back. If it was answered meanwhile, its workers are free again.
func (d *Dispatcher) Withdraw(id string) {
	d.loop.Lock()
	defer d.loop.Unlock()
	delete(d.asking, id)
	d.step(routing.Cancelled{ID: id})
	d.step(routing.Ended{ID: id})
}

// look reads the core's state.
func look[T any](d *Dispatcher, read func(*routing.Router) T) T {
	d.loop.Lock()
	defer d.loop.Unlock()
	return read(d.loop.Core)
}

// Workers returns the workers as operators see them; changed is closed at the next change.
func (d *Dispatcher) Workers(role controlv1.Role) (views []*controlv1.WorkerView, changed <-chan struct{}) {
	d.loop.Lock()
	defer d.loop.Unlock()
	for _, v := range d.loop.Core.Workers(d.loop.Now()) {
		if role == controlv1.Role_ROLE_UNSPECIFIED || role == v.GetRecord().GetRole() {
			views = append(views, v)
		}
	}
	return views, d.changed
}

// Unserved returns why no request can be served now; empty if one can.
func (d *Dispatcher) Unserved() string { return look(d, (*routing.Router).Unserved) }

// Disaggregated reports whether the policy gives every request to two workers.
func (d *Dispatcher) Disaggregated() bool { return look(d, (*routing.Router).Disaggregated) }

// Acquire returns a worker's connection, its number, and a function that gives it back. With an
// error the number is that of the worker's last connection.
func (d *Dispatcher) Acquire(worker routing.Ref) (conn *grpc.ClientConn, number uint64, release func(), err error) {
	return d.pool.Acquire(worker)
}

// Progressed is when a worker last showed that it computes; zero if never.
func (d *Dispatcher) Progressed(worker routing.Ref) time.Time {
	return look(d, func(rt *routing.Router) time.Time { return rt.Progressed(worker) })
}

// Left returns the record of a worker that drained and left; nil without one.
func (d *Dispatcher) Left(id string) *controlv1.WorkerRecord {
	return look(d, func(rt *routing.Router) *controlv1.WorkerRecord { return rt.Left(id) })
}

// Undrained follows when a worker said that it takes requests again. Its record counts as listed
// at once, since etcd lists it later, or not at all while it does not answer.
func (d *Dispatcher) Undrained(record *controlv1.WorkerRecord) {
	d.loop.Lock()
	defer d.loop.Unlock()
	others := slices.Clip(slices.DeleteFunc(slices.Clone(d.view.Workers), func(r *controlv1.WorkerRecord) bool {
		return r.GetId() == record.GetId() && r.GetRole() == record.GetRole()
	}))
	list := func(state controlv1.WorkerState) {
		record = proto.CloneOf(record)
		record.State = state
		d.step(routing.ViewChanged{Workers: append(others, record), Live: d.view.Live})
	}
	if record.GetState() != controlv1.WorkerState_WORKER_STATE_SERVING {
		list(controlv1.WorkerState_WORKER_STATE_DRAINING) // else the next one might be from before the drain
	}
	list(controlv1.WorkerState_WORKER_STATE_SERVING)
}

// Queued returns the waiting requests, by model.
func (d *Dispatcher) Queued() map[string][]*controlv1.QueueDepth {
	return look(d, func(rt *routing.Router) map[string][]*controlv1.QueueDepth { return rt.Queued(d.loop.Now()) })
}

// Demand is the load that requests for a model bring to this router.
func (d *Dispatcher) Demand(model string) scaling.Demand {
	return look(d, func(rt *routing.Router) scaling.Demand { return rt.Demand(d.loop.Now(), model) })
}

// Mesh is the capacity of a model's workers.
func (d *Dispatcher) Mesh(model string) scaling.Mesh {
	return look(d, func(rt *routing.Router) scaling.Mesh { return rt.Mesh(model) })
}

// TenantLimit is the largest number of requests of one tenant.
func (d *Dispatcher) TenantLimit() int { return look(d, (*routing.Router).TenantLimit) }

// Close closes the connections to all workers and waits for their goroutines.
func (d *Dispatcher) Close() { d.pool.Close() }

// RunTimers sends Tick whenever the core asks for it, until ctx ends.
func (d *Dispatcher) RunTimers(ctx context.Context) {
	d.loop.Run(ctx.Done(), func() { d.Handle(routing.Tick{}) })
}

// Policy is the policy as operators set it.
type Policy struct {
	*controlv1.Policy // nil without one
	// Revision of it in etcd; 0: there is none.
	Revision int64
}

// SetPolicy replaces the policy.
func (d *Dispatcher) SetPolicy(policy *controlv1.Policy, revision int64) {
	d.loop.Lock()
	defer d.loop.Unlock()
	d.policy = Policy{policy, revision}
	d.step(routing.PolicyChanged{Policy: policy})
}

// Policies returns the policy as operators set it, never nil, and the versions of all models in
// force; changed is closed at the next change.
func (d *Dispatcher) Policies() (set Policy, versions []*controlv1.ModelVersion, changed <-chan struct{}) {
	d.loop.Lock()
	defer d.loop.Unlock()
	set = Policy{proto.CloneOf(cmp.Or(d.policy.Policy, &controlv1.Policy{})), d.policy.Revision}
	return set, d.loop.Core.Versions(), d.changed
}
