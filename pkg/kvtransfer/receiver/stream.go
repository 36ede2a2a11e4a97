package receiver

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

func (c *Core) receive(s *stream, ev Received) {
	hello, isHello := ev.Message.GetMessage().(*kvtransferv1.SenderMessage_Hello)
	switch {
	case isHello != (s.phase == awaitsHello):
		c.closeStream(s, Breach, "SenderHello must be the first message, and only the first")
	case isHello:
		c.join(s, hello.Hello)
	case s.session.phase == awaitsHello:
		// One of them may have joined and ended without the sender knowing.
		c.closeStream(s, SessionOver, "a session begins when all of its streams have sent SenderHello; one of them has not, or has ended")
	case ev.Message == nil && ev.Chunk != nil:
		s.session.heard = c.now
		c.receiveChunk(s, ev.Chunk)
	default:
		s.session.heard = c.now
		c.receiveMessage(s, ev.Message)
	}
}

func (c *Core) receiveMessage(s *stream, m *kvtransferv1.SenderMessage) {
	switch m := m.GetMessage().(type) {
	case *kvtransferv1.SenderMessage_Open:
		if c.leads(s, "open") {
			c.receiveOpen(s, m.Open)
		}
	case *kvtransferv1.SenderMessage_Commit:
		if t := s.session.transfers[m.Commit.GetTransferId()]; t != nil {
			c.step(t, onCommit, input{stream: s, commit: m.Commit})
		} else {
			c.closeStream(s, Breach, fmt.Sprintf("a commit of transfer %#x, which is not open in this session", m.Commit.GetTransferId()))
		}
	case *kvtransferv1.SenderMessage_Abort:
		c.receiveAbort(s, m.Abort)
	case *kvtransferv1.SenderMessage_Renew:
		if !c.leads(s, "renew") {
			return
		}
		c.receiveRenew(s, m.Renew)
	default:
		c.closeStream(s, Breach, "a message of an unknown kind")
	}
}

// receiveRenew renews each transfer of the session at most once: a correct sender names
// none twice.
func (c *Core) receiveRenew(s *stream, m *kvtransferv1.Renew) {
	left := len(s.session.transfers)
	for _, id := range m.GetTransferIds() {
		if left == 0 {
			return
		}
		if t := s.session.transfers[id]; t != nil {
			left--
			c.step(t, onRenew, input{stream: s})
		}
	}
}

// leads reports whether a stream is stripe 0, and closes it if it is not.
func (c *Core) leads(s *stream, what string) bool {
	if s.stripe != 0 {
		c.closeStream(s, Breach, what+" must go over the first stripe")
	}
	return s.stripe == 0
}

func (c *Core) receiveOpen(s *stream, m *kvtransferv1.Open) {
	t := c.transfers[m.GetTransferId()]
	_, encodes := c.encoded(m.GetEncoding(), s.session)
	encodes = encodes && (t == nil || !isShared(m.GetEncoding()) || len(t.blocks) <= MaxSharedBlocks)
	switch {
	case m.GetEpoch() != c.cfg.Epoch:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH, "the receiver was restarted after it made the ticket")
	case c.closed:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_BUSY, "the receiver shuts down")
	case t == nil:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER, "no such reservation: it expired, was cancelled or has ended")
	case m.GetSecret() != t.secret:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_BAD_SECRET, "")
	case !mayOpen(t, s):
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_SENDER, "the ticket is another sender's")
	case m.GetLayoutDigest() != c.cfg.LayoutDigest || s.session.layout != c.cfg.LayoutDigest:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT,
			fmt.Sprintf("layout digest is %#x here, but %#x at the sender", c.cfg.LayoutDigest, m.GetLayoutDigest()))
	case !encodes:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_ENCODING,
			fmt.Sprintf("encoding %v is neither native nor allowed by the ticket or the session", m.GetEncoding()))
	default:
		c.step(t, onOpen, input{stream: s, encoding: m.GetEncoding()})
	}
}

// encoded returns the bytes of one slice in an encoding; ok is false if the sender of a session
// may not use it.
func (c *Core) encoded(e kvtransferv1.Encoding, of *session) (sliceBytes int, ok bool) {
	switch {
	case isNative(e), e == kvtransferv1.Encoding_ENCODING_LENT && c.cfg.Lends, isShared(e) && of.mapped:
		return c.cfg.SliceBytes, true
	case e == c.cfg.Encoding:
		return c.cfg.EncodedBytes, true
	default:
		return 0, false
	}
}

// isExact reports whether an encoding is lossless.
func isExact(e kvtransferv1.Encoding) bool {
	return isNative(e) || e == kvtransferv1.Encoding_ENCODING_LENT || isShared(e)
}

func isShared(e kvtransferv1.Encoding) bool { return e == kvtransferv1.Encoding_ENCODING_SHARED }

func isNative(e kvtransferv1.Encoding) bool {
	return e == kvtransferv1.Encoding_ENCODING_UNSPECIFIED || e == kvtransferv1.Encoding_ENCODING_NATIVE
}

func (c *Core) receiveChunk(s *stream, m *wire.Chunk) {
	size := m.PayloadBytes
	if size > c.cfg.CreditBytes-s.outstanding {
		c.closeStream(s, Breach, fmt.Sprintf("a chunk of %d bytes, but only %d bytes of credit", size, c.cfg.CreditBytes-s.outstanding))
		return
	}
	t := s.session.transfers[m.TransferID]
	if t == nil {
		c.closeStream(s, Breach, fmt.Sprintf("a chunk of transfer %#x, which is not open in this session", m.TransferID))
		return
	}
	s.outstanding += size
	before := t.writing
	c.step(t, onChunk, input{stream: s, chunk: m})
	if t.writing == before {
		c.landed(s, size)
	}
}

func (c *Core) receiveAbort(s *stream, m *kvtransferv1.Abort) {
	if t := s.session.transfers[m.GetTransferId()]; t != nil {
		c.step(t, onAbort, input{stream: s, abort: m.GetReason()})
		return
	}
	// It crossed Committed or Refuse: the transfer is over and nothing will be written.
	if s.stripe == 0 {
		c.sendDrained(s, m.GetTransferId())
	}
}

// landed gives credit back. The driver may combine grants.
func (c *Core) landed(s *stream, size int) {
	if s.phase == closing || size == 0 {
		return
	}
	s.outstanding -= size
	s.grant = Grant{Stream: s.id, Bytes: size}
	c.emit(&s.grant)
}

func (c *Core) send(s *stream, m *kvtransferv1.ReceiverMessage) {
	if s.phase != closing {
		c.emit(Send{Stream: s.id, Message: m})
	}
}

// answer sends on stripe 0, unless the session is over.
func (c *Core) answer(of *session, m *kvtransferv1.ReceiverMessage) {
	if of != nil {
		c.send(of.lead(), m)
	}
}

func (c *Core) refuse(s *stream, id uint64, reason kvtransferv1.RefuseReason, detail string) {
	c.send(s, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Refuse{
		Refuse: &kvtransferv1.Refuse{TransferId: id, Reason: reason, Detail: detail}}})
}

func (c *Core) sendDrained(s *stream, id uint64) {
	c.send(s, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Drained{
		Drained: &kvtransferv1.Drained{TransferId: id}}})
}
