package receiver

import (
	"fmt"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// ProtocolVersion is the only supported protocol version.
const ProtocolVersion = 2

// MaxStripes is the maximum number of streams per session.
const MaxStripes = 8

// MaxSharedBlocks is the maximum number of blocks of a transfer that the sender writes into the
// pages itself: Accept names them all, within the size of a message.
const MaxSharedBlocks = 1 << 17

type phase int

const (
	// awaitsHello: SenderHello is missing, on some streams of the session.
	awaitsHello phase = iota
	// ready: all have arrived.
	ready
	// closing: CloseStream was emitted. Later messages are dropped.
	closing
)

// stream is one stream of a sender.
type stream struct {
	id      StreamID
	phase   phase
	session *session // nil before SenderHello
	stripe  int
	// verified: the peer is known by its certificate.
	verified    bool
	outstanding int   // payload charged to the sender's credit
	write       Write // last one emitted
	grant       Grant // last one emitted
}

// session is the streams of one sender.
type session struct {
	id            uint64 // 0: not in the table
	sender        string
	epoch, layout uint64
	phase         phase
	streams       []*stream // by stripe; nil until its SenderHello
	joined        int       // streams that sent SenderHello
	left          int       // joined streams that have not ended
	heard         time.Time // when a message last arrived or a copy last ended, on any stream
	writing       int       // copies in progress
	mapped        bool      // the sender has the pages mapped; also after its streams
	writesShared  bool      // a transfer was accepted that the sender writes there
	transfers     map[uint64]*transfer
}

func (s *session) lead() *stream { return s.streams[0] }

func (c *Core) openStream(ev StreamOpened) {
	id := ev.Stream
	s := &stream{id: id, verified: ev.Verified}
	admitted := c.admitStream()
	c.streams[id] = s
	switch {
	case c.closed:
		c.closeStream(s, Closing, "the receiver shuts down")
	case !admitted:
		c.closeStream(s, Full, fmt.Sprintf("%d streams are already open", c.cfg.MaxStreams))
	default:
		c.deadlines.Set(timer{stream: id}, c.now.Add(c.cfg.Lease))
	}
}

// admitStream reports whether another stream may join. If the table is full, it closes the
// session idle for longest: senders keep idle sessions, and those must not shut others out.
// Closing streams count until they have ended, so that there are never more than twice
// MaxStreams.
func (c *Core) admitStream() bool {
	if len(c.streams) < c.cfg.MaxStreams {
		return true
	}
	live := 0
	var idlest *session
	for _, s := range c.streams {
		if s.phase == closing {
			continue
		}
		live++
		of := s.session
		if of == nil || of.phase != ready || len(of.transfers) > 0 {
			continue
		}
		if idlest == nil || of.heard.Before(idlest.heard) || of.heard.Equal(idlest.heard) && of.lead().id < idlest.lead().id {
			idlest = of
		}
	}
	if len(c.streams) >= 2*c.cfg.MaxStreams || live >= c.cfg.MaxStreams && idlest == nil {
		return false
	}
	if live >= c.cfg.MaxStreams {
		c.closeSession(idlest, Full, "the session was idle and its place is needed: open another when there is something to send")
	}
	return true
}

// join adds a stream to its session, or to a new one. A stream that does not fit is closed
// alone and cannot harm the session.
func (c *Core) join(s *stream, hello *kvtransferv1.SenderHello) {
	if hello.GetVersion() < ProtocolVersion {
		c.closeStream(s, Version, fmt.Sprintf("the sender speaks protocol versions up to %d, but this side speaks version %d", hello.GetVersion(), ProtocolVersion))
		return
	}
	if of := c.sessions[hello.GetSession()]; of != nil && of.phase == closing {
		c.closeStream(s, SessionOver, "another stream of the session has ended")
		return
	}
	of, misfit := c.sessionOf(hello)
	if misfit != "" {
		c.closeStream(s, Breach, misfit)
		return
	}
	s.session, s.stripe, s.phase = of, int(hello.GetStripe()), ready
	of.streams[s.stripe], of.heard = s, c.now
	of.joined++
	of.left++
	c.deadlines.Set(timer{stream: s.id}, c.now.Add(c.cfg.Lease))
	if of.joined == len(of.streams) {
		of.phase = ready
		for _, each := range of.streams {
			c.deadlines.Clear(timer{stream: each.id})
		}
	}
	c.send(s, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Hello{Hello: &kvtransferv1.ReceiverHello{
		Receiver:      c.cfg.WorkerID,
		Epoch:         c.cfg.Epoch,
		Version:       ProtocolVersion,
		CreditBytes:   uint64(c.cfg.CreditBytes),
		MaxChunkBytes: uint32(c.cfg.MaxChunkBytes),
		LayoutDigest:  c.cfg.LayoutDigest,
	}}})
}

// sessionOf finds or creates the session of a SenderHello. misfit says why it cannot.
func (c *Core) sessionOf(hello *kvtransferv1.SenderHello) (_ *session, misfit string) {
	id, stripe, stripes := hello.GetSession(), hello.GetStripe(), max(hello.GetStripes(), 1)
	switch {
	case stripes > MaxStripes || stripe >= stripes:
		return nil, fmt.Sprintf("stripe %d of %d is out of range: a session has at most %d, counted from 0", stripe, stripes, MaxStripes)
	case stripes > 1 && id == 0:
		return nil, "a session of several streams needs a number"
	}
	of := c.sessions[id]
	switch {
	case of == nil:
		of = &session{
			id: id, sender: hello.GetSender(), epoch: hello.GetEpoch(), layout: hello.GetLayoutDigest(),
			streams: make([]*stream, stripes), transfers: map[uint64]*transfer{},
		}
		if id != 0 {
			c.sessions[id] = of
		}
	case of.phase != awaitsHello:
		return nil, fmt.Sprintf("session %#x has all of its streams already", id)
	case len(of.streams) != int(stripes):
		return nil, fmt.Sprintf("session %#x has %d streams, not %d", id, len(of.streams), stripes)
	case of.sender != hello.GetSender() || of.epoch != hello.GetEpoch() || of.layout != hello.GetLayoutDigest():
		return nil, fmt.Sprintf("session %#x belongs to another sender, start or layout", id)
	case of.streams[stripe] != nil:
		return nil, fmt.Sprintf("stripe %d of session %#x has already sent SenderHello", stripe, id)
	}
	return of, ""
}

// closeStream ends a stream and thereby its session.
func (c *Core) closeStream(s *stream, cause Cause, detail string) {
	if s.session != nil {
		c.closeSession(s.session, cause, detail)
		return
	}
	c.shut(s, cause, detail)
}

// closeSession ends a session and fails its transfers for their owners.
func (c *Core) closeSession(of *session, cause Cause, detail string) {
	c.endSession(of, cause, detail, onClosed, input{reason: cause.reason(), detail: detail})
}

// endSession ends all streams of a session and steps its transfers. Their blocks stay in quarantine
// until all streams have ended.
func (c *Core) endSession(of *session, cause Cause, detail string, on kind, in input) {
	if of.phase == closing {
		return
	}
	of.phase = closing
	for _, s := range of.streams {
		if s != nil {
			c.shut(s, cause, detail)
		}
	}
	for _, t := range byID(of.transfers) {
		c.step(t, on, in)
	}
}

func (c *Core) shut(s *stream, cause Cause, detail string) {
	if s.phase == closing {
		return
	}
	s.phase = closing
	c.deadlines.Clear(timer{stream: s.id})
	c.emit(CloseStream{Stream: s.id, Cause: cause, Detail: detail})
}

// loseStream processes the end of a stream, which ends its session. Once the last stream
// has ended, nothing of the session can arrive.
func (c *Core) loseStream(id StreamID) {
	s := c.streams[id]
	if s == nil {
		return
	}
	s.phase = closing
	delete(c.streams, id)
	c.deadlines.Clear(timer{stream: id})
	of := s.session
	if of == nil {
		return
	}
	c.breakSession(of, "another stream of the session has ended")
	of.left--
	c.release(of)
}

// breakSession ends a session that lost a part.
func (c *Core) breakSession(of *session, detail string) {
	c.endSession(of, SessionOver, detail, onBroken, input{})
}

// release drains the transfers of a session of which nothing can be written any more. A sender
// can write into pages that it has mapped after its last stream.
func (c *Core) release(of *session) {
	if of.left > 0 {
		return
	}
	if of.id != 0 {
		delete(c.sessions, of.id)
	}
	for _, t := range byID(of.transfers) {
		if isShared(t.encoding) && of.mapped {
			continue
		}
		c.step(t, onGone, input{})
		t.session = nil
		delete(of.transfers, t.id)
	}
}

// closeUnused ends streams without transfers during a shutdown.
func (c *Core) closeUnused() {
	if !c.closed {
		return
	}
	for _, s := range c.sortedStreams() {
		if s.session == nil || len(s.session.transfers) == 0 {
			c.closeStream(s, Closing, "the receiver shuts down")
		}
	}
}
