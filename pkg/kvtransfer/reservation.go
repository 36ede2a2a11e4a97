package kvtransfer

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Reservation is blocks for a sender to fill, with the owner's callbacks.
//
// Callbacks run one at a time, in order, on a goroutine of the Receiver, with no lock held.
// They must not block and may call the Receiver.
type Reservation struct {
	// RequestID is for logs.
	RequestID string
	// Sender is the id of the only worker that may use the ticket. Empty: anybody who has it,
	// but nobody over connections with certificates.
	Sender string
	// Holders are on whose behalf the blocks are held, such as a router and a tenant: each
	// may hold ReceiverConfig.HolderBlocks.
	Holders []string
	// Blocks of the sequence, in order. The Receiver keeps the slice and does not change
	// it.
	Blocks []kvcache.BlockID
	// HeldBlocks is the number of leading blocks that already hold their KV. They are never
	// written.
	HeldBlocks int
	// PromptBlocks is the number of leading blocks to fill, including held ones. The rest
	// is for generated tokens and not touched.
	PromptBlocks int
	// Committed is called when all slices arrived and were verified. The blocks belong to
	// the owner alone again. No callback follows.
	Committed func(Arrival)
	// Failed is called when the transfer ended without commit, with a *FailedError, an
	// *AbortedError (the sender's reason) or a *BrokenError. Until Drained follows, the
	// blocks may still be written.
	Failed func(err error)
	// Drained is called when nothing can write the blocks any more: they may be reused.
	Drained func()
}

// Arrival is the result of a committed transfer.
type Arrival struct {
	// Sender is the sender's worker id.
	Sender string
	// Sampled is the tokens that the sender sampled, in order.
	Sampled []int32
	// Bytes is the payload moved, including lent slices.
	Bytes uint64
	// Approximate is set if the payload's encoding was lossy.
	Approximate bool
}

func (res Reservation) validate() error {
	switch {
	case res.Committed == nil || res.Failed == nil || res.Drained == nil:
		return errors.New("all three callbacks must be set")
	case len(res.Sender) > wire.MaxNameBytes:
		return fmt.Errorf("the sender's id has %d bytes, more than the limit of %d", len(res.Sender), wire.MaxNameBytes)
	case res.PromptBlocks > maxTicketBlocks:
		return fmt.Errorf("%d prompt blocks, more than the limit of %d", res.PromptBlocks, maxTicketBlocks)
	case res.PromptBlocks < 0 || res.PromptBlocks > len(res.Blocks):
		return fmt.Errorf("%d prompt blocks, but %d blocks in all", res.PromptBlocks, len(res.Blocks))
	case res.HeldBlocks < 0 || res.HeldBlocks > res.PromptBlocks:
		return fmt.Errorf("%d held blocks, but %d prompt blocks", res.HeldBlocks, res.PromptBlocks)
	}
	return nil
}

// Reserve creates a reservation and returns its ticket. The lease starts now. Errors:
// ErrFull, *ShareError, ErrClosed, or an invalid reservation; after an error no callback is
// made.
func (r *Receiver) Reserve(res Reservation) (*kvtransferv1.Ticket, error) {
	if err := res.validate(); err != nil {
		return nil, fmt.Errorf("reserve kv blocks: %w", err)
	}
	secret := draw()
	id, err := r.reserve(secret, res)
	if err != nil {
		return nil, fmt.Errorf("reserve kv blocks: %w", err)
	}
	return &kvtransferv1.Ticket{
		Memory:       r.memory(),
		TransferId:   id,
		Epoch:        r.cfg.Epoch,
		Secret:       secret,
		Addresses:    slices.Clone(r.cfg.Addresses),
		LayoutDigest: r.layoutDigest,
		Blocks:       uint32(res.PromptBlocks),
		HeldBlocks:   uint32(res.HeldBlocks),
		Lease:        durationpb.New(r.cfg.Lease),
		Receiver:     r.cfg.WorkerID,
		Encoding:     r.cfg.Encoding,
		Sender:       res.Sender,
	}, nil
}

// memory returns the id of the pages' memory for tickets, 0 for none.
func (r *Receiver) memory() uint64 {
	if r.lending == nil {
		return 0
	}
	return r.lending.Memory()
}

func (r *Receiver) reserve(secret uint64, res Reservation) (id uint64, err error) {
	r.loop.Lock()
	defer r.loop.Unlock()
	id = r.drawID()
	for _, a := range r.loop.Step(receiver.Reserve{
		ID: id, Secret: secret, Blocks: res.Blocks[:res.PromptBlocks:res.PromptBlocks], Held: res.HeldBlocks,
		Sender: res.Sender, Holders: res.Holders, Charge: len(res.Blocks) - res.HeldBlocks,
	}) {
		if rejected, ok := a.(receiver.Rejected); ok {
			switch {
			case rejected.Closed:
				return 0, ErrClosed
			case rejected.Holder != "":
				return 0, &ShareError{Holder: rejected.Holder}
			}
			return 0, ErrFull
		}
	}
	r.owners[id] = &res
	return id, nil
}

// Cancel ends a reservation for its owner. Drained follows, at once if no sender has opened
// the transfer, otherwise once nothing can be written any more. Failed is not called.
// Cancel does nothing to a transfer that is unknown, over or committed, even if its
// callback is still running. It does not block and may be called from a callback.
func (r *Receiver) Cancel(transferID uint64) { r.loop.Handle(receiver.Cancel{ID: transferID}) }

// owner returns the reservation whose callback is due. last removes it; otherwise Drained
// still follows.
func (r *Receiver) owner(id uint64, last bool) *Reservation {
	res := r.owners[id]
	if last {
		delete(r.owners, id)
	}
	return res
}
