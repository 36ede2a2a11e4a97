package sender

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// note is a queued message, built when its turn comes if it is still valid then.
type note struct {
	what noteKind
	of   *transfer
}

type noteKind int

const (
	noteOpen noteKind = iota
	noteCommit
	noteAbort
	noteRenew
)

// note queues a message of a transfer, or Renew.
func (c *Core) note(of int, what noteKind, t *transfer) {
	c.stripes[of].control = append(c.stripes[of].control, note{what: what, of: t})
}

func (c *Core) nextNote(of int) Action {
	s := &c.stripes[of]
	for len(s.control) > 0 {
		n := s.control[0]
		s.control = s.control[1:]
		if m := c.build(n, of); m != nil {
			return Write{Stripe: of, Message: m}
		}
	}
	return nil
}

// build returns the message of a note, or nil if the note is no longer valid.
func (c *Core) build(n note, of int) *kvtransferv1.SenderMessage {
	t := n.of
	switch {
	case n.what == noteOpen && t.state == waiting:
		c.step(t, onOpenSent, input{stripe: of})
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
			TransferId:   t.id(),
			Epoch:        t.ticket.GetEpoch(),
			Secret:       t.ticket.GetSecret(),
			LayoutDigest: c.cfg.LayoutDigest,
			RequestId:    t.requestID,
			Traceparent:  t.traceParent,
			Encoding:     t.encoding,
		}}}
	case n.what == noteCommit && t.state == open:
		c.step(t, onCommitSent, input{stripe: of})
		m := &kvtransferv1.Commit{
			TransferId: t.id(),
			Epoch:      t.ticket.GetEpoch(),
			Chunks:     t.lanes[of].sequence,
		}
		if of == 0 {
			m.SampledTokenIds = t.sampled
		}
		m.Crc32C = wire.CommitChecksum(m)
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Commit{Commit: m}}
	case n.what == noteAbort && t.state == aborting:
		c.step(t, onAbortSent, input{stripe: of})
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

func (c *Core) receive(ev Received) {
	if c.gone {
		return
	}
	if ev.Stripe != 0 && ev.Message.GetGrant() == nil {
		c.closeStream(fmt.Errorf("the receiver broke the protocol: it sent %T over stripe %d", ev.Message.GetMessage(), ev.Stripe))
		return
	}
	switch m := ev.Message.GetMessage().(type) {
	case *kvtransferv1.ReceiverMessage_Accept:
		c.answer(m.Accept.GetTransferId(), onAccept, input{accept: m.Accept})
	case *kvtransferv1.ReceiverMessage_Refuse:
		c.answer(m.Refuse.GetTransferId(), onRefuse, input{refuse: m.Refuse})
	case *kvtransferv1.ReceiverMessage_Grant:
		c.grant(ev.Stripe, m.Grant.GetCreditBytes())
	case *kvtransferv1.ReceiverMessage_Committed:
		c.answer(m.Committed.GetTransferId(), onCommitted, input{})
	case *kvtransferv1.ReceiverMessage_Failed:
		c.answer(m.Failed.GetTransferId(), onFailed, input{failed: m.Failed})
	case *kvtransferv1.ReceiverMessage_Drained:
		c.answer(m.Drained.GetTransferId(), onDrained, input{})
	default:
		c.closeStream(fmt.Errorf("the receiver broke the protocol: it sent %T out of turn", m))
	}
}

func (c *Core) answer(id uint64, k kind, in input) {
	t := c.transfers[id]
	if t == nil {
		c.closeStream(fmt.Errorf("the receiver broke the protocol: it answered about transfer %#x, which is not in this session", id))
		return
	}
	c.step(t, k, in)
}

func (c *Core) grant(of int, bytes uint64) {
	s := &c.stripes[of]
	if bytes == 0 || bytes > uint64(s.most-s.credit) {
		c.closeStream(fmt.Errorf("the receiver broke the protocol: it granted %d bytes, but only %d were used", bytes, s.most-s.credit))
		return
	}
	s.credit += int(bytes)
	s.granted += int(bytes)
	if len(c.ring) == 0 || max(c.sendable(of), s.granted) >= c.need() {
		c.deadlines.Clear(timer{what: creditTimer, stripe: of})
	}
}
