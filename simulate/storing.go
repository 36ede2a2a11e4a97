package simulate

import (
	"time"

	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// storing is a prefill worker's side of the block stores: it drives pkg/offload, as services/prefill
// does. A nil *storing has nothing to do.
type storing struct {
	process *process
	core    *offload.Core
	inbox   inbox[offload.Event]
	timer   timer

	waiting map[scheduler.SequenceID]*call
	fetches map[scheduler.SequenceID]*fetching
	puts    map[scheduler.SaveID]*putting
}

func newStoring(p *process) *storing {
	c, w := p.cluster, p.member
	s := &storing{
		process: p, waiting: make(map[scheduler.SequenceID]*call), fetches: make(map[scheduler.SequenceID]*fetching), puts: make(map[scheduler.SaveID]*putting),
		core: offload.New(offload.Config{
			PageBytes: c.sliceBytes * p.layout.Layers, BlockTokens: p.layout.BlockTokens, LayoutDigest: p.layout.Digest(),
			ChunkTokens: w.ChunkTokens, AssumedBandwidth: w.FetchBandwidth, Puts: w.StorePuts,
		}),
	}
	s.timer = timer{clock: &c.clock, of: s}
	return s
}

// tellStores tells prefill workers which stores there are.
func (c *Cluster) tellStores() {
	var stores []offload.Store
	for _, p := range c.registered {
		if p.store != nil && p.record.GetState() == controlv1.WorkerState_WORKER_STATE_SERVING {
			stores = append(stores, offload.Store{ID: p.ref.ID, Epoch: p.ref.Epoch, Addresses: p.record.GetAddresses(), LayoutDigest: p.record.GetLayoutDigest()})
		}
	}
	if len(stores) == 0 && !c.stores {
		return
	}
	c.stores = true
	for _, p := range c.registered {
		if p.storing != nil {
			c.after(c.config.Network.Latency, func() { p.storing.handle(offload.Known{Stores: stores}) })
		}
	}
}

func (s *storing) next() (time.Time, bool) {
	at, wants := s.core.Next()
	return at, wants && !s.process.dead
}

func (s *storing) tick() { s.handle(offload.Tick{}) }

// handle gives an event to the core, and does what it asks for.
func (s *storing) handle(event offload.Event) {
	if s == nil || s.process.dead || !s.inbox.put(event) {
		return
	}
	for e, more := s.inbox.next(); more; e, more = s.inbox.next() {
		for _, action := range s.core.Handle(s.process.cluster.now, e) {
			s.act(action)
		}
	}
	s.timer.set()
}

func (s *storing) act(action offload.Action) {
	p := s.process
	switch a := action.(type) {
	case offload.Answer:
		if c := s.waiting[a.ID]; c != nil {
			delete(s.waiting, a.ID)
			p.handle(worker.Fetched{ID: a.ID, From: a.From, Until: a.Until, Took: a.Took, Verdict: a.Verdict})
			s.handle(offload.Left{ID: a.ID})
		}
	case offload.Restore:
		s.fetches[a.Fetch] = &fetching{storing: s, id: a.Fetch}
		p.handle(scheduler.Submit{Request: scheduler.Request{ID: a.Fetch, Kind: scheduler.Restore, Tokens: a.Prefix.Tokens, Hashes: a.Hashes, Salt: a.Prefix.Salt, Spare: a.Spare}})
	case offload.StartFetch:
		s.fetches[a.Fetch].start(a)
	case offload.StopFetch:
		if f := s.fetches[a.Fetch]; f != nil {
			f.stop(errStopped)
		}
	case offload.Publish:
		p.handle(scheduler.KVArrived{ID: a.Fetch, From: a.From})
	case offload.Release:
		p.handle(scheduler.TransferDone{ID: a.Fetch})
	case offload.Limit:
		p.handle(scheduler.SaveLimit(a))
	case offload.StartPut:
		s.puts[a.ID].start(a.Store)
	case offload.StopPut:
		if put := s.puts[a.ID]; put != nil {
			put.stop(errStopped)
		}
	case offload.Saved:
		delete(s.puts, a.ID)
		p.handle(scheduler.SaveDone(a))
	case offload.CountFetch:
		p.cluster.prefixes.Fetches[a.Result]++
	case offload.CountPut:
		p.cluster.prefixes.Puts[a.Result]++
	}
}

// want asks for what a store has of a call's prompt.
func (s *storing) want(c *call, request *scheduler.Request) {
	p, source := s.process, c.prefill.GetSource()
	// The last token is computed in any case.
	until := min(int(source.GetBlocks()), (len(request.Tokens)-1)/p.layout.BlockTokens)
	tokens := request.Tokens[:until*p.layout.BlockTokens]
	hashes := p.hashes(request.Salt, tokens)
	_, model := p.core.Load()
	p.lastID++
	s.waiting[c.id] = c
	s.handle(offload.Wanted{
		ID: c.id, Fetch: p.lastID, Store: offload.Store{ID: source.GetWorkerId(), Epoch: source.GetEpoch(), Addresses: source.GetAddresses()},
		Prefix: offload.Prefix{Salt: request.Salt, Tokens: tokens}, PromptTokens: len(request.Tokens),
		Hashes: hashes, Cached: p.core.Cached(request.Salt, hashes, tokens), Model: model,
	})
}

// hashes are those of the blocks of tokens.
func (p *process) hashes(salt string, tokens []int32) []kvcache.Hash {
	return kvcache.PromptHashes(p.layout.ModelDigest, p.layout.ArithmeticClass, salt, tokens, p.layout.BlockTokens)
}

// abandon ends a call's wait for a fetch: its transfer is over.
func (s *storing) abandon(c *call) {
	if s == nil || s.waiting[c.id] == nil {
		return
	}
	delete(s.waiting, c.id)
	s.process.handle(worker.Fetched{ID: c.id})
	s.handle(offload.Left{ID: c.id})
}

// restored and notRestored are the scheduler's answers to a Restore; those to others are not meant.
func (s *storing) restored(a scheduler.Reserved) {
	if s != nil && s.fetches[a.ID] != nil {
		s.handle(offload.Restored{Fetch: a.ID, Blocks: a.Blocks, CachedTokens: a.CachedTokens})
	}
}

func (s *storing) notRestored(a scheduler.Refused) {
	if s != nil && s.fetches[a.ID] != nil {
		delete(s.fetches, a.ID)
		s.handle(offload.NotRestored{Fetch: a.ID, Draining: a.Reason == scheduler.Draining})
	}
}

// fetching is a fetch, which owns the reservation for what it brings.
type fetching struct {
	storing *storing
	id      scheduler.SequenceID
	ticket  *kvtransferv1.Ticket
	err     error // why it brings nothing; the first
}

func (f *fetching) start(a offload.StartFetch) {
	p := f.storing.process
	f.ticket = p.ticket(a.Blocks, a.Held, offload.FetchLease, f)
	if f.ticket == nil {
		f.over(0, worker.RefusedError(scheduler.QueueFull))
		return
	}
	p.cluster.after(storeclient.CallTimeout, func() { f.stop(errLate) })
	failed := func(err error) { f.stop(storeclient.CallError(err)) }
	p.call(a.Store.ID, a.Store.Epoch, messageBytes+len(a.Prefix.Tokens)*tokenBytes, func(to *process, answer func(func())) {
		to.store.fetch(a.Prefix, f.ticket, func(_ uint64, err error) {
			answer(func() {
				if err != nil {
					failed(err)
				}
			})
		})
	}, failed)
}

// stop ends it, unless it is over.
func (f *fetching) stop(cause error) {
	p := f.storing.process
	if f.ticket == nil || p.owners[f.ticket.GetTransferId()] == nil {
		return
	}
	if f.err == nil {
		f.err = cause
	}
	p.receive(receiver.Cancel{ID: f.ticket.GetTransferId()})
}

func (f *fetching) committed(a receiver.Committed) { f.over(a.Bytes, nil) }

func (f *fetching) broke(err error, _ bool) {
	if f.err == nil {
		f.err = err
	}
}

func (f *fetching) drained() { f.over(0, f.err) }

func (f *fetching) over(bytes uint64, err error) {
	delete(f.storing.fetches, f.id)
	f.storing.handle(offload.FetchEnded{Fetch: f.id, Bytes: bytes, Outcome: storeclient.FetchOutcome(err)})
}

// putting is a prefix that is put into a store.
type putting struct {
	storing  *storing
	save     scheduler.Save
	until    time.Time
	try      int            // so far
	transfer *blockTransfer // nil: the store is asked
	ended    bool           // the last attempt
}

// save puts a prefix that is near its eviction into a store.
func (s *storing) save(save scheduler.Save) {
	s.puts[save.ID] = &putting{storing: s, save: save, until: s.process.cluster.now.Add(offload.PutTimeout), ended: true}
	first := s.process.hashes(save.Salt, save.Tokens[:s.process.layout.BlockTokens])[0]
	s.handle(offload.Save{ID: save.ID, First: first})
}

func (q *putting) start(to offload.Store) {
	p := q.storing.process
	c := p.cluster
	q.try++
	q.transfer, q.ended = nil, false
	try := q.try
	// of does something for this attempt, if it has not ended.
	of := func(do func()) func() {
		return func() {
			if q.try == try && !q.ended {
				do()
			}
		}
	}
	c.after(storeclient.OfferTimeout, of(func() {
		if q.transfer == nil {
			q.over(0, status.FromContextError(errLate).Err()) // of the call, as gRPC says it
		}
	}))
	c.plan(q.until, of(func() { q.stop(errLate) }))
	failed := func(err error) {
		of(func() { q.over(0, storeclient.CallError(err)) })()
	}
	prefix := offload.Prefix{Salt: q.save.Salt, Tokens: q.save.Tokens}
	p.call(to.ID, to.Epoch, messageBytes+len(prefix.Tokens)*tokenBytes, func(at *process, answer func(func())) {
		ticket, err := at.store.offer(prefix)
		answer(func() {
			if err != nil {
				failed(err)
				return
			}
			of(func() {
				q.transfer = p.send(ticket, q.save.Blocks, func(bytes uint64, err error) { of(func() { q.over(bytes, err) })() })
			})()
		})
	}, failed)
}

// stop ends an attempt, unless it has ended.
func (q *putting) stop(cause error) {
	switch {
	case q.ended:
	case q.transfer == nil:
		q.over(0, cause)
	default:
		q.transfer.stop(cause)
	}
}

func (q *putting) over(bytes uint64, err error) {
	q.ended = true
	q.storing.handle(offload.PutEnded{ID: q.save.ID, Bytes: bytes, Outcome: storeclient.PutOutcome(err)})
}
