package sender

import (
	"fmt"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// The steps that the table names. Each leaves the transfer in one of its states
// or forgets it.

func (c *Core) openSent(t *transfer, _ input) {
	t.state = opening
	c.awaitAnswer(t)
}

func (c *Core) accepted(t *transfer, _ input) {
	t.state = open
	c.keep(t)
	c.emit(Accepted{ID: t.id()})
	c.enqueue(t)
	c.commitIfDone(t)
}

func (c *Core) refused(t *transfer, in input) {
	t.result = Result{End: EndRefused, Refuse: in.refuse.GetReason(), Detail: in.refuse.GetDetail()}
	c.forget(t, in)
}

// offer takes slices over, each once: that bounds what can be queued.
func (c *Core) offer(t *transfer, in input) {
	o := in.offer
	if len(o.Blocks) == 0 {
		return
	}
	if t.committing || !t.offered.Add(o.Layer, o.First-int(t.ticket.GetHeldBlocks()), len(o.Blocks)) {
		c.giveUp(t, fmt.Errorf("layer %d of blocks %d to %d of %d, of which %d are held, was offered twice, after commit, or lies outside",
			o.Layer, o.First, o.First+len(o.Blocks), t.ticket.GetBlocks(), t.ticket.GetHeldBlocks()))
		return
	}
	t.backlog.add(o.Layer, o.First, o.Blocks)
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

func (c *Core) commitIfDone(t *transfer) {
	if t.state == open && t.committing && t.backlog.empty() {
		c.note(noteCommit, t)
	}
}

func (c *Core) commitSent(t *transfer, _ input) {
	t.state, t.commitSent = committing, true
	c.awaitAnswer(t)
}

func (c *Core) committed(t *transfer, in input) {
	t.result = Result{End: EndCommitted}
	c.forget(t, in)
}

// committedFirst: the receiver had committed before it read Abort, and that is
// the truth.
func (c *Core) committedFirst(t *transfer, in input) {
	if !t.commitSent || t.result.End != 0 {
		c.breach(t, in)
		return
	}
	t.result = Result{End: EndCommitted}
	c.settle(t, in)
}

func (c *Core) failed(t *transfer, in input) {
	t.result = Result{End: EndFailed, Fail: in.failed.GetReason(), Detail: in.failed.GetDetail()}
	c.beginAbort(t, kvtransferv1.AbortReason_ABORT_REASON_ACKNOWLEDGED)
}

// abort ends a transfer for its owner. What was committed before is for the
// receiver to say.
func (c *Core) abort(t *transfer, in input) {
	if !t.commitSent {
		t.result = Result{End: EndAborted, Abort: in.abort}
	}
	c.beginAbort(t, in.abort)
}

func (c *Core) abortQuiet(t *transfer, in input) {
	t.result = Result{End: EndAborted, Abort: in.abort, Err: in.err}
	t.state = reading // which lets a queued Open lapse
	c.forget(t, in)
}

// giveUp ends a transfer for a mistake at this side.
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

func (c *Core) beginAbort(t *transfer, reason kvtransferv1.AbortReason) {
	t.state, t.abort = aborting, reason
	t.backlog = backlog{}
	c.deadlines.Clear(timer{transfer: t.id()}) // the writer's deadline runs until Abort is sent
	c.note(noteAbort, t)
	c.settle(t, input{})
}

func (c *Core) abortSent(t *transfer, _ input) {
	t.abortSent = true
	c.awaitAnswer(t)
}

func (c *Core) drained(t *transfer, in input) {
	if !t.abortSent {
		c.breach(t, in)
		return
	}
	if t.result.End == 0 {
		t.result = Result{End: EndAborted, Abort: t.abort}
	}
	c.forget(t, in)
}

func (c *Core) lost(t *transfer, in input) {
	if t.result.End == 0 {
		t.result = Result{End: EndBroken, Err: in.err}
	}
	t.state = reading
	t.backlog = backlog{}
	c.deadlines.Clear(timer{transfer: t.id()})
	if !t.reading {
		c.forget(t, in)
	}
}

// settle says Ended, once, when the end is known and no page is being read.
func (c *Core) settle(t *transfer, _ input) {
	if t.settled || t.reading || t.result.End == 0 {
		return
	}
	t.settled = true
	c.emit(Ended{ID: t.id(), Result: t.result})
}

// renew says that the transfer is still wanted, though the engine has nothing.
func (c *Core) renew(t *transfer, _ input) {
	if len(c.renewals) == 0 {
		c.note(noteRenew, nil)
	}
	if !t.renewing {
		t.renewing = true
		c.renewals = append(c.renewals, t)
	}
	c.keep(t)
}

// keep asks for a Renew when nothing was sent for a third of the lease.
func (c *Core) keep(t *transfer) {
	c.deadlines.Set(timer{transfer: t.id()}, c.now.Add(max(t.lease/3, 1)))
}

func (c *Core) unheardOf(t *transfer, _ input) {
	what := [...]string{opening: "open", committing: "commit", aborting: "abort"}[t.state]
	c.closeStream(fmt.Errorf("the receiver did not answer %s of transfer %#x within %s", what, t.id(), c.cfg.AnswerTimeout))
}

func (c *Core) breach(t *transfer, _ input) {
	c.closeStream(fmt.Errorf("the receiver broke the protocol: an answer about transfer %#x that was not asked for", t.id()))
}
