package sender

import (
	"cmp"
	"fmt"
	"slices"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// next gives the writer one thing to write, if there is one: what is not a chunk
// first, then a chunk of each transfer in turn, as far as the credit goes.
func (c *Core) next() {
	action := c.nextNote()
	if action == nil {
		action = c.nextChunk()
	}
	if action == nil {
		c.asleep = true
		return
	}
	c.deadlines.Set(timer{what: writerTimer}, c.now.Add(c.cfg.AnswerTimeout))
	c.emit(action)
}

func (c *Core) nextNote() Action {
	for len(c.control) > 0 {
		n := c.control[0]
		c.control = c.control[1:]
		if m := c.build(n); m != nil {
			return Write{Message: m}
		}
	}
	return nil
}

// build makes the message of a note, or nil if the note does not hold any more.
func (c *Core) build(n note) *kvtransferv1.SenderMessage {
	t := n.of
	switch {
	case n.what == noteOpen && t.state == waiting:
		c.step(t, onOpenSent, input{})
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
			TransferId:   t.id(),
			Epoch:        t.ticket.GetEpoch(),
			Secret:       t.ticket.GetSecret(),
			LayoutDigest: c.cfg.LayoutDigest,
			RequestId:    t.requestID,
			Traceparent:  t.traceParent,
		}}}
	case n.what == noteCommit && t.state == open:
		c.step(t, onCommitSent, input{})
		m := &kvtransferv1.Commit{
			TransferId:      t.id(),
			Epoch:           t.ticket.GetEpoch(),
			Chunks:          t.sequence,
			SampledTokenIds: t.sampled,
		}
		m.Crc32C = wire.CommitChecksum(m)
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Commit{Commit: m}}
	case n.what == noteAbort && t.state == aborting:
		c.step(t, onAbortSent, input{})
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Abort{Abort: &kvtransferv1.Abort{
			TransferId: t.id(),
			Reason:     t.abort,
		}}}
	case n.what == noteRenew:
		return c.buildRenew()
	}
	return nil
}

func (c *Core) buildRenew() *kvtransferv1.SenderMessage {
	var ids []uint64
	for _, t := range c.renewals {
		t.renewing = false
		if t.state == open {
			ids = append(ids, t.id())
		}
	}
	c.renewals = nil
	if len(ids) == 0 {
		return nil
	}
	slices.SortFunc(ids, cmp.Compare)
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Renew{
		Renew: &kvtransferv1.Renew{TransferIds: ids}}}
}

func (c *Core) nextChunk() Action {
	for len(c.ring) > 0 {
		t := c.ring[0]
		if t.state != open || t.backlog.empty() {
			c.ring, t.inRing = c.ring[1:], false
			continue
		}
		limit := c.cfg.MaxChunkBytes / c.cfg.SliceBytes
		if c.credit < min(limit, t.backlog.next())*c.cfg.SliceBytes {
			// Waiting here is fair and cannot last: all that is on its way will be
			// granted again, and that makes a chunk at least.
			if !c.deadlines.Has(timer{what: creditTimer}) {
				c.deadlines.Set(timer{what: creditTimer}, c.now.Add(c.cfg.AnswerTimeout))
			}
			return nil
		}
		c.ring, t.inRing = c.ring[1:], false
		return c.chunk(t, limit)
	}
	return nil
}

func (c *Core) chunk(t *transfer, limit int) Action {
	layer, runs, blocks := t.backlog.take(limit)
	w := WriteChunk{
		ID: t.id(), Blocks: blocks,
		Chunk: wire.Chunk{TransferID: t.id(), Sequence: t.sequence, Layer: uint32(layer), Runs: runs, PayloadBytes: len(blocks) * c.cfg.SliceBytes},
	}
	t.sequence++
	t.reading = true
	c.sending = w.Chunk.PayloadBytes
	c.credit -= c.sending
	c.keep(t)
	c.enqueue(t)
	c.commitIfDone(t)
	return w
}

// enqueue gives a transfer its place in the ring, behind the others.
func (c *Core) enqueue(t *transfer) {
	if !t.inRing && !t.backlog.empty() {
		t.inRing = true
		c.ring = append(c.ring, t)
		c.poke = true
	}
}

func (c *Core) receive(m *kvtransferv1.ReceiverMessage) {
	switch m := m.GetMessage().(type) {
	case *kvtransferv1.ReceiverMessage_Accept:
		c.answer(m.Accept.GetTransferId(), onAccept, input{})
	case *kvtransferv1.ReceiverMessage_Refuse:
		c.answer(m.Refuse.GetTransferId(), onRefuse, input{refuse: m.Refuse})
	case *kvtransferv1.ReceiverMessage_Grant:
		c.grant(m.Grant.GetCreditBytes())
	case *kvtransferv1.ReceiverMessage_Committed:
		c.answer(m.Committed.GetTransferId(), onCommitted, input{})
	case *kvtransferv1.ReceiverMessage_Failed:
		c.answer(m.Failed.GetTransferId(), onFailed, input{failed: m.Failed})
	case *kvtransferv1.ReceiverMessage_Drained:
		c.answer(m.Drained.GetTransferId(), onDrained, input{})
	default:
		c.closeStream(fmt.Errorf("the receiver broke the protocol: a message %T that was not due", m))
	}
}

func (c *Core) answer(id uint64, k kind, in input) {
	t := c.transfers[id]
	if t == nil {
		c.closeStream(fmt.Errorf("the receiver broke the protocol: an answer about transfer %#x, which is not on this stream", id))
		return
	}
	c.step(t, k, in)
}

func (c *Core) grant(bytes uint64) {
	if bytes > uint64(c.cfg.CreditBytes-c.credit) {
		c.closeStream(fmt.Errorf("the receiver broke the protocol: it granted %d bytes of which %d were used", bytes, c.cfg.CreditBytes-c.credit))
		return
	}
	c.credit += int(bytes)
	c.deadlines.Clear(timer{what: creditTimer})
	c.poke = true
}
