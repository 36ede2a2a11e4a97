package receiver

import (
	"fmt"
	"math"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/coverage"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// The steps that the table names. Each leaves the transfer in one of its states
// or takes it out of the tables.

func (c *Core) accept(t *transfer, in input) {
	t.state, t.stream = open, in.stream
	t.seen = coverage.New(c.cfg.Layers, len(t.blocks)-t.held)
	in.stream.transfers[t.id] = t
	c.lease(t)
	c.send(in.stream, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Accept{
		Accept: &kvtransferv1.Accept{TransferId: t.id}}})
}

func (c *Core) refuseTwice(t *transfer, in input) {
	c.refuse(in.stream, t.id, kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN, "a ticket serves once")
}

func (c *Core) renew(t *transfer, _ input) { c.lease(t) }

func (c *Core) take(t *transfer, in input) {
	write, reason, detail := c.check(t, in.chunk)
	if detail != "" {
		c.fail(t, input{reason: reason, detail: detail})
		return
	}
	t.sequence++
	t.writing++
	c.lease(t)
	c.emit(write)
}

// finish ends a transfer that was wholly sent: at once, or after its copies.
func (c *Core) finish(t *transfer, in input) {
	reason, detail := c.checkCommit(t, in.commit)
	if detail != "" {
		c.fail(t, input{reason: reason, detail: detail})
		return
	}
	t.state = committing
	c.deadlines.Clear(timer{transfer: t.id})
	c.landLast(t, in)
}

func (c *Core) checkCommit(t *transfer, m *kvtransferv1.Commit) (kvtransferv1.FailReason, string) {
	if m.GetCrc32C() != wire.CommitChecksum(m) {
		return kvtransferv1.FailReason_FAIL_REASON_CHECKSUM, "commit does not have its crc-32c"
	}
	if m.GetEpoch() != c.cfg.Epoch {
		return kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, "commit with the epoch of another incarnation"
	}
	if m.GetChunks() != t.sequence {
		return kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE, fmt.Sprintf("%d chunks came of %d", t.sequence, m.GetChunks())
	}
	if layer, block, missing := t.seen.FirstMissing(); missing {
		return kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE,
			fmt.Sprintf("layer %d of block %d is missing, %d slices in all", layer, block+t.held, t.seen.Missing())
	}
	t.sampled = make([]int32, 0, len(m.GetSampledTokenIds()))
	for _, token := range m.GetSampledTokenIds() {
		if token > math.MaxInt32 {
			return kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, fmt.Sprintf("token id %d is out of range", token)
		}
		t.sampled = append(t.sampled, int32(token))
	}
	return 0, ""
}

func (c *Core) landLast(t *transfer, _ input) {
	if t.writing > 0 {
		return
	}
	c.totals.Committed++
	c.emit(Committed{ID: t.id, Sampled: t.sampled, Bytes: t.bytes})
	c.send(t.stream, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Committed{
		Committed: &kvtransferv1.Committed{TransferId: t.id}}})
	c.forget(t)
}

func (c *Core) failLateChunk(t *transfer, _ input) {
	c.fail(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, detail: "more came after its commit"})
}

func (c *Core) expire(t *transfer, _ input) {
	c.fail(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_EXPIRED, detail: fmt.Sprintf("no sign of life for %s", c.cfg.Lease)})
}

// fail ends an open transfer at this side.
func (c *Core) fail(t *transfer, in input) {
	c.totals.Failed++
	c.emit(Failed{ID: t.id, Reason: in.reason, Detail: in.detail})
	c.end(t, in)
}

// cancel is fail for its own owner, who need not be told.
func (c *Core) cancel(t *transfer, _ input) {
	c.totals.Cancelled++
	c.end(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_CANCELLED, detail: "the request is over"})
}

func (c *Core) end(t *transfer, in input) {
	t.state = ending
	c.lease(t)
	c.send(t.stream, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Failed{
		Failed: &kvtransferv1.Failed{TransferId: t.id, Reason: in.reason, Detail: in.detail}}})
}

// giveUpStream: the sender ought to have answered Failed. No timer may free the
// blocks, so the stream has to go.
func (c *Core) giveUpStream(t *transfer, _ input) {
	c.closeStream(t.stream, Silence, fmt.Sprintf("no abort of failed transfer %#x within %s", t.id, c.cfg.Lease))
}

func (c *Core) aborted(t *transfer, in input) {
	c.totals.Aborted++
	c.emit(Aborted{ID: t.id, Reason: in.abort})
	c.acknowledged(t, in)
}

func (c *Core) broken(t *transfer, in input) {
	c.totals.Broken++
	c.emit(Broken{ID: t.id})
	c.acknowledged(t, in)
}

// acknowledged: no chunk will follow.
func (c *Core) acknowledged(t *transfer, in input) {
	t.state = draining
	c.deadlines.Clear(timer{transfer: t.id})
	c.drainLast(t, in)
}

func (c *Core) drainLast(t *transfer, _ input) {
	if t.writing > 0 {
		return
	}
	if t.aborted {
		c.sendDrained(t.stream, t.id)
	}
	c.emit(Drained{ID: t.id})
	c.forget(t)
}

// drain ends, for its owner, a reservation that nobody came for.
func (c *Core) drain(t *transfer, _ input) {
	c.totals.Cancelled++
	c.emit(Drained{ID: t.id})
	c.forget(t)
}

func (c *Core) lapse(t *transfer, _ input) {
	c.giveUpIdle(t, input{
		reason: kvtransferv1.FailReason_FAIL_REASON_EXPIRED,
		detail: fmt.Sprintf("no sender came within %s", c.cfg.Lease),
	})
}

// giveUpIdle ends, for this side, a reservation that nobody came for.
func (c *Core) giveUpIdle(t *transfer, in input) {
	c.totals.Failed++
	c.emit(Failed{ID: t.id, Reason: in.reason, Detail: in.detail})
	c.emit(Drained{ID: t.id})
	c.forget(t)
}

func (c *Core) breach(t *transfer, _ input) {
	c.closeStream(t.stream, Breach, fmt.Sprintf("transfer %#x went on after its abort", t.id))
}
