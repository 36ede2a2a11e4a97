package kvtransfer

import (
	"cmp"
	"context"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Transfer is one transfer at its sender, from Open on. Its methods are safe for
// concurrent use and none blocks.
type Transfer struct {
	conn     *connection
	id       uint64
	opened   time.Time
	accepted chan struct{}
	released chan struct{}
	done     chan struct{}

	// Guarded by conn.mu.
	err   error
	stats TransferStats
}

// Send offers the slices of one layer of neighbouring blocks: firstBlock counts
// in the reservation, blocks are their pages here, which must hold the KV and
// not change until Released. Each slice that the receiver does not hold is offered
// exactly once; another one ends the transfer with ABORT_REASON_FAILED and an
// error that says so. The Transfer keeps the slice and does not change it.
func (t *Transfer) Send(layer, firstBlock int, blocks []kvcache.BlockID) {
	c := t.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	t.stats.LastSend = time.Since(t.opened)
	t.stats.FirstOffered = cmp.Or(t.stats.FirstOffered, t.stats.LastSend)
	c.apply(c.core.HandleOffer(time.Now(), sender.Offer{ID: t.id, Layer: layer, First: firstBlock, Blocks: blocks}))
}

// Computed notes for Stats that the layers whose KV was offered are computed whole,
// with what comes after their keys and values. The last call counts.
func (t *Transfer) Computed() {
	t.conn.mu.Lock()
	defer t.conn.mu.Unlock()
	t.stats.Computed = time.Since(t.opened)
}

// Commit says that everything was offered, and passes on the tokens sampled so
// far, in order. The receiver checks; Done and Err tell. Send must not follow.
func (t *Transfer) Commit(sampled []int32) {
	t.conn.mu.Lock()
	if t.stats.LastOffered == 0 {
		t.stats.LastOffered = time.Since(t.opened)
	}
	t.conn.mu.Unlock()
	t.conn.handle(sender.Commit{ID: t.id, Sampled: sampled})
}

// Abort ends the transfer without commit. If Commit was sent before, the
// receiver decides which came first, and Err tells. It may be called more than
// once, and does nothing once the transfer has ended.
func (t *Transfer) Abort(reason kvtransferv1.AbortReason) {
	t.conn.handle(sender.Abort{ID: t.id, Reason: reason})
}

// Released is closed when no page will be read for the transfer any more: all that
// was offered was taken out of the pages or given up, and no more can be. It never
// waits for the receiver once Abort was called, as Done does after Commit.
func (t *Transfer) Released() <-chan struct{} { return t.released }

// Done is closed when the transfer has ended and no page will be read for it any
// more.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Err says, after Done, how it ended: nil if it was committed, a *FailedError if
// the receiver ended it, an *AbortedError if this side did (with the cause
// joined, if pages could not be read or Send was misused), a *BrokenError if the
// stream ended. Before Done it is nil.
func (t *Transfer) Err() error {
	t.conn.mu.Lock()
	defer t.conn.mu.Unlock()
	return t.err
}

// Opened is when Open was called, from which the times of Stats count.
func (t *Transfer) Opened() time.Time { return t.opened }

// Stats is a view of the transfer at this moment.
func (t *Transfer) Stats() TransferStats {
	t.conn.mu.Lock()
	defer t.conn.mu.Unlock()
	return t.stats
}

// end is told to whoever waits. conn.mu is held.
func (t *Transfer) end(r sender.Result) {
	t.err = t.conn.resultError(r)
	if t.err == nil {
		t.stats.Acknowledged = time.Since(t.opened)
	}
	close(t.done)
}

// SendAll sends whole blocks, but for the held first ones, and commits. It returns
// when no page is read any more; after the end of ctx it does not wait for the receiver,
// which may yet commit.
func (t *Transfer) SendAll(ctx context.Context, layers, held int, blocks []kvcache.BlockID) error {
	if held < len(blocks) {
		for layer := range layers {
			t.Send(layer, held, blocks[held:])
		}
	}
	t.Commit(nil)
	select {
	case <-t.Done():
		return t.Err()
	case <-ctx.Done():
	}
	t.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
	<-t.Released()
	select {
	case <-t.Done():
		if t.Err() == nil {
			return nil // it was committed all the same
		}
	default:
	}
	return context.Cause(ctx)
}
