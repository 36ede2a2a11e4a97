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
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// What messages are taken to weigh on the network, bytes.
const (
	messageBytes = 200
	tokenBytes   = 3 // one id, as a varint
)

// Config is what a cluster is made of.
type Config struct {
	Spec        model.Spec
	BlockTokens int
	Seed        uint64
	Routers     int
	Workers     []*Worker
	// Routing is the policy, complete but for Models.
	Routing routing.Config
	// Mode and SLO that requests ask for.
	Mode       inferencev1.Mode
	TTFT, TPOT time.Duration
	// Limits are those of every request at a router.
	Limits  joining.Limits
	Network Network
	// Acceptance is which share of guesses at next tokens is right (simulated.Config); 0: texts do
	// not repeat.
	Acceptance float64
	// Events are what happens meanwhile.
	Events []Event
	// Autoscale has pools follow the load; nil: they do not.
	Autoscale *Autoscale
	// CheckContext has each token depend on every block and layer of its context, so that
	// KV which was lost, mixed up or written late changes what follows. Without it a token
	// depends on the last block, and that on the ones before it when it was begun: a step
	// costs the same however long contexts are.
	CheckContext bool
	// Check has the cluster check its invariants after each event, and once more when it has
	// come to rest after the load: Run then ends with a *Violation.
	Check bool
}

// Worker is one worker or block store, whichever of its starts runs.
type Worker struct {
	ID, Host string
	Role     controlv1.Role
	Profile  *latency.Profile
	// Blocks, MaxBatchTokens and MaxSequences are its engine's.
	Blocks, MaxBatchTokens, MaxSequences int
	worker.Limits
	// MaxDrafts is the most tokens of a sequence that a decode worker guesses for a step; 0: none.
	// Its Profile must say what steps with drafts take.
	MaxDrafts int
	// StorePuts and FetchBandwidth, bytes a second, are as of live prefill workers: how many
	// prefixes are put into stores at a time, and how fast those are believed to be at first.
	StorePuts      int
	FetchBandwidth float64
	// MaxPuts and MaxFetches are as of live block stores, which have the role KVTRANSFER, Blocks,
	// and nothing else that is said of engines here.
	MaxPuts, MaxFetches int
	// TransferLease and TransferCreditBytes are as of live decode workers: credit is for one
	// chunk at least. TransferChunkBytes is the largest chunk; 0: kvtransfer's default.
	TransferLease                           time.Duration
	TransferCreditBytes, TransferChunkBytes int
	// Pool is which workers it is scaled with; empty: none. Down: it does not run at first.
	Pool string
	Down bool
	// Jitter is the spread of step times, Slow what they are multiplied by; 0: 1.
	Jitter, Slow float64

	process *process // nil: it does not run
	// failing: the next step fails. corrupting: the next chunk comes damaged. muted: its
	// signals are lost. unmeasured: it takes its steps for as fast as its profile.
	failing, corrupting, muted, unmeasured bool

	// starting is the start that it waits for; nil: none. ends: its process ends when it has
	// drained. running: it has been paid for since then, and for used before.
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
	slo        *inferencev1.Slo // what tasks say of it
	sliceBytes int              // of a real engine
	random     *rand.Rand
	hosts      map[string]*host
	routers    []*router
	sessions   []*session
	registered []*process // as etcd lists them, oldest first
	epochs     map[routing.Ref]*process
	decoded    joining.Buffers
	tokens     []*tokens // messages to be used again, as are chunks and grants
	chunks     []*chunk
	grants     []*grant
	published  []*published
	links      []*link
	held       []*pipe // that have messages which a partition holds
	cuts       int     // so far
	etcdAway   bool
	hedges     Hedges
	signals    Signals
	prefixes   PrefixUse
	stores     bool           // there were some
	starting   bool           // New is not over: routers are told of all workers at once
	expiring   []*process     // whose lease ran out meanwhile
	watch      *watch         // nil: nothing is checked
	failed     error          // of a worker that was to start
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
	c.starting = true
	for _, w := range config.Workers {
		if w.Down {
			continue
		}
		if err := c.start(w); err != nil {
			return nil, err
		}
	}
	c.starting = false
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

// latency is that of a message between two hosts.
func (c *Cluster) latency(from, to *host) time.Duration { return c.pathOf(from, to).latency }

// processOf is a start of a worker that runs; nil: it does not.
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
	if !c.etcdAway && !c.starting {
		c.view(true)
	}
}

// view tells every router what etcd lists, or listed when it was there.
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

// died ends what is connected to a process, and its record when the lease is over.
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
	for _, a := range p.asks {
		c.after(c.latency(p.host, a.from.host), func() { a.fail(gone(p.ref.ID)) })
	}
	p.asks = nil
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

// lost reports that what a process publishes now reaches nobody.
func (c *Cluster) lost(p *process) bool {
	if p.member.muted && c.watch != nil {
		c.watch.missed[p] = true
	}
	return p.member.muted
}

// publishLoad, publishBlocks and publish are NATS, which is on no host: a partition of two hosts does
// not keep its messages back.
func (c *Cluster) publishLoad(p *process, report *controlv1.LoadReport) {
	if c.lost(p) {
		return
	}
	c.signals.LoadReports++
	c.publish(p.host, p.ref.ID, routing.LoadReported{Report: report})
}

func (c *Cluster) publishBlocks(p *process, event *controlv1.KvEvent) {
	if c.lost(p) {
		return
	}
	c.signals.BlockEvents++
	c.signals.Blocks += len(event.GetStored()) + len(event.GetRemoved())
	c.publish(p.host, p.ref.ID, routing.BlocksChanged{Event: event})
}

func (c *Cluster) publish(from *host, worker string, event routing.Event) {
	for routers := c.routers; len(routers) > 0; {
		// What arrives at several at one time happens at one after the other, and nothing between.
		latency, n := c.latency(from, routers[0].host), 1
		for n < len(routers) && c.latency(from, routers[n].host) == latency {
			n++
		}
		p := taken(&c.published)
		p.routers, p.worker, p.event = routers[:n], worker, event
		c.soon.push(c.momentAt(c.at+int64(latency)), p)
		routers = routers[n:]
	}
}

// published is a message on its way to routers. It is used again when it has arrived.
type published struct {
	routers []*router
	worker  string // that it is of; empty: of a router
	event   routing.Event
	fetched int // means nothing: happen has to do something with what it reads
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
