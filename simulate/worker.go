package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/engine/simulated"
	"github.com/tandem-serving/tandem/pkg/inventory"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/latency"
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

	core    *worker.Worker // nil: it is a store
	storing *storing       // of a prefill worker: its side of the stores
	store   *store         // nil: it is a worker
	asks    []*ask         // of others, that are not answered

	engine *simulated.Engine
	layout kvcache.Layout
	lastID scheduler.SequenceID
	calls  calls

	inbox    inbox[worker.Event]
	ends     stepEnd               // of the step in flight
	drew     []*connection         // that have tokens to send
	receipts inbox[receiver.Event] // for receiver

	pace   worker.Pace
	report timer
	events uint64        // of the prefix cache
	busy   time.Duration // with steps since the last evaluation of an autoscaler
	signal uint64        // of the load

	receiver    *receiver.Core // of a decode worker
	leases      timer
	owners      map[uint64]owner // of reservations
	inbound     map[receiver.StreamID]*session
	heard       *session // the last one of inbound that was looked for
	lastStream  receiver.StreamID
	sessions    map[string]*session // to receivers, by id and epoch
	connections []*connection       // of routers
}

// call is one stream that a router has opened: its server's side.
type call struct {
	stream   *stream
	process  *process
	id       scheduler.SequenceID
	prefill  *workerv1.PrefillRequest // nil: it is a decode call
	held     int                      // blocks that the receiver has, by the ticket
	transfer uint64                   // of the reservation, or of the ticket
	session  *session                 // of the transfer; nil: there is none
	sending  bool                     // the transfer is open
	opened   time.Time
	sent     worker.Transferred
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
		pace: worker.Pace{Apart: worker.ReportApart, Every: worker.ReportEvery},
	}
	lease, reservations := w.TransferLease, capacity.Blocks
	if w.Role == controlv1.Role_ROLE_KVTRANSFER {
		p.store = newStore(p)
		p.record = p.store.record()
		p.pace.Apart, reservations = inventory.ReportApart, w.MaxPuts
	} else if err := p.newWorker(); err != nil {
		return fmt.Errorf("worker %s: %w", w.ID, err)
	}
	if w.Role == controlv1.Role_ROLE_PREFILL { // what it receives comes from stores
		lease = offload.FetchLease
	}
	p.record.Layout.SliceBytes = uint32(c.sliceBytes) // of a real engine: what transfers move
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

// newWorker makes what a worker has and a store has not.
func (p *process) newWorker() (err error) {
	c, w, e := p.cluster, p.member, p.engine
	capacity := e.Capacity()
	if w.MaxDrafts > capacity.MaxDrafts {
		return fmt.Errorf("%d guesses a step: the engine verifies at most %d, and none if its profile does not say how long that takes", w.MaxDrafts, capacity.MaxDrafts)
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

// leases is a process as its receiver's timer has it, reports as that of its load.
type (
	leases  process
	reports process
)

func (p *leases) next() (time.Time, bool) {
	at, wants := p.receiver.Next()
	return at, wants && !p.dead
}

func (p *leases) tick() { (*process)(p).receive(receiver.Tick{}) }

func (p *reports) next() (time.Time, bool) { return p.pace.Next(), !p.dead }
func (p *reports) tick()                   { (*process)(p).reportLoad() }

// handle gives an event to the worker's core, and does what it asks for.
func (p *process) handle(event worker.Event) {
	if !p.dead && p.inbox.put(event) {
		p.empty()
		p.changed()
	}
}

// empty handles what is in the inbox.
func (p *process) empty() {
	for e, more := p.inbox.next(); more && !p.dead; e, more = p.inbox.next() {
		p.apply(p.core.Handle(p.cluster.now, e))
	}
}

// apply does what the worker's core asks for.
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

// changed is after events of the core.
func (p *process) changed() {
	p.depart()
	p.pace.Changed()
	p.report.set()
}

func (p *process) act(action worker.Action) {
	switch a := action.(type) {
	case *scheduler.RunStep:
		p.begin(a)
	case *scheduler.BlocksChanged:
		p.events++
		p.cluster.publishBlocks(p, &controlv1.KvEvent{
			Origin: &controlv1.Origin{Id: p.ref.ID, Epoch: p.ref.Epoch, Sequence: p.events},
			Stored: kvcache.HashValues(a.Stored), Removed: kvcache.HashValues(a.Removed),
		})
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

// act is of one call.
func (c *call) act(action worker.Action) {
	p := c.process
	switch a := action.(type) {
	case worker.ReserveKV:
		p.handle(p.reserve(c, a))
	case worker.CancelKV:
		p.receive(receiver.Cancel{ID: c.transfer})
	case worker.SendDecode:
		c.stream.toClient(messageBytes, func() { c.stream.request.decoded(c.stream, a.Event) })
	case worker.OpenTransfer:
		p.open(c.prefill.GetTicket(), c)
	case worker.Offer:
		for layer := range p.layout.Layers {
			c.offer(layer, a.First, a.Blocks)
		}
	case worker.Commit:
		c.session.handle(sender.Commit{ID: c.transfer, Sampled: []int32{a.Sampled}})
	case worker.Abort:
		c.session.handle(sender.Abort{ID: c.transfer, Reason: a.Reason})
	case worker.SendPrefill:
		if began := a.Event.GetStarted(); began != nil {
			use := &p.cluster.prefixes
			use.PromptTokens += len(c.prefill.GetTask().GetTokenIds())
			use.CachedTokens += int(began.GetCachedTokens())
			use.FetchedTokens += int(began.GetFetchedTokens())
		}
		c.stream.toClient(messageBytes, func() { c.stream.request.prefilled(c.stream, a.Event) })
	case worker.Fetch:
		p.storing.want(c, a.Request)
	case worker.End:
		p.calls.remove(c.id)
		c.stream.end(a.Err)
	}
}

// stepEnd is what the step in flight of a process ends with.
type stepEnd struct {
	process  *process
	done     scheduler.StepDone
	work     latency.StepWork
	measured time.Duration // as the worker takes it
}

// begin runs one step: the engine's time passes, and the KV of each layer goes out when that
// is computed.
func (p *process) begin(run *scheduler.RunStep) {
	c := p.cluster
	began := c.at
	c.watch.stepping(p, run)
	out, err := p.engine.Step(context.Background(), run.Batch)
	if p.member.failing {
		p.member.failing, err = false, errStep
	}
	took := time.Duration(float64(out.Compute) * cmp.Or(p.member.Slow, 1))
	measured := took
	if p.member.unmeasured {
		measured = out.Compute
	}
	var sends bool
	for _, part := range run.Parts {
		if part.Prompt {
			call := p.calls.of(part.ID)
			sends = sends || call != nil && call.sending
		}
	}
	if sends {
		layers := &layersDone{process: p, run: run, began: began, took: took, order: c.planned}
		c.planned += uint64(p.layout.Layers)
		layers.plan()
	}
	p.busy += took
	p.ends = stepEnd{process: p, done: scheduler.StepDone{Tokens: out.Tokens, Accepted: out.Accepted, Compute: took, Err: err}, work: run.Work(nil), measured: measured}
	c.soon.push(c.momentAt(began+int64(took)), &p.ends)
}

func (s *stepEnd) happen() {
	p := s.process
	if p.dead {
		return
	}
	p.inbox.begin()
	took := worker.StepTook{Work: s.work, Compute: s.measured}
	failed := s.done.Err != nil
	p.apply(p.core.HandleStepDone(p.cluster.now, s.done)) // the next one may begin
	p.empty()
	if !failed && !p.dead {
		p.inbox.begin()
		p.apply(p.core.HandleStepTook(p.cluster.now, took))
		p.empty()
	}
	p.changed()
}

// layersDone is the end of each layer of a step, one after the other: it offers what that completed.
// Each has its place in the order of what was planned when the step began.
type layersDone struct {
	process *process
	run     *scheduler.RunStep
	began   int64
	took    time.Duration
	order   uint64 // of what was planned before
	layer   int    // the next one
}

// plan plans the end of the next layer.
func (d *layersDone) plan() {
	at := d.began + int64(d.took*time.Duration(d.layer+1)/time.Duration(d.process.layout.Layers))
	d.process.cluster.soon.push(moment{at: at, order: d.order + uint64(d.layer) + 1}, d)
}

func (d *layersDone) happen() {
	p, run, layer := d.process, d.run, d.layer
	if p.dead {
		return
	}
	if d.layer++; d.layer < p.layout.Layers {
		d.plan()
	}
	for i, part := range run.Parts {
		if !part.Prompt {
			continue
		}
		c := p.calls.of(part.ID)
		if c == nil || !c.sending {
			continue
		}
		if first, end := worker.Unsent(part, c.held); first < end {
			c.offer(layer, first, run.Batch.Sequences[i].Blocks[first:end])
		}
		if layer == p.layout.Layers-1 {
			c.sent.Computed = p.cluster.now.Sub(c.opened)
		}
	}
}

func (c *call) offer(layer, first int, blocks []kvcache.BlockID) {
	since := c.process.cluster.now.Sub(c.opened)
	if c.sent.LastOffered == 0 {
		c.sent.FirstOffered = since
	}
	c.sent.LastOffered = since
	step(c.session, (*sender.Core).HandleOffer, sender.Offer{ID: c.transfer, Layer: layer, First: first, Blocks: blocks})
}

// reserve lets a sender write into a sequence's blocks. It returns the answer for the core.
func (p *process) reserve(c *call, a worker.ReserveKV) worker.Event {
	ticket := p.ticket(a.Blocks[:a.Prompt:a.Prompt], a.Held, p.member.TransferLease, receiving{p, a.ID})
	if ticket == nil {
		return worker.NotReserved{ID: a.ID, Err: worker.RefusedError(scheduler.QueueFull)}
	}
	c.transfer = ticket.GetTransferId()
	return worker.Reserved{ID: a.ID, Ticket: ticket}
}

// ticket lets a sender write into blocks, but for the first held; nil: there are too many.
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

// serve begins a call that came from a router.
func (p *process) serve(s *stream, epoch uint64, task *workerv1.Task, begin func(scheduler.Request) worker.Event, prefill *workerv1.PrefillRequest) {
	if err := membership.CheckEpoch(epoch, p.ref.Epoch); err != nil {
		s.end(err)
		return
	}
	request, err := worker.ParseTask(task, p.cluster.spec, s.request.deadline)
	if err != nil {
		s.end(err)
		return
	}
	p.lastID++
	request.ID = p.lastID
	// As the router computed them: a worker comes to the same.
	request.Hashes = s.hashes[routing.BlockKey{
		Version:     routing.Version{Digest: p.layout.ModelDigest, Class: p.layout.ArithmeticClass},
		BlockTokens: p.layout.BlockTokens,
	}]
	s.hashes = nil
	ticket := prefill.GetTicket()
	c := &call{stream: s, process: p, id: request.ID, prefill: prefill, held: int(ticket.GetHeldBlocks()), transfer: ticket.GetTransferId()}
	s.call = c
	p.calls.add(c)
	p.handle(begin(request))
}

func (p *process) reportLoad() {
	p.pace.Reported(p.cluster.now)
	var report *controlv1.LoadReport
	if p.store != nil {
		report = p.store.stock.Stats().LoadReport()
	} else {
		report = p.core.LoadReport(p.record.GetRole())
	}
	p.signal++
	report.Origin, report.KvSequence = &controlv1.Origin{Id: p.ref.ID, Epoch: p.ref.Epoch, Sequence: p.signal}, p.events
	p.cluster.publishLoad(p, report)
}

// die ends the process. Whoever is connected to it hears of that from the network.
func (p *process) die() {
	if p.dead {
		return
	}
	p.dead = true
	p.member.process = nil
	p.cluster.stopped(p.member)
	p.cluster.died(p)
}

// errStep is what a step fails with that Fail hit.
var errStep = errors.New("the device failed")

// gone is what a call ends with whose connection was lost.
func gone(id string) error {
	return status.Errorf(codes.Unavailable, "the connection to %s was lost", id)
}
