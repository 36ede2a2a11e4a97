package receiver

import (
	"fmt"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// version is the only version of the protocol that this side speaks.
const version = 2

// MaxStripes is the most streams that one session may have.
const MaxStripes = 8

type phase int

const (
	// awaitsHello: SenderHello is awaited; of a session, that of some of its streams.
	awaitsHello phase = iota
	// ready: all have come.
	ready
	// closing: CloseStream was asked for. What still arrives is dropped.
	closing
)

// stream is one of a sender's streams.
type stream struct {
	id      StreamID
	phase   phase
	session *session // nil before SenderHello
	stripe  int
	// outstanding is the payload that the sender has used of its credit, and
	// landed the part of it that could be granted again.
	outstanding, landed int
	write               Write // the one that was asked for last
	grant               Grant // the one that was emitted last
}

// session is the streams of one sender process.
type session struct {
	id            uint64 // 0: it is not in the table
	sender        string
	epoch, layout uint64
	phase         phase
	streams       []*stream // by stripe; nil: its SenderHello has not come
	joined        int       // streams whose SenderHello came
	left          int       // of those that joined, streams that have not ended
	heard         time.Time // when a message came or a copy ended last, on any of its streams
	writing       int       // copies under way
	transfers     map[uint64]*transfer
}

func (s *session) lead() *stream { return s.streams[0] }

func (c *Core) openStream(id StreamID) {
	s := &stream{id: id}
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

// admitStream says whether one more stream may come. If all places are taken, the session
// that was idle for longest gives its own up: senders keep sessions that they do not
// need, and nobody shuts others out by that. What is closing counts until it has ended,
// so that there are never more than twice as many streams.
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

// join gives a stream its place in its session, a new one if it is the first.
// One that does not fit is ended alone: it cannot harm a session that it is not
// part of.
func (c *Core) join(s *stream, hello *kvtransferv1.SenderHello) {
	if hello.GetVersion() < version {
		c.closeStream(s, Version, fmt.Sprintf("the sender speaks protocol versions up to %d, but this side speaks version %d", hello.GetVersion(), version))
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
	of.streams[s.stripe] = s
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
		Version:       version,
		CreditBytes:   uint64(c.cfg.CreditBytes),
		MaxChunkBytes: uint32(c.cfg.MaxChunkBytes),
		LayoutDigest:  c.cfg.LayoutDigest,
	}}})
}

// sessionOf finds or makes the session of a SenderHello, or says why it has none.
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

// closeStream asks for the end of a stream, and so of its session.
func (c *Core) closeStream(s *stream, cause Cause, detail string) {
	if s.session != nil {
		c.closeSession(s.session, cause, detail)
		return
	}
	c.shut(s, cause, detail)
}

// closeSession asks for the end of all streams of a session and ends its transfers
// for their owners. Their blocks stay in quarantine until all have ended.
func (c *Core) closeSession(of *session, cause Cause, detail string) {
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
		c.step(t, onClosed, input{reason: cause.reason(), detail: detail})
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

// loseStream: nothing more comes over a stream, so its session is over. When its
// last stream has ended nothing of it can come any more.
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
	if of.phase != closing {
		of.phase = closing
		for _, other := range of.streams {
			if other != nil {
				c.shut(other, SessionOver, "another stream of the session has ended")
			}
		}
		for _, t := range byID(of.transfers) {
			c.step(t, onBroken, input{})
		}
	}
	if of.left--; of.left > 0 {
		return
	}
	if of.id != 0 {
		delete(c.sessions, of.id)
	}
	for _, t := range byID(of.transfers) {
		c.step(t, onGone, input{})
		t.session = nil
	}
}

// closeUnused ends, in a shutdown, the streams that have nothing left to say.
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
