package router

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// dispatcher drives the policy: it serializes events and carries out actions,
// none of which blocks.
type dispatcher struct {
	log     *slog.Logger
	metrics *metrics
	pool    *pool

	mu      sync.Mutex
	fleet   *fleet.Fleet
	lost    complaints // of paths
	asking  map[string]asker
	changed chan struct{} // closed at the next change of workers
	wake    chan struct{} // the timer has to be set anew
}

// asker is a request that waits for workers. Its channel holds one answer.
type asker struct {
	attempt int
	answers chan<- answer
}

// answer is what the policy says to a request.
type answer struct {
	modelDigest string // of the workers
	event       joining.Event
	decision    *controlv1.Decision
	fallback    bool
}

func newDispatcher(f *fleet.Fleet, m *metrics, log *slog.Logger) *dispatcher {
	return &dispatcher{
		log:     log,
		metrics: m,
		fleet:   f,
		asking:  make(map[string]asker),
		changed: make(chan struct{}),
		wake:    make(chan struct{}, 1),
	}
}

// handle takes in an event.
func (d *dispatcher) handle(event fleet.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handleLocked(event)
}

func (d *dispatcher) handleLocked(event fleet.Event) {
	began := time.Now()
	for _, action := range d.fleet.Handle(began, event) {
		switch a := action.(type) {
		case fleet.Connect:
			d.pool.add(a.Worker, a.Record.GetAddresses())
		case fleet.Forget:
			d.pool.remove(a.Worker)
		case fleet.Doubled:
			d.log.Warn("two workers have one id and only one is used: give the other another id",
				slog.String("worker", a.ID), slog.String("role", a.Roles[0].String()), slog.String("other_role", a.Roles[1].String()))
		case fleet.ListBlocks:
			d.pool.listBlocks(a.Worker)
		case fleet.PathLost:
			if unsaid, due := d.lost.due(began); due {
				d.log.Warn("kv does not get from a prefill worker to a decode worker, and the two are not paired for a while: see that the --kv-advertise of the decode worker leads there and that their --kv-transport have one in common",
					slog.String("worker", a.Prefill.ID), slog.String("decode_worker", a.Decode.ID), slog.Duration("wait", a.Wait), slog.String("error", a.Why), slog.Int("unsaid", unsaid))
			}
		case fleet.Dispatch:
			d.answer(a.ID, func(attempt int) answer {
				return answer{decision: a.Decision, fallback: a.Fallback, modelDigest: a.ModelDigest, event: joining.Dispatched{
					Attempt: attempt, Began: began, Mode: a.Decision.GetMode(),
					Decode: a.Decode, Prefill: a.Prefill, Source: a.Source, Reason: a.Decision.GetReason(), Lineage: a.Lineage,
				}}
			})
		case fleet.Refuse:
			refusal := a.Refusal
			d.answer(a.ID, func(attempt int) answer {
				return answer{event: joining.Refused{Attempt: attempt, Err: &refusal}}
			})
		}
	}
	switch event.(type) {
	case fleet.ViewChanged, fleet.Connected, fleet.Disconnected, fleet.LoadReported, fleet.Tick:
		close(d.changed)
		d.changed = make(chan struct{})
	}
	d.metrics.depth(d.fleet.Waiting(), d.fleet.Running(), d.fleet.BrokenPaths())
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

func (d *dispatcher) answer(id string, make func(attempt int) answer) {
	if a, ok := d.asking[id]; ok {
		delete(d.asking, id)
		a.answers <- make(a.attempt) // one answer for each ask, and room for it
	}
}

// ask queues a request. The answer comes on answers, which has room for one.
func (d *dispatcher) ask(r fleet.Request, answers chan<- answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asking[r.ID] = asker{r.Attempt, answers}
	d.handleLocked(fleet.Arrived{Request: r})
}

// withdraw takes an ask back. If the answer was given meanwhile, what was set
// aside goes back too.
func (d *dispatcher) withdraw(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.asking, id)
	d.handleLocked(fleet.Cancelled{ID: id})
	d.handleLocked(fleet.Ended{ID: id})
}

// workers is the fleet as operators see it; changed is closed when it differs.
func (d *dispatcher) workers(role controlv1.Role) (views []*controlv1.WorkerView, changed <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, v := range d.fleet.Workers(time.Now()) {
		if role == controlv1.Role_ROLE_UNSPECIFIED || role == v.Record.GetRole() {
			views = append(views, toWorkerView(v))
		}
	}
	return views, d.changed
}

// queued is what waits, by model.
func (d *dispatcher) queued() map[string][]*controlv1.QueueDepth {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fleet.Queued(time.Now())
}

// tenantLimit is how many requests one tenant may have.
func (d *dispatcher) tenantLimit() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.fleet.TenantLimit()
}

// runTimers sends Tick when the policy asks for it, until ctx ends.
func (d *dispatcher) runTimers(ctx context.Context) {
	for {
		d.mu.Lock()
		next, ok := d.fleet.Next()
		d.mu.Unlock()
		var due <-chan time.Time
		var timer *time.Timer
		if ok {
			timer = time.NewTimer(time.Until(next))
			due = timer.C
		}
		select {
		case <-ctx.Done():
		case <-d.wake:
		case <-due:
			d.handle(fleet.Tick{})
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// setPolicy takes in a policy and returns what is now in force.
func (d *dispatcher) setPolicy(policy *controlv1.Policy, config Config) *controlv1.Policy {
	d.handle(fleet.PolicyChanged{Policy: policy})
	force := &controlv1.Policy{
		DisaggregateMinTokens: proto.Uint32(uint32(config.DisaggregateMinTokens)),
		TenantMaxRequests:     proto.Uint32(uint32(config.TenantMaxRequests)),
	}
	proto.Merge(force, policy)
	return force
}

// complainEvery is how often at most the same thing is complained of.
const complainEvery = 10 * time.Second

// complaints spaces out what would be said too often.
type complaints struct {
	last   time.Time
	unsaid int // since
}

// due reports whether it is time to say it, and how often it was not said before.
func (c *complaints) due(now time.Time) (unsaid int, due bool) {
	if !c.last.IsZero() && now.Sub(c.last) < complainEvery {
		c.unsaid++
		return 0, false
	}
	unsaid = c.unsaid
	c.last, c.unsaid = now, 0
	return unsaid, true
}
