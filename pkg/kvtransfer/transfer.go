package kvtransfer

import (
	"cmp"
	"context"
	"time"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Transfer is one transfer at its sender, created by Open. Its methods are safe for
// concurrent use and do not block.
type Transfer struct {
	conn     *connection
	id       uint64
	opened   time.Time
	accepted chan struct{}
	released chan struct{}
	done     chan struct{}
	held     int     // leading blocks that are not sent
	window   *window // set before accepted is closed; nil: nothing is written into mapped pages

	// Guarded by conn.loop.
	err   error
	stats TransferStats
}

// Send offers one layer's slices of consecutive blocks. firstBlock is an index into the
// reservation; blocks are local pages, which must hold the KV and not change until
// Released. Each slice that the receiver lacks must be offered exactly once; any other
// slice ends the transfer with ABORT_REASON_FAILED and an error. The Transfer keeps the
// slice and does not change it.
func (t *Transfer) Send(layer, firstBlock int, blocks []kvcache.BlockID) {
	c := t.conn
	c.loop.Lock()
	defer c.loop.Unlock()
	t.stats.LastSend = time.Since(t.opened)
	t.stats.FirstOffered = cmp.Or(t.stats.FirstOffered, t.stats.LastSend)
	coreloop.Step(c.loop, (*sender.Core).HandleOffer, sender.Offer{ID: t.id, Layer: layer, First: firstBlock, Blocks: blocks})
}

// Computed records for Stats that the layers offered are fully computed. The last call
// counts.
func (t *Transfer) Computed() {
	t.conn.loop.Lock()
	defer t.conn.loop.Unlock()
	t.stats.Computed = time.Since(t.opened)
}

// Commit says that all slices were offered and passes on the tokens sampled so far, in
// order. The outcome arrives through Done and Err. Send must not follow.
func (t *Transfer) Commit(sampled []int32) {
	t.conn.loop.Lock()
	defer t.conn.loop.Unlock()
	if t.stats.LastOffered == 0 {
		t.stats.LastOffered = time.Since(t.opened)
	}
	t.conn.loop.Step(sender.Commit{ID: t.id, Sampled: sampled})
}

// Abort ends the transfer without commit. If Commit was already sent, the receiver decides
// which came first; see Err. It may be called repeatedly and does nothing once the transfer
// has ended.
func (t *Transfer) Abort(reason kvtransferv1.AbortReason) {
	t.conn.loop.Handle(sender.Abort{ID: t.id, Reason: reason})
}

// Released is closed when no page will be read for the transfer any more. After Abort it
// does not wait for the receiver, while Done may if Commit was sent.
func (t *Transfer) Released() <-chan struct{} { return t.released }

// Done is closed when the transfer has ended and no page is read for it.
func (t *Transfer) Done() <-chan struct{} { return t.done }

// Err returns the outcome once Done is closed, nil before. It is nil if committed, a
// *FailedError if the receiver ended it, an *AbortedError if this side did (joined with the
// cause if pages could not be read or Send was misused), or a *BrokenError if the stream
// ended.
func (t *Transfer) Err() error {
	t.conn.loop.Lock()
	defer t.conn.loop.Unlock()
	return t.err
}

// Opened is when Open was called: time zero of Stats.
func (t *Transfer) Opened() time.Time { return t.opened }

// Stats returns a snapshot.
func (t *Transfer) Stats() TransferStats {
	t.conn.loop.Lock()
	defer t.conn.loop.Unlock()
	return t.stats
}

// end publishes the result. Requires conn.loop.
func (t *Transfer) end(e sender.Ended) {
	t.err = t.conn.resultError(e.Result)
	t.stats.PathBytes, t.stats.PathBusy = e.Pace.Bytes, e.Pace.Busy
	if t.err == nil {
		t.stats.Acknowledged = time.Since(t.opened)
	}
	close(t.done)
}

// SendAll sends whole blocks, except for the held leading ones, and commits. It returns
// when no page is read any more. After ctx ends it does not wait for the receiver, which
// may still commit.
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
			return nil // committed despite the abort
		}
	default:
	}
	return context.Cause(ctx)
}
