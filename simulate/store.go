package simulate

import (
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/blockstore"
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
	blocks   *blockstore.Store
	moving   int // transfers in and out
	draining bool
}

func newStore(p *process) *store {
	return &store{process: p, blocks: blockstore.New(p.member.Blocks, p.layout, blockstore.Limits{Puts: p.member.MaxPuts, Fetches: p.member.MaxFetches})}
}

func (s *store) record() *controlv1.WorkerRecord {
	p := s.process
	return &controlv1.WorkerRecord{
		Id: p.ref.ID, Role: controlv1.Role_ROLE_KVTRANSFER, Epoch: p.ref.Epoch, Addresses: []string{p.ref.ID}, Host: p.member.Host, State: controlv1.WorkerState_WORKER_STATE_SERVING,
		Capacity:    &controlv1.Capacity{Blocks: uint32(p.member.Blocks), BlockTokens: uint32(p.layout.BlockTokens)},
		ModelDigest: p.layout.ModelDigest, Layout: p.layout.Proto(), LayoutDigest: p.layout.Digest(),
	}
}

func (s *store) prefix(of offload.Prefix) blockstore.Prefix {
	return blockstore.NewPrefix(s.process.layout, s.process.member.Blocks, of.Salt, of.Tokens)
}

// offer reserves space for the blocks of a prefix that lack.
func (s *store) offer(of offload.Prefix) (*kvtransferv1.Ticket, error) {
	if s.draining {
		return nil, worker.RefusedError(scheduler.Draining)
	}
	put, verdict := s.blocks.Offer(s.prefix(of))
	if verdict != blockstore.Taken {
		s.changed()
		return nil, storeclient.OfferStatus(verdict, len(of.Tokens)/s.process.layout.BlockTokens, s.process.member.Blocks)
	}
	s.moving++
	ticket := s.process.ticket(put.Blocks, put.Held, s.process.member.TransferLease, &openPut{s, put.ID})
	if ticket == nil {
		s.ended(func() { s.blocks.Drained(put.ID) })
		return nil, storeclient.OfferStatus(blockstore.Busy, 0, 0)
	}
	s.changed()
	return ticket, nil
}

// openPut is a put that owns a reservation.
type openPut struct {
	store *store
	id    blockstore.PutID
}

func (p *openPut) committed(receiver.Committed) {
	p.store.ended(func() { p.store.blocks.Committed(p.id) })
}

func (p *openPut) broke(error, bool) {
	p.store.blocks.Failed(p.id)
	p.store.changed()
}

func (p *openPut) drained() { p.store.ended(func() { p.store.blocks.Drained(p.id) }) }

// fetch sends the blocks of a prefix to a ticket's receiver. done is called when that has ended.
func (s *store) fetch(of offload.Prefix, ticket *kvtransferv1.Ticket, done func(bytes uint64, err error)) {
	if s.draining {
		done(0, worker.RefusedError(scheduler.Draining))
		return
	}
	fetch, held, verdict := s.blocks.Read(s.prefix(of))
	if verdict != blockstore.Taken {
		done(0, storeclient.FetchStatus(verdict, held, int(ticket.GetBlocks())))
		return
	}
	s.moving++
	s.process.send(ticket, fetch.Blocks, func(bytes uint64, err error) {
		s.ended(func() { s.blocks.Done(fetch.ID) })
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
	if stored, removed := s.blocks.Changes(); len(stored)+len(removed) > 0 {
		p.cluster.publishBlocks(p, stored, removed)
	}
	p.reporting.Changed()
	p.report.set()
}
