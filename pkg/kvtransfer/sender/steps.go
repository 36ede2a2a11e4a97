package sender

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// Steps of the table. Each leaves the transfer in one of its states or forgets it.

func (c *Core) openSent(t *transfer, _ input) {
	t.state = opening
	c.awaitAnswer(t)
}

func (c *Core) accept(t *transfer, in input) {
	pages := in.accept.GetPages()
	if t.encoding == kvtransferv1.Encoding_ENCODING_SHARED {
		if blocks := int(t.ticket.GetBlocks() - t.ticket.GetHeldBlocks()); len(pages) != blocks || in.accept.GetCrc32C() != wire.AcceptChecksum(in.accept) {
			c.closeStream(fmt.Errorf("the receiver broke the protocol: it accepted transfer %#x with %d shared pages for %d blocks, or with a wrong checksum",
				t.id(), len(pages), blocks))
			return
		}
	}
	t.state, t.answered, t.accepted = open, true, true
	c.keep(t)
	c.emit(Accepted{ID: t.id(), Pages: pages})
	c.enqueue(t)
	c.commitIfDone(t)
}

// acceptLate sends Abort on the other stripes: the receiver now expects it on each. Earlier
// it could have overtaken Open.
func (c *Core) acceptLate(t *transfer, in input) {
	if t.answered {
		c.breach(t, in)
		return
	}
	t.answered, t.accepted = true, true
	for i := 1; i < len(c.stripes); i++ {
		c.note(i, noteAbort, t)
	}
}

func (c *Core) refuse(t *transfer, in input) {
	t.result = Result{End: EndRefused, Refuse: in.refuse.GetReason(), Detail: in.refuse.GetDetail()}
	c.forget(t)
}

func (c *Core) refuseLate(t *transfer, in input) {
	if t.answered {
		c.breach(t, in)
		return
	}
	t.answered = true
}

// offer takes slices over, each once, which bounds the queue.
func (c *Core) offer(t *transfer, in input) {
	o := in.offer
	if len(o.Blocks) == 0 {
		return
	}
	if t.committing || !t.offered.Add(o.Layer, o.First-int(t.ticket.GetHeldBlocks()), len(o.Blocks)) {
		c.giveUp(t, fmt.Errorf("layer %d of blocks %d to %d (of %d, %d of them held) was offered twice, after the commit, or out of range",
			o.Layer, o.First, o.First+len(o.Blocks), t.ticket.GetBlocks(), t.ticket.GetHeldBlocks()))
		return
	}
	t.backlog.add(&c.segments, c.cfg.Layers, o.Layer, o.First, o.Blocks)
	if t.state == open {
		c.enqueue(t)
	}
}

func (c *Core) commit(t *transfer, in input) {
	if t.committing {
		return
	}
	t.committing = true
	t.sampled = make([]uint32, len(in.commit.Sampled))
	for i, token := range in.commit.Sampled {
		t.sampled[i] = uint32(token)
	}
	c.commitIfDone(t)
}

// commitIfDone queues Commit on every stripe. A chunk that a writer took is on its stripe
// before the writer asks again.
func (c *Core) commitIfDone(t *transfer) {
	if t.state != open || !t.committing || t.queued || !t.backlog.empty() {
		return
	}
	t.queued = true
	for i := range c.stripes {
		c.note(i, noteCommit, t)
	}
	c.release(t)
}

func (c *Core) commitSent(t *transfer, _ input) {
	if t.commits++; t.commits < len(t.lanes) {
		c.keep(t)
		return
	}
	t.state = committing
	c.awaitAnswer(t)
}

func (c *Core) committed(t *transfer, in input) {
	t.result = Result{End: EndCommitted}
	c.finish(t, in)
}

// committedFirst: the receiver committed before it read Abort, and its word counts.
func (c *Core) committedFirst(t *transfer, in input) {
	if t.commits < len(t.lanes) || t.result.End != 0 {
		c.breach(t, in)
		return
	}
	t.result = Result{End: EndCommitted}
	c.tellEnd(t, in)
}

func (c *Core) failed(t *transfer, in input) {
	t.result = Result{End: EndFailed, Fail: in.failed.GetReason(), Detail: in.failed.GetDetail()}
	c.beginAbort(t, kvtransferv1.AbortReason_ABORT_REASON_ACKNOWLEDGED)
}

// abort ends a transfer for its owner. If Commit went over every stripe, the receiver
// decides the outcome.
func (c *Core) abort(t *transfer, in input) {
	if t.commits < len(t.lanes) {
		t.result = Result{End: EndAborted, Abort: in.abort}
	}
	c.beginAbort(t, in.abort)
}

func (c *Core) abortQuiet(t *transfer, in input) {
	t.result = Result{End: EndAborted, Abort: in.abort, Err: in.err}
	t.backlog.clear(&c.segments)
	c.forget(t)
}

// giveUp ends a transfer after an error on this side.
func (c *Core) giveUp(t *transfer, err error) {
	const failed = kvtransferv1.AbortReason_ABORT_REASON_FAILED
	if t.state == waiting {
		c.abortQuiet(t, input{abort: failed, err: err})
		return
	}
	t.result = Result{End: EndAborted, Abort: failed, Err: err}
	c.beginAbort(t, failed)
}

func (c *Core) unreadable(t *transfer, in input) {
	c.giveUp(t, fmt.Errorf("read kv pages: %w", in.err))
}

// beginAbort queues Abort on every stripe. Before the receiver answers Open, it queues
// Abort only on Open's stripe: on another, Abort could overtake Open.
func (c *Core) beginAbort(t *transfer, reason kvtransferv1.AbortReason) {
	t.state, t.abort = aborting, reason
	t.backlog.clear(&c.segments)
	c.leave(t)
	c.deadlines.Clear(timer{transfer: t.id()}) // the writers' deadlines apply until Abort is sent
	c.recall(t)
	for i := range c.stripes {
		if i == 0 || t.accepted {
			c.note(i, noteAbort, t)
		}
	}
	c.tellEnd(t, input{})
}

func (c *Core) abortSent(t *transfer, in input) {
	t.lanes[in.stripe].abortSent = true
	t.aborts++
	c.awaitAnswer(t)
}

// drained processes Drained. It is due after Aborts on all stripes, or for a refused or
// committed transfer after the one on stripe 0.
func (c *Core) drained(t *transfer, in input) {
	all := t.aborts == len(t.lanes)
	crossed := t.answered && !t.accepted || t.result.End == EndCommitted
	if !all && !(crossed && t.lanes[0].abortSent) {
		c.breach(t, in)
		return
	}
	if t.result.End == 0 {
		t.result = Result{End: EndAborted, Abort: t.abort}
	}
	c.finish(t, in)
}

func (c *Core) lost(t *transfer, in input) {
	if t.result.End == 0 {
		t.result = Result{End: EndBroken, Err: in.err}
	}
	t.backlog.clear(&c.segments)
	c.leave(t)
	c.finish(t, in)
}

// finish: the receiver owes nothing more.
func (c *Core) finish(t *transfer, _ input) {
	if t.reading == 0 {
		c.forget(t)
		return
	}
	t.state = reading
	c.deadlines.Clear(timer{transfer: t.id()})
	c.recall(t)
}

// recall frees lent pages without waiting for the receiver.
func (c *Core) recall(t *transfer) {
	if t.reading > 0 && t.encoding == kvtransferv1.Encoding_ENCODING_LENT {
		c.emit(Recall{ID: t.id()})
	}
}

func (c *Core) readLast(t *transfer, _ input) {
	if t.reading == 0 {
		c.forget(t)
	}
}

// release emits Released, once: when all that was offered was sent or given up, no more can
// be offered, and no page is being read.
func (c *Core) release(t *transfer) {
	if t.released || t.reading > 0 || !t.queued && t.state != aborting && t.result.End == 0 {
		return
	}
	t.released = true
	c.emit(Released{ID: t.id()})
}

// tellEnd emits Ended, once: when the outcome is known and no page is being read.
func (c *Core) tellEnd(t *transfer, _ input) {
	c.release(t)
	if t.told || t.reading > 0 || t.result.End == 0 {
		return
	}
	t.told = true
	c.emit(Ended{ID: t.id(), Result: t.result, Pace: c.pace.since(t.paceBefore)})
}

// renew keeps the transfer alive while the engine has nothing to send.
func (c *Core) renew(t *transfer, _ input) {
	if len(c.renewals) == 0 {
		c.note(0, noteRenew, nil)
	}
	if !t.renewing {
		t.renewing = true
		c.renewals = append(c.renewals, t)
	}
	c.keep(t)
}

// keep schedules a Renew for when nothing was sent for a third of the lease.
func (c *Core) keep(t *transfer) {
	c.deadlines.Set(timer{transfer: t.id()}, c.now.Add(max(t.lease/3, 1)))
}

func (c *Core) unheardOf(t *transfer, _ input) {
	what := [...]string{opening: "open", committing: "commit", aborting: "abort"}[t.state]
	c.closeStream(fmt.Errorf("the receiver did not answer %s of transfer %#x within %s", what, t.id(), c.patience))
}

func (c *Core) breach(t *transfer, _ input) {
	c.closeStream(fmt.Errorf("the receiver broke the protocol: it answered about transfer %#x without being asked", t.id()))
}
