package kvtransfer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Reservation is blocks that a sender shall fill, and whom to tell.
//
// The callbacks run one at a time, in order, without a lock held, on a goroutine
// of the Receiver's choice: they must not block, and may call the Receiver.
type Reservation struct {
	// RequestID is for logs.
	RequestID string
	// Blocks are the sequence's, in its order. The Receiver keeps the slice and
	// does not change it.
	Blocks []kvcache.BlockID
	// HeldBlocks is the number of leading blocks that hold their KV already. They
	// are never written.
	HeldBlocks int
	// PromptBlocks is the number of leading blocks, held ones included, that the
	// sender fills. The rest is for generated tokens and not touched.
	PromptBlocks int
	// Committed says that all slices arrived and were right; the blocks are the
	// owner's alone again. Nothing follows.
	Committed func(Arrival)
	// Failed says that the transfer is over without commit: a *FailedError, an
	// *AbortedError with the sender's reason, or a *BrokenError. Drained follows;
	// until then the blocks may still be written.
	Failed func(err error)
	// Drained says that nothing will land any more: the blocks may be given away.
	Drained func()
}

// Arrival is what a committed transfer brought.
type Arrival struct {
	// Sender is the worker id of the sender's SenderHello.
	Sender string
	// Sampled are the tokens that the sender sampled, in order.
	Sampled []int32
	// Bytes is the payload that was moved, lent slices included.
	Bytes uint64
	// Approximate: the pages hold nearly what the sender's do, since the payload was
	// encoded in fewer bits.
	Approximate bool
}

func (res Reservation) validate() error {
	switch {
	case res.Committed == nil || res.Failed == nil || res.Drained == nil:
		return errors.New("all three callbacks must be set")
	case res.PromptBlocks > maxTicketBlocks:
		return fmt.Errorf("%d prompt blocks, more than the limit of %d", res.PromptBlocks, maxTicketBlocks)
	case res.PromptBlocks < 0 || res.PromptBlocks > len(res.Blocks):
		return fmt.Errorf("%d prompt blocks, but %d blocks in all", res.PromptBlocks, len(res.Blocks))
	case res.HeldBlocks < 0 || res.HeldBlocks > res.PromptBlocks:
		return fmt.Errorf("%d held blocks, but %d prompt blocks", res.HeldBlocks, res.PromptBlocks)
	}
	return nil
}

// Reserve lets the holder of the ticket that it returns write into the blocks
// that are not held. The lease runs from now on. ErrFull and ErrClosed are its
// errors besides those of a reservation that makes no sense; on an error no
// callback is made.
func (r *Receiver) Reserve(res Reservation) (*kvtransferv1.Ticket, error) {
	if err := res.validate(); err != nil {
		return nil, fmt.Errorf("reserve kv blocks: %w", err)
	}
	secret, err := draw()
	if err != nil {
		return nil, fmt.Errorf("reserve kv blocks: %w", err)
	}
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
	}, nil
}

// memory is the number of the memory that tickets name; 0: none.
func (r *Receiver) memory() uint64 {
	if r.lending == nil {
		return 0
	}
	return r.lending.Memory()
}

func (r *Receiver) reserve(secret uint64, res Reservation) (id uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id, err = r.drawID(); err != nil {
		return 0, err
	}
	for _, a := range r.core.Handle(time.Now(), receiver.Reserve{
		ID: id, Secret: secret, RequestID: res.RequestID, Blocks: res.Blocks[:res.PromptBlocks:res.PromptBlocks], Held: res.HeldBlocks,
	}) {
		if rejected, ok := a.(receiver.Rejected); ok {
			if rejected.Closed {
				return 0, ErrClosed
			}
			return 0, ErrFull
		}
	}
	r.owners[id] = &res
	r.rearm()
	return id, nil
}

// Cancel ends a reservation for its owner: Drained follows, at once if nobody
// came with the ticket, else once nothing can land any more. Failed does not. It
// does nothing to a transfer that is unknown, over, or committed, the callback
// of which may be under way. It does not block; it may be called from a callback.
func (r *Receiver) Cancel(transferID uint64) { r.handle(receiver.Cancel{ID: transferID}) }

// owner takes the callbacks of a reservation that ends, or of one that goes on
// to Drained.
func (r *Receiver) owner(id uint64, last bool) *Reservation {
	res := r.owners[id]
	if last {
		delete(r.owners, id)
	}
	return res
}
