package receiver

import (
	"fmt"
	"math"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/internal/coverage"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Steps of the table. Each leaves the transfer in one of its states or forgets it.

func (c *Core) accept(t *transfer, in input) {
	t.state, t.session, t.moved = open, in.stream.session, c.now
	t.lanes = make([]lane, len(t.session.streams))
	t.seen = coverage.New(c.cfg.Layers, len(t.blocks)-t.held)
	t.encoding = in.encoding
	t.sliceBytes, _ = c.encoded(in.encoding, t.session)
	t.session.transfers[t.id] = t
	c.lease(t)
	accept := &kvtransferv1.Accept{TransferId: t.id}
	if isShared(t.encoding) {
		t.session.writesShared = true
		accept.Pages = make([]uint32, 0, len(t.blocks)-t.held)
		for _, b := range t.blocks[t.held:] {
			accept.Pages = append(accept.Pages, uint32(b))
		}
		accept.Crc32C = wire.AcceptChecksum(accept)
	}
	c.send(in.stream, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Accept{Accept: accept}})
}

func (c *Core) refuseTwice(t *transfer, in input) {
	c.refuse(in.stream, t.id, kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN, "a ticket can be used only once")
}

// renew extends the lease, but not beyond the time that a transfer may go without bytes:
// renewals alone do not hold blocks for ever.
func (c *Core) renew(t *transfer, _ input) {
	until := c.now.Add(c.cfg.Lease)
	if last := t.moved.Add(c.cfg.MaxIdle); c.cfg.MaxIdle > 0 && last.Before(until) {
		until = last
	}
	c.deadlines.Set(timer{transfer: t.id}, until)
}

func (c *Core) progress(t *transfer, _ input) {
	t.moved = c.now
	c.lease(t)
}

func (c *Core) take(t *transfer, in input) {
	reason, detail := c.check(t, in.stream, in.chunk)
	if detail != "" {
		c.fail(t, input{reason: reason, detail: detail})
		return
	}
	t.lane(in).sequence++
	t.writing++
	t.session.writing++
	c.lease(t)
	c.emit(&in.stream.write)
}

// finish processes the Commit of one stripe. The last one commits a complete transfer,
// after any copies still running.
func (c *Core) finish(t *transfer, in input) {
	reason, detail := c.checkCommit(t, in)
	if detail != "" {
		c.fail(t, input{reason: reason, detail: detail})
		return
	}
	t.lane(in).committed = true
	c.lease(t)
	if t.commits++; t.commits < len(t.lanes) {
		return
	}
	if t.withdrawn {
		c.fail(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, detail: "slices were committed after their pages were taken back"})
		return
	}
	if layer, block, missing := t.seen.FirstMissing(); missing {
		c.fail(t, input{
			reason: kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE,
			detail: fmt.Sprintf("layer %d of block %d is missing, one of %d missing slices", layer, block+t.held, t.seen.Missing()),
		})
		return
	}
	t.state = committing
	c.deadlines.Clear(timer{transfer: t.id})
	c.landLast(t, in)
}

// checkCommit verifies one stripe's Commit and takes its tokens.
func (c *Core) checkCommit(t *transfer, in input) (kvtransferv1.FailReason, string) {
	const protocol = kvtransferv1.FailReason_FAIL_REASON_PROTOCOL
	m, stripe := in.commit, in.stream.stripe
	switch l := t.lane(in); {
	case m.GetCrc32C() != wire.CommitChecksum(m):
		return kvtransferv1.FailReason_FAIL_REASON_CHECKSUM, "the commit's CRC-32C does not match"
	case m.GetEpoch() != c.cfg.Epoch:
		return protocol, "the commit names the epoch of another incarnation"
	case l.committed:
		return protocol, fmt.Sprintf("a second commit came over stripe %d", stripe)
	case m.GetChunks() != l.sequence:
		return kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE, fmt.Sprintf("%d of %d chunks came over stripe %d", l.sequence, m.GetChunks(), stripe)
	case stripe > 0 && len(m.GetSampledTokenIds()) > 0:
		return protocol, "tokens must go over the first stripe"
	}
	for _, token := range m.GetSampledTokenIds() {
		if token > math.MaxInt32 {
			return protocol, fmt.Sprintf("token id %d is out of range", token)
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
	c.emit(Committed{ID: t.id, Sender: t.session.sender, Sampled: t.sampled, Bytes: t.bytes, Approximate: !isExact(t.encoding)})
	c.answer(t.session, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Committed{
		Committed: &kvtransferv1.Committed{TransferId: t.id}}})
	c.forget(t)
}

// withdraw waits for the sender's Abort, which carries the reason and follows the recall.
func (c *Core) withdraw(t *transfer, in input) {
	t.withdrawn = true
	c.renew(t, in)
}

func (c *Core) failLate(t *transfer, _ input) {
	c.fail(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_PROTOCOL, detail: "data came after its commit"})
}

// held reports whether this side may be the reason for the silence: a copy of the transfer
// is running, or one of its session, behind which messages wait.
func (c *Core) held(t *transfer) bool {
	s := t.session
	return t.writing > 0 || s.writing > 0 && c.now.Sub(s.heard) >= c.cfg.Lease
}

// expire asks for no acknowledgement if the session was silent for a whole lease: a stuck
// sender does not get a second one.
func (c *Core) expire(t *transfer, _ input) {
	if c.held(t) {
		c.lease(t)
		return
	}
	s, why := t.session, fmt.Sprintf("no sign of life for %s", c.cfg.Lease)
	if c.cfg.MaxIdle > 0 && c.now.Sub(t.moved) >= c.cfg.MaxIdle {
		why = fmt.Sprintf("no KV came for %s", c.cfg.MaxIdle)
	}
	c.fail(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_EXPIRED, detail: why})
	if c.now.Sub(s.heard) >= c.cfg.Lease {
		c.closeSession(s, Silence, fmt.Sprintf("no sign of life from the sender for %s", c.cfg.Lease))
	}
}

// fail ends an open transfer from this side.
func (c *Core) fail(t *transfer, in input) {
	c.totals.Failed++
	c.emit(Failed{ID: t.id, Reason: in.reason, Detail: in.detail})
	c.quarantine(t, in)
}

// failSilently is fail without a message: the sender's streams are ending anyway.
func (c *Core) failSilently(t *transfer, in input) {
	c.totals.Failed++
	c.emit(Failed{ID: t.id, Reason: in.reason, Detail: in.detail})
	t.state = ending
	c.awaitEnd(t, in)
}

// cancel is fail without telling the owner, who asked for it.
func (c *Core) cancel(t *transfer, _ input) {
	c.totals.Cancelled++
	c.quarantine(t, input{reason: kvtransferv1.FailReason_FAIL_REASON_CANCELLED, detail: "the request is over"})
}

// quarantine waits one lease for the sender's Aborts.
func (c *Core) quarantine(t *transfer, in input) {
	t.state = ending
	c.lease(t)
	c.answer(t.session, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Failed{
		Failed: &kvtransferv1.Failed{TransferId: t.id, Reason: in.reason, Detail: in.detail}}})
}

// giveUpSession closes the session of a sender that did not send its Aborts in time, since
// no timer may free the blocks.
func (c *Core) giveUpSession(t *transfer, _ input) {
	if c.held(t) {
		c.lease(t)
		return
	}
	c.closeSession(t.session, Silence, fmt.Sprintf("transfer %#x was not aborted on every stripe within %s", t.id, c.cfg.Lease))
}

// awaitEnd waits without a deadline, since the streams are already being closed.
func (c *Core) awaitEnd(t *transfer, _ input) { c.deadlines.Clear(timer{transfer: t.id}) }

func (c *Core) aborted(t *transfer, in input) {
	c.totals.Aborted++
	c.emit(Aborted{ID: t.id, Reason: in.abort})
	t.state = ending
	c.lease(t)
	c.acknowledged(t, in)
}

func (c *Core) broken(t *transfer, in input) {
	c.totals.Broken++
	c.emit(Broken{ID: t.id})
	t.state = ending
	c.awaitEnd(t, in)
}

// acknowledged processes the Abort of one stripe. After the last, no chunk can follow.
func (c *Core) acknowledged(t *transfer, in input) {
	l := t.lane(in)
	if l.aborted {
		c.breach(t, in)
		return
	}
	l.aborted = true
	if t.aborts++; t.aborts == len(t.lanes) {
		c.quiet(t, in)
	}
}

// quiet drains the transfer, after any copies still running: no chunk can follow.
func (c *Core) quiet(t *transfer, in input) {
	t.state = draining
	c.deadlines.Clear(timer{transfer: t.id})
	c.drainLast(t, in)
}

func (c *Core) drainLast(t *transfer, _ input) {
	if t.writing > 0 {
		return
	}
	if t.session != nil {
		c.sendDrained(t.session.lead(), t.id)
	}
	c.emit(Drained{ID: t.id})
	c.forget(t)
}

// drop discards messages that were in flight when the transfer ended.
func (c *Core) drop(t *transfer, in input) {
	if t.lane(in).aborted {
		c.breach(t, in)
	}
}

// drain ends an unopened reservation for its owner.
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

// giveUpIdle ends an unopened reservation for the receiver.
func (c *Core) giveUpIdle(t *transfer, in input) {
	c.totals.Failed++
	c.emit(Failed{ID: t.id, Reason: in.reason, Detail: in.detail})
	c.emit(Drained{ID: t.id})
	c.forget(t)
}

func (c *Core) breach(t *transfer, _ input) {
	c.closeSession(t.session, Breach, fmt.Sprintf("transfer %#x continued after its abort", t.id))
}
