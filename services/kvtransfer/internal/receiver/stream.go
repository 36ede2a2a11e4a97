package receiver

import (
	"fmt"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// version is the only version of the protocol that this side speaks.
const version = 2

type phase int

const (
	// greeting: SenderHello is awaited.
	greeting phase = iota
	// ready: both have greeted.
	ready
	// closing: CloseStream was asked for. What still arrives is dropped.
	closing
)

// stream is one sender's stream.
type stream struct {
	id        StreamID
	phase     phase
	layout    uint64
	transfers map[uint64]*transfer
	// outstanding is the payload that the sender has used of its credit, and
	// landed the part of it that could be granted again.
	outstanding, landed int
}

func (c *Core) openStream(id StreamID) {
	s := &stream{id: id, transfers: map[uint64]*transfer{}}
	crowded := len(c.streams) >= c.cfg.MaxStreams
	c.streams[id] = s
	switch {
	case c.closed:
		c.closeStream(s, Closing, "the receiver shuts down")
	case crowded:
		c.closeStream(s, Crowded, fmt.Sprintf("%d streams are open already", c.cfg.MaxStreams))
	default:
		c.deadlines.Set(timer{stream: id}, c.now.Add(c.cfg.Lease))
	}
}

// closeStream asks for the end of a stream and ends its transfers for their
// owners. Their blocks stay in quarantine until StreamClosed.
func (c *Core) closeStream(s *stream, cause Cause, detail string) {
	if s.phase == closing {
		return
	}
	s.phase = closing
	c.deadlines.Clear(timer{stream: s.id})
	c.emit(CloseStream{Stream: s.id, Cause: cause, Detail: detail})
	for _, t := range byID(s.transfers) {
		if t.state == open || t.state == committing {
			c.fail(t, input{reason: cause.reason(), detail: detail})
		}
		c.deadlines.Clear(timer{transfer: t.id})
	}
}

func (c *Core) loseStream(id StreamID) {
	s := c.streams[id]
	if s == nil {
		return
	}
	s.phase = closing
	delete(c.streams, id)
	c.deadlines.Clear(timer{stream: id})
	for _, t := range byID(s.transfers) {
		c.step(t, onGone, input{})
		t.stream = nil
	}
}

// closeUnused ends, in a shutdown, the streams that have nothing left to say.
func (c *Core) closeUnused() {
	if !c.closed {
		return
	}
	for _, s := range c.sortedStreams() {
		if len(s.transfers) == 0 {
			c.closeStream(s, Closing, "the receiver shuts down")
		}
	}
}

func (c *Core) receive(s *stream, ev Received) {
	hello, greets := ev.Message.GetMessage().(*kvtransferv1.SenderMessage_Hello)
	if greets != (s.phase == greeting) {
		c.closeStream(s, Breach, "the greeting is the first message, and only the first")
		return
	}
	if ev.Message == nil && ev.Chunk != nil {
		c.receiveChunk(s, ev.Chunk)
		return
	}
	switch m := ev.Message.GetMessage().(type) {
	case *kvtransferv1.SenderMessage_Hello:
		c.greet(s, hello.Hello)
	case *kvtransferv1.SenderMessage_Open:
		c.receiveOpen(s, m.Open)
	case *kvtransferv1.SenderMessage_Commit:
		if t := s.transfers[m.Commit.GetTransferId()]; t != nil {
			c.step(t, onCommit, input{commit: m.Commit})
		} else {
			c.closeStream(s, Breach, fmt.Sprintf("commit of transfer %#x, which is not open on this stream", m.Commit.GetTransferId()))
		}
	case *kvtransferv1.SenderMessage_Abort:
		c.receiveAbort(s, m.Abort)
	case *kvtransferv1.SenderMessage_Renew:
		for _, id := range m.Renew.GetTransferIds() {
			if t := s.transfers[id]; t != nil {
				c.step(t, onRenew, input{})
			}
		}
	default:
		c.closeStream(s, Breach, "a message of no known kind")
	}
}

func (c *Core) greet(s *stream, hello *kvtransferv1.SenderHello) {
	if hello.GetVersion() < version {
		c.closeStream(s, Version, fmt.Sprintf("the sender speaks the protocol up to version %d, this side version %d", hello.GetVersion(), version))
		return
	}
	s.phase, s.layout = ready, hello.GetLayoutDigest()
	c.deadlines.Clear(timer{stream: s.id})
	c.send(s, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Hello{Hello: &kvtransferv1.ReceiverHello{
		Receiver:      c.cfg.WorkerID,
		Epoch:         c.cfg.Epoch,
		Version:       version,
		CreditBytes:   uint64(c.cfg.CreditBytes),
		MaxChunkBytes: uint32(c.cfg.MaxChunkBytes),
		LayoutDigest:  c.cfg.LayoutDigest,
	}}})
}

func (c *Core) receiveOpen(s *stream, m *kvtransferv1.Open) {
	t := c.transfers[m.GetTransferId()]
	switch {
	case m.GetEpoch() != c.cfg.Epoch:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH, "the receiver was started anew since the ticket was made")
	case c.closed:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_BUSY, "the receiver shuts down")
	case t == nil:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER, "no such reservation: it expired, was cancelled or has ended")
	case m.GetSecret() != t.secret:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_BAD_SECRET, "")
	case m.GetLayoutDigest() != c.cfg.LayoutDigest || s.layout != c.cfg.LayoutDigest:
		c.refuse(s, m.GetTransferId(), kvtransferv1.RefuseReason_REFUSE_REASON_LAYOUT,
			fmt.Sprintf("layout digest %#x here, %#x at the sender", c.cfg.LayoutDigest, m.GetLayoutDigest()))
	default:
		c.step(t, onOpen, input{stream: s})
	}
}

func (c *Core) receiveChunk(s *stream, m *wire.Chunk) {
	size := m.PayloadBytes
	if size > c.cfg.CreditBytes-s.outstanding {
		c.closeStream(s, Breach, fmt.Sprintf("a chunk of %d bytes with %d bytes of credit", size, c.cfg.CreditBytes-s.outstanding))
		return
	}
	t := s.transfers[m.TransferID]
	if t == nil {
		c.closeStream(s, Breach, fmt.Sprintf("a chunk of transfer %#x, which is not open on this stream", m.TransferID))
		return
	}
	s.outstanding += size
	before := t.writing
	c.step(t, onChunk, input{chunk: m})
	if t.writing == before {
		c.landed(s, size)
	}
}

func (c *Core) receiveAbort(s *stream, m *kvtransferv1.Abort) {
	if t := s.transfers[m.GetTransferId()]; t != nil {
		t.aborted = true
		c.step(t, onAbort, input{abort: m.GetReason()})
		return
	}
	// It crossed Committed or Refuse: here it is over, and nothing will land.
	c.sendDrained(s, m.GetTransferId())
}

// landed gives credit back. Grants are put together while copies are under way:
// the last of them grants the rest, so that a sender never waits for nothing.
func (c *Core) landed(s *stream, size int) {
	s.landed += size
	if s.phase == closing || s.landed == 0 {
		return
	}
	if s.landed < s.outstanding && s.landed < c.cfg.CreditBytes/4 {
		return
	}
	c.send(s, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Grant{
		Grant: &kvtransferv1.Grant{CreditBytes: uint64(s.landed)}}})
	s.outstanding -= s.landed
	s.landed = 0
}

func (c *Core) send(s *stream, m *kvtransferv1.ReceiverMessage) {
	if s != nil && s.phase != closing {
		c.emit(Send{Stream: s.id, Message: m})
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
