package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	"google.golang.org/protobuf/types/known/durationpb"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// Assumed sizes of messages on the network, in bytes.
const (
	messageBytes = 200
	tokenBytes   = 3 // one id, as a varint
)

// Config describes a cluster.
type Config struct {
	Spec        model.Spec
	BlockTokens int
	Seed        uint64
	Routers     int
	Workers     []*Worker
	// Routing is the policy, complete but for Models.
	Routing routing.Config
	// Mode and SLO of all requests.
	Mode       inferencev1.Mode
	TTFT, TPOT time.Duration
	// Limits hold for every request at a router.
	Limits  joining.Limits
	Network Network
	// Acceptance is the share of draft tokens that is right (simulated.Config); 0:
	// texts do not repeat.
	Acceptance float64
	// Events happen during the run, such as deaths and partitions.
	Events []Event
	// Autoscale makes pools follow the load; nil: their sizes are fixed.
	Autoscale *Autoscale
	// CheckContext makes each token depend on every block and layer of its context, so that
	// lost, mixed up or late KV changes the following tokens. Without it a token depends only
	// on the last block, which depends on the blocks before it as they were when it began: then
	// a step's cost does not grow with the context.
	CheckContext bool
	// Check makes the cluster check its invariants after each event, and once more at rest after
	// the load. Run then fails with a *Violation.
	Check bool
}

// Worker is a worker or block store, over all its starts.
type Worker struct {
	ID, Host string
	Role     controlv1.Role
	Profile  *latency.Profile
	// Blocks, MaxBatchTokens and MaxSequences size its engine.
	Blocks, MaxBatchTokens, MaxSequences int
	worker.Limits
	// MaxDrafts bounds the tokens of a sequence that a decode worker drafts for a step; 0: none.
	// Its Profile must have the times of steps with drafts.
	MaxDrafts int
	// StorePuts and FetchBandwidth are the flags of live prefill workers: how many prefixes it
	// puts into stores at a time, and the speed in bytes a second that it first assumes of them.
	StorePuts      int
	FetchBandwidth float64
	// MaxPuts and MaxFetches are the flags of live block stores. A store has the role KVTRANSFER
	// and Blocks, and none of the other settings of an engine.
	MaxPuts, MaxFetches int
	// TransferLease and TransferCreditBytes are the flags of live decode workers; credit is at
	// least a chunk. TransferChunkBytes is the largest chunk; 0: kvtransfer's default.
	TransferLease                           time.Duration
	TransferCreditBytes, TransferChunkBytes int
	// Pool is the pool that it is scaled with; empty: none. Down means that it does not run at
	// first.
	Pool string
	Down bool
	// Jitter is the spread of step times, Slow their factor; 0 is 1.
	Jitter, Slow float64

	process *process // nil while it does not run
	// failing: the next step fails. corrupting: the next chunk arrives damaged. muted: its
	// signals are lost. unmeasured: it believes that its steps take the profile's times.
	failing, corrupting, muted, unmeasured bool

	// starting is a planned start; nil: none. ends: its process ends once it has drained. It has
	// been paid for since running, and for used before.
	starting *starting
	ends     bool
	running  bool
	since    time.Time
	used     time.Duration
}

// Cluster is a mesh on virtual time.
type Cluster struct {
	clock
	config     Config
	spec       model.Spec
	slo        *inferencev1.Slo // the SLO, as tasks have it
	sliceBytes int              // as a real engine's
	random     *rand.Rand
	hosts      map[string]*host
	routers    []*router
	sessions   []*session
	registered []*process // processes in etcd, oldest first
	epochs     map[routing.Ref]*process
	decoded    joining.Buffers
	tokens     []*tokens // messages for reuse, as are chunks and grants
	chunks     []*chunk
	grants     []*grant
	published  []*published
	links      []*link
	held       []*pipe // pipes with messages that a partition holds back
	cuts       int     // so far
	etcdAway   bool
	hedges     Hedges
	signals    Signals
	prefixes   PrefixUse
	stores     bool           // the cluster has had block stores
	building   bool           // New still runs: routers learn of all workers at once
	expiring   []*process     // processes whose lease ran out while etcd was away
	watch      *watch         // checks invariants; nil: nothing is checked
	failed     error          // of the first worker that could not start
	sizes      map[string]int // of pools, as the autoscaler wants them
	resizes    []Resize
}

// New makes a cluster and starts all of it.
func New(config Config) (*Cluster, error) {
	c := &Cluster{
		config: config, spec: config.Spec, sliceBytes: simulated.SliceBytes(config.Spec, config.BlockTokens),
		slo:   &inferencev1.Slo{Tpot: durationpb.New(config.TPOT)},
		clock: clock{now: epoch}, random: rand.New(rand.NewPCG(config.Seed, 0x51)),
		hosts: make(map[string]*host), epochs: make(map[routing.Ref]*process),
		sizes: make(map[string]int), prefixes: PrefixUse{Fetches: make(map[string]int), Puts: make(map[string]int)},
	}
	if config.Check {
		c.watch = newWatch(c)
	}
	c.config.Routing.OmitCandidates = true
	c.config.Routing.Models = []routing.Model{{Name: c.spec.Name, Digest: c.spec.Digest}}
	for i := range max(config.Routers, 1) {
		c.routers = append(c.routers, c.newRouter(c.host(fmt.Sprintf("router-%d", i+1))))
	}
	for _, l := range config.Network.Links {
		c.links = append(c.links, newLink(l))
	}
	c.building = true
	for _, w := range config.Workers {
		if w.Down {
			continue
		}
		if err := c.start(w); err != nil {
			return nil, err
		}
	}
	c.building = false
	c.viewChanged()
	return c, nil
}

// Elapsed is the virtual time since the load began.
func (c *Cluster) Elapsed() time.Duration { return c.now.Sub(epoch.Add(startup)) }

func (c *Cluster) host(name string) *host {
	h := c.hosts[name]
	if h == nil {
		rate := c.config.Network.BytesPerSecond
		h = &host{name: name, number: len(c.hosts), out: line{bytesPerSecond: rate}, in: line{bytesPerSecond: rate}, cut: make(map[*host]bool), cutNumber: make(map[*host]int)}
		c.hosts[name] = h
	}
	return h
}

// latency is the latency of a message between two hosts.
func (c *Cluster) latency(from, to *host) time.Duration { return c.pathOf(from, to).latency }

// processOf finds a running process by worker and epoch; nil if there is none.
func (c *Cluster) processOf(id string, number uint64) *process {
	if p := c.epochs[routing.Ref{ID: id, Epoch: number}]; p != nil && !p.dead {
		return p
	}
	return nil
}

// register puts a worker's record into etcd.
func (c *Cluster) register(p *process) {
	c.epochs[p.ref] = p
	c.registered = append(slices.DeleteFunc(c.registered, func(o *process) bool { return o.ref.ID == p.ref.ID }), p)
	c.viewChanged()
}

// viewChanged tells every router what etcd lists.
func (c *Cluster) viewChanged() {
	if !c.etcdAway && !c.building {
		c.view(true)
	}
}

// view tells every router what etcd lists, or listed before it went away.
func (c *Cluster) view(live bool) {
	var records []*controlv1.WorkerRecord
	for _, r := range c.routers {
		records = append(records, &controlv1.WorkerRecord{Id: r.host.name, Role: controlv1.Role_ROLE_ROUTER, Epoch: 1})
	}
	for _, p := range c.registered {
		records = append(records, p.record)
	}
	for _, r := range c.routers {
		c.after(c.config.Network.Latency, func() { r.handle(routing.ViewChanged{Workers: records, Live: live}) })
	}
	c.tellStores()
}

// died ends the connections of a process, and its record when the lease is over.
func (c *Cluster) died(p *process) {
	for _, n := range p.connections {
		if n.process != p {
			continue
		}
		heard := c.latency(p.host, n.router.host)
		if p.host.cut[n.router.host] {
			heard = keepAlive
		}
		c.after(heard, func() {
			if n.process == p {
				n.lose()
			}
		})
	}
	p.connections = nil
	for _, a := range p.unary {
		c.after(c.latency(p.host, a.from.host), func() { a.fail(gone(p.ref.ID)) })
	}
	p.unary = nil
	sessions := c.sessions
	c.sessions = nil
	for _, s := range sessions {
		switch {
		case s.lost:
		case s.from == p:
			s.lost = true
			c.after(c.latency(p.host, s.to.host), s.closed)
		case s.to == p:
			c.after(c.latency(p.host, s.from.host), func() { s.lose(nil) })
		default:
			c.sessions = append(c.sessions, s)
		}
	}
	c.after(membership.DefaultLeaseTTL, func() { c.expire(p) })
}

// expire ends the lease of a process that died.
func (c *Cluster) expire(p *process) {
	if c.etcdAway {
		c.expiring = append(c.expiring, p)
		return
	}
	before := len(c.registered)
	c.registered = slices.DeleteFunc(c.registered, func(o *process) bool { return o == p })
	delete(c.epochs, p.ref)
	if len(c.registered) != before {
		c.viewChanged()
	}
}

// lost reports whether the signals of a process are lost now.
func (c *Cluster) lost(p *process) bool {
	if p.member.muted && c.watch != nil {
		c.watch.missed[p] = true
	}
	return p.member.muted
}

// publishLoad, publishBlocks and publish are NATS. It runs on no host, so partitions of hosts do
// not hold back its messages.
func (c *Cluster) publishLoad(p *process, report *controlv1.LoadReport) {
	if c.lost(p) {
		return
	}
	c.signals.LoadReports++
	c.publish(p.host, p.ref.ID, routing.LoadReported{Report: report})
}

func (c *Cluster) publishBlocks(p *process, stored, removed []kvcache.Hash) {
	p.events++
	if c.lost(p) {
		return
	}
	c.signals.BlockEvents++
	c.signals.Blocks += len(stored) + len(removed)
	c.publish(p.host, p.ref.ID, routing.BlocksChanged{Event: &controlv1.KvEvent{
		Origin: &controlv1.Origin{Id: p.ref.ID, Epoch: p.ref.Epoch, Sequence: p.events},
		Stored: kvcache.HashValues(stored), Removed: kvcache.HashValues(removed),
	}})
}

func (c *Cluster) publish(from *host, worker string, event routing.Event) {
	for routers := c.routers; len(routers) > 0; {
		// Routers get a message one after the other, with no other event in between.
		latency, n := c.latency(from, routers[0].host), 1
		for n < len(routers) && c.latency(from, routers[n].host) == latency {
			n++
		}
		p := reuse(&c.published)
		p.routers, p.worker, p.event = routers[:n], worker, event
		c.soon.push(c.momentAt(c.at+int64(latency)), p)
		routers = routers[n:]
	}
}

// published is a message on its way to routers. It is reused once it has arrived.
type published struct {
	routers []*router
	worker  string // the sender; empty for a router
	event   routing.Event
	fetched int // keeps the compiler from removing reads of happen
}

func (p *published) happen() {
	c := p.routers[0].cluster
	if p.worker != "" && len(p.routers) > 1 {
		for _, r := range p.routers {
			p.fetched += r.core.Fetch(p.worker)
		}
	}
	for _, r := range p.routers {
		r.handle(p.event)
	}
	p.routers, p.event = nil, nil
	c.published = append(c.published, p)
}
