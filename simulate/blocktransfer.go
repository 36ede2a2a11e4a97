package simulate

import (
	"context"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

// blockTransfer is a transfer of blocks that are all there, to a block store or from one.
type blockTransfer struct {
	from    *process
	ticket  *kvtransferv1.Ticket
	blocks  []kvcache.BlockID // of the whole prefix
	session *session          // nil: it has not begun
	bytes   uint64
	// cause is why it was stopped; nil: it was not.
	cause error
	// done is called once, when no block is read any more.
	done func(bytes uint64, err error)
}

// send sends blocks, but for those that the ticket says are held.
func (p *process) send(ticket *kvtransferv1.Ticket, blocks []kvcache.BlockID, done func(bytes uint64, err error)) *blockTransfer {
	b := &blockTransfer{from: p, ticket: ticket, blocks: blocks, done: done}
	p.open(ticket, b)
	return b
}

// stop ends it early. done is called all the same.
func (b *blockTransfer) stop(cause error) {
	if b.cause != nil {
		return
	}
	b.cause = cause
	if b.session != nil {
		b.session.handle(sender.Abort{ID: b.ticket.GetTransferId(), Reason: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED})
	}
}

func (b *blockTransfer) unreached(err error) { b.done(0, err) }

func (b *blockTransfer) began(s *session) { b.session = s }

func (b *blockTransfer) accepted() {
	id, held := b.ticket.GetTransferId(), int(b.ticket.GetHeldBlocks())
	if b.cause != nil { // while it waited for its session
		b.session.handle(sender.Abort{ID: id, Reason: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED})
		return
	}
	if held < len(b.blocks) {
		for layer := range b.from.layout.Layers {
			b.session.handle(sender.Offer{ID: id, Layer: layer, First: held, Blocks: b.blocks[held:]})
		}
	}
	b.session.handle(sender.Commit{ID: id})
}

func (b *blockTransfer) shipped(bytes int) { b.bytes += uint64(bytes) }

func (b *blockTransfer) ended(e sender.Ended) {
	err := resultError(e.Result)
	if err != nil && b.cause != nil {
		err = b.cause
	}
	b.done(b.bytes, err)
}

// errLate is why what took too long was stopped, errStopped why what nobody wants any more was.
var errLate, errStopped = context.DeadlineExceeded, context.Canceled
