package simulate

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// process is one start of a worker or of a block store, from its start to its death.
type process struct {
	cluster *Cluster
	member  *Worker
	ref     routing.Ref
	record  *controlv1.WorkerRecord
	host    *host
	dead    bool
	leaving membership.Leaving

	core    *worker.Worker // nil for a store
	storing *storing       // a prefill worker's side of the stores
	store   *store         // nil for a worker
	unary   []*unaryCall   // calls from others without an answer yet

	engine *simulated.Engine
	layout kvcache.Layout
	lastID scheduler.SequenceID
	calls  calls

	inbox    inbox[worker.Event]
	ends     stepEnd               // of the running step
	drew     []*connection         // connections with tokens to send
	receipts inbox[receiver.Event] // for receiver

	reporting worker.ReportSchedule
	report    timer
	events    uint64        // number of the last event of the prefix cache
	busy      time.Duration // in steps, since the autoscaler looked last
	signal    uint64        // number of the last load report

	receiver    *receiver.Core // of a decode worker
	leases      timer
	owners      map[uint64]owner // of reservations, by transfer
	inbound     map[receiver.StreamID]*session
	heard       *session // the last session that was found in inbound
	lastStream  receiver.StreamID
	sessions    map[string]*session // to receivers, by id and epoch
	connections []*connection       // from routers
}

// startNow starts a worker of a cluster that runs, which keeps the first error of these.
func (c *Cluster) startNow(w *Worker) {
	w.starting = nil
	if err := c.start(w); err != nil {
		c.stopped(w)
		c.failed = cmp.Or(c.failed, err)
	}
}

func (c *Cluster) start(w *Worker) error {
	e, err := simulated.New(simulated.Config{
		Spec: c.spec, Blocks: w.Blocks, BlockTokens: c.config.BlockTokens, MaxBatchTokens: w.MaxBatchTokens, MaxSequences: w.MaxSequences,
		Profile: w.Profile, Brief: !c.config.CheckContext, Acceptance: c.config.Acceptance, Trouble: simulated.Trouble{Jitter: w.Jitter, Seed: c.random.Uint64()},
		Wait: func(context.Context, time.Duration) error { return nil },
	})
	if err != nil {
		return fmt.Errorf("worker %s: %w", w.ID, err)
	}
	capacity := e.Capacity()
	p := &process{
		cluster: c, member: w, host: c.host(w.Host), engine: e, layout: capacity.Layout,
		ref:     routing.Ref{ID: w.ID, Epoch: c.random.Uint64() | 1},
		owners:  make(map[uint64]owner),
		inbound: make(map[receiver.StreamID]*session), sessions: make(map[string]*session),
		reporting: worker.ReportSchedule{Apart: api.ReportSpacing, Every: worker.ReportEvery},
	}
	lease, reservations := w.TransferLease, capacity.Blocks
	if w.Role == controlv1.Role_ROLE_KVTRANSFER {
		p.store = newStore(p)
		p.record = p.store.record()
		p.reporting.Apart, reservations = blockstore.ReportApart, w.MaxPuts
	} else if err := p.newWorker(); err != nil {
		return fmt.Errorf("worker %s: %w", w.ID, err)
	}
	if w.Role == controlv1.Role_ROLE_PREFILL { // it receives KV from stores
		lease = offload.FetchLease
	}
	p.record.Layout.SliceBytes = uint32(c.sliceBytes) // as a real engine's, so that transfers have their size
	chunk := max(cmp.Or(w.TransferChunkBytes, kvtransfer.DefaultMaxChunkBytes), c.sliceBytes)
	p.receiver = receiver.New(receiver.Config{
		WorkerID: w.ID, Epoch: p.ref.Epoch, LayoutDigest: p.record.GetLayoutDigest(), Layers: c.spec.Layers, SliceBytes: c.sliceBytes,
		EncodedBytes: c.sliceBytes, Lease: lease, MaxIdle: kvtransfer.DefaultMaxIdle, CreditBytes: max(w.TransferCreditBytes, chunk), MaxChunkBytes: chunk,
		MaxReservations: reservations, MaxStreams: kvtransfer.DefaultMaxStreams,
	})
	p.leases = timer{clock: &c.clock, of: (*leases)(p)}
	p.report = timer{clock: &c.clock, of: (*reports)(p)}
	w.process = p
	c.began(w)
	c.register(p)
	p.report.set()
	return nil
}

// newWorker makes the parts that a worker has and a store lacks.
func (p *process) newWorker() (err error) {
	c, w, e := p.cluster, p.member, p.engine
	capacity := e.Capacity()
	if w.MaxDrafts > capacity.MaxDrafts {
		return fmt.Errorf("%d draft tokens a step: the engine verifies at most %d, and none if its profile does not say how long that takes", w.MaxDrafts, capacity.MaxDrafts)
	}
	p.core, err = worker.New(worker.Config{VocabSize: c.spec.VocabSize, Blocks: capacity.Blocks, ModelDigest: c.spec.Digest, ArithmeticClass: capacity.Layout.ArithmeticClass, Scheduler: scheduler.Config{
		BlockTokens: capacity.Layout.BlockTokens, ContextTokens: c.spec.ContextTokens,
		MaxBatchTokens: capacity.MaxBatchTokens, MaxSequences: capacity.MaxSequences,
		ChunkTokens: w.ChunkTokens, MaxWaiting: w.MaxWaiting, StepBudget: w.StepBudget, OutputShare: w.OutputShare, MaxDrafts: w.MaxDrafts,
	}})
	if err != nil {
		return err
	}
	p.record = &controlv1.WorkerRecord{Id: w.ID, Role: w.Role, Epoch: p.ref.Epoch, Addresses: []string{w.ID}, Engine: "simulated", Host: w.Host, State: controlv1.WorkerState_WORKER_STATE_SERVING}
	worker.Describe(p.record, e, w.Limits)
	if w.Role == controlv1.Role_ROLE_PREFILL {
		p.storing = newStoring(p)
	}
	return nil
}

// leases is the timer of a process's receiver, reports the one of its load reports.
type (
	leases  process
	reports process
)

func (p *leases) next() (time.Time, bool) {
	at, wants := p.receiver.Next()
	return at, wants && !p.dead
}

func (p *leases) tick() { (*process)(p).receive(receiver.Tick{}) }

func (p *reports) next() (time.Time, bool) { return p.reporting.Next(), !p.dead }

func (p *reports) tick() { (*process)(p).reportLoad() }

// handle gives an event to the worker's core and carries out the actions.
func (p *process) handle(event worker.Event) {
	if !p.dead && p.inbox.put(event) {
		p.empty()
		p.changed()
	}
}

// empty handles the events in the inbox.
func (p *process) empty() {
	for e, more := p.inbox.next(); more && !p.dead; e, more = p.inbox.next() {
		p.apply(p.core.Handle(p.cluster.now, e))
	}
}

// apply carries out actions of the worker's core.
func (p *process) apply(actions []worker.Action) {
	for _, action := range actions {
		p.act(action)
	}
	for _, n := range p.drew {
		n.flush()
	}
	p.drew = p.drew[:0]
	p.cluster.watch.handled(p)
}

// changed follows events of the core.
func (p *process) changed() {
	p.depart()
	p.reporting.Changed()
	p.report.set()
}

func (p *process) act(action worker.Action) {
	switch a := action.(type) {
	case *scheduler.RunStep:
		p.begin(a)
	case *scheduler.BlocksChanged:
		p.cluster.publishBlocks(p, a.Stored, a.Removed)
	case scheduler.Scrub:
		zeros := make([]byte, len(a.Blocks)*p.layout.SliceBytes)
		for layer := range p.layout.Layers {
			_ = p.engine.Pages().Write(layer, a.Blocks, zeros) // memory of this process
		}
		p.handle(scheduler.Scrubbed(a))
	case scheduler.Save:
		p.storing.save(a)
	case scheduler.StopSave:
		p.storing.handle(offload.StopSave{ID: a.ID})
	case scheduler.Reserved:
		p.storing.restored(a)
	case scheduler.Refused:
		p.storing.notRestored(a)
	case worker.Inspect:
		p.handle(worker.Inspected{ID: a.ID})
	case *scheduler.Sampled:
		if c := p.calls.at(a.ID); c.call != nil && c.connection.drew(c.stream, a.Offset, a.Token) {
			p.drew = append(p.drew, c.connection)
		}
	case worker.OfSequence:
		if c := p.calls.of(a.Sequence()); c != nil {
			c.act(a)
		}
	}
}

// ticket lets a sender write into blocks except the first held ones. It returns nil if there are
// too many reservations.
func (p *process) ticket(blocks []kvcache.BlockID, held int, lease time.Duration, o owner) *kvtransferv1.Ticket {
	id, secret := p.cluster.random.Uint64()|1, p.cluster.random.Uint64()
	for _, action := range p.receiver.Handle(p.cluster.now, receiver.Reserve{ID: id, Secret: secret, Blocks: blocks, Held: held}) {
		if _, is := action.(receiver.Rejected); is {
			return nil
		}
	}
	p.leases.set()
	p.owners[id] = o
	p.cluster.watch.reserved(p, id, blocks[held:])
	return &kvtransferv1.Ticket{
		TransferId: id, Epoch: p.ref.Epoch, Secret: secret, Addresses: p.record.GetAddresses(), LayoutDigest: p.record.GetLayoutDigest(),
		Blocks: uint32(len(blocks)), HeldBlocks: uint32(held), Lease: durationpb.New(lease), Receiver: p.ref.ID,
	}
}

func (p *process) reportLoad() {
	p.reporting.Reported(p.cluster.now)
	var report *controlv1.LoadReport
	if p.store != nil {
		report = p.store.blocks.Stats().LoadReport()
	} else {
		report = p.core.LoadReport(p.record.GetRole())
	}
	p.signal++
	report.Origin, report.KvSequence = &controlv1.Origin{Id: p.ref.ID, Epoch: p.ref.Epoch, Sequence: p.signal}, p.events
	p.cluster.publishLoad(p, report)
}

// die ends the process. The network tells all that are connected to it.
func (p *process) die() {
	if p.dead {
		return
	}
	p.dead = true
	p.member.process = nil
	p.cluster.stopped(p.member)
	p.cluster.died(p)
}
