package simulate

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/inventory"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// store is what a process has that is a block store. It has the layout of the cluster's model from its
// start on, where a live one learns that from the first offer.
type store struct {
	process  *process
	stock    *inventory.Stock
	moving   int // transfers in and out
	draining bool
}

func newStore(p *process) *store {
	return &store{process: p, stock: inventory.New(p.member.Blocks, p.layout, inventory.Limits{Arrivals: p.member.MaxPuts, Readings: p.member.MaxFetches})}
}

func (s *store) record() *controlv1.WorkerRecord {
	p := s.process
	return &controlv1.WorkerRecord{
		Id: p.ref.ID, Role: controlv1.Role_ROLE_KVTRANSFER, Epoch: p.ref.Epoch, Addresses: []string{p.ref.ID}, Host: p.member.Host, State: controlv1.WorkerState_WORKER_STATE_SERVING,
		Capacity:    &controlv1.Capacity{Blocks: uint32(p.member.Blocks), BlockTokens: uint32(p.layout.BlockTokens)},
		ModelDigest: p.layout.ModelDigest, Layout: p.layout.Proto(), LayoutDigest: p.layout.Digest(),
	}
}

func (s *store) prefix(of offload.Prefix) inventory.Prefix {
	return inventory.NewPrefix(s.process.layout, s.process.member.Blocks, of.Salt, of.Tokens)
}

// offer reserves space for the blocks of a prefix that lack.
func (s *store) offer(of offload.Prefix) (*kvtransferv1.Ticket, error) {
	if s.draining {
		return nil, worker.RefusedError(scheduler.Draining)
	}
	arrival, verdict := s.stock.Offer(s.prefix(of))
	if verdict != inventory.Taken {
		s.changed()
		return nil, storeclient.OfferStatus(verdict, len(of.Tokens)/s.process.layout.BlockTokens, s.process.member.Blocks)
	}
	s.moving++
	ticket := s.process.ticket(arrival.Blocks, arrival.Held, s.process.member.TransferLease, &arriving{s, arrival.ID})
	if ticket == nil {
		s.ended(func() { s.stock.Drained(arrival.ID) })
		return nil, storeclient.OfferStatus(inventory.Busy, 0, 0)
	}
	s.changed()
	return ticket, nil
}

// arriving is an arrival that owns a reservation.
type arriving struct {
	store *store
	id    inventory.ArrivalID
}

func (a *arriving) committed(receiver.Committed) {
	a.store.ended(func() { a.store.stock.Committed(a.id) })
}

func (a *arriving) broke(error, bool) {
	a.store.stock.Failed(a.id)
	a.store.changed()
}

func (a *arriving) drained() { a.store.ended(func() { a.store.stock.Drained(a.id) }) }

// fetch sends the blocks of a prefix to a ticket's receiver. done is called when that has ended.
func (s *store) fetch(of offload.Prefix, ticket *kvtransferv1.Ticket, done func(bytes uint64, err error)) {
	if s.draining {
		done(0, worker.RefusedError(scheduler.Draining))
		return
	}
	reading, held, verdict := s.stock.Read(s.prefix(of))
	if verdict != inventory.Taken {
		done(0, storeclient.FetchStatus(verdict, held, int(ticket.GetBlocks())))
		return
	}
	s.moving++
	s.process.send(ticket, reading.Blocks, func(bytes uint64, err error) {
		s.ended(func() { s.stock.Done(reading.ID) })
		done(bytes, err)
	})
}

// ended is the end of a transfer.
func (s *store) ended(change func()) {
	change()
	s.moving--
	s.changed()
	s.process.depart()
}

// changed tells routers what is stored and removed.
func (s *store) changed() {
	p := s.process
	if p.dead {
		return
	}
	if stored, removed := s.stock.Changes(); len(stored)+len(removed) > 0 {
		p.events++
		p.cluster.publishBlocks(p, &controlv1.KvEvent{
			Origin: &controlv1.Origin{Id: p.ref.ID, Epoch: p.ref.Epoch, Sequence: p.events},
			Stored: kvcache.HashValues(stored), Removed: kvcache.HashValues(removed),
		})
	}
	p.pace.Changed()
	p.report.set()
}
