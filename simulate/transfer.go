package simulate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

// session connects a sender with a receiver. It has one stream.
type session struct {
	key      string
	from, to *process
	there    *pipe // sender to receiver
	back     *pipe
	stream   receiver.StreamID

	core      *sender.Core // nil until ReceiverHello
	timer     timer
	waiting   []opening // transfers that wait for core
	transfers map[uint64]outgoing
	writing   bool // the last write still occupies the stream
	lost      bool
	inbox     inbox[sender.Event]
}

// outgoing is a transfer in a session. Its last call is unreached or ended.
type outgoing interface {
	// unreached follows if there is no session.
	unreached(err error)
	// began follows when the sender asks the receiver, accepted when the receiver agrees.
	began(s *session)
	accepted()
	// shipped counts payload that was sent.
	shipped(bytes int)
	// ended follows when the sender no longer reads the transfer's blocks.
	ended(e sender.Ended)
}

// opening is a transfer that waits for its session.
type opening struct {
	ticket   *kvtransferv1.Ticket
	transfer outgoing
}

// open opens a transfer in the session with the ticket's receiver, and the session if need be.
func (p *process) open(ticket *kvtransferv1.Ticket, t outgoing) {
	key := fmt.Sprintf("%s#%x", ticket.GetReceiver(), ticket.GetEpoch())
	s := p.sessions[key]
	if s == nil {
		to := p.cluster.processOf(ticket.GetReceiver(), ticket.GetEpoch())
		if to != nil && p.host.cut[to.host] {
			p.cluster.after(kvtransfer.DefaultConnectTimeout, func() {
				t.unreached(fmt.Errorf("connect to %s: deadline exceeded", ticket.GetReceiver()))
			})
			return
		}
		if to == nil {
			t.unreached(fmt.Errorf("nobody answers at %s", ticket.GetReceiver()))
			return
		}
		s = &session{key: key, from: p, to: to, there: p.cluster.newPipe(p.host, to.host), back: p.cluster.newPipe(to.host, p.host), transfers: make(map[uint64]outgoing)}
		p.sessions[key] = s
		p.cluster.sessions = append(p.cluster.sessions, s)
		s.hello()
	}
	if s.core == nil {
		s.waiting = append(s.waiting, opening{ticket, t})
		return
	}
	s.begin(ticket, t)
}

func (s *session) hello() {
	s.there.send(messageBytes, func() {
		s.to.lastStream++
		s.stream = s.to.lastStream
		s.to.inbound[s.stream] = s
		s.to.receive(receiver.StreamOpened{Stream: s.stream})
		s.to.receive(receiver.Received{Stream: s.stream, Message: &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
			Sender: s.from.ref.ID, Epoch: s.from.ref.Epoch, Version: receiver.ProtocolVersion, LayoutDigest: s.from.record.GetLayoutDigest(),
			Session: s.from.cluster.random.Uint64() | 1, Stripes: 1,
		}}}})
	})
}

// begin opens a transfer in an established session.
func (s *session) begin(ticket *kvtransferv1.Ticket, t outgoing) {
	s.transfers[ticket.GetTransferId()] = t
	t.began(s)
	s.handle(sender.Open{Ticket: ticket, Lease: ticket.GetLease().AsDuration()})
}

func (s *session) next() (time.Time, bool) {
	at, wants := s.core.Next()
	return at, wants && !s.lost && !s.from.dead
}

func (s *session) tick() { s.handle(sender.Tick{}) }

// handle gives an event to the sender's core and carries out the actions.
func (s *session) handle(event sender.Event) {
	if s.inbox.put(event) {
		s.empty()
	}
}

// step is handle without allocations: it calls a method of the core for one kind of event.
func step[E sender.Event](s *session, handle func(*sender.Core, time.Time, E) []sender.Action, event E) {
	if !s.inbox.begin() {
		s.inbox.put(event)
		return
	}
	for _, action := range handle(s.core, s.from.cluster.now, event) {
		s.act(action)
	}
	s.empty()
}

// empty handles the events in the inbox.
func (s *session) empty() {
	for e, more := s.inbox.next(); more; e, more = s.inbox.next() {
		for _, action := range s.core.Handle(s.from.cluster.now, e) {
			s.act(action)
		}
	}
	s.timer.set()
}

func (s *session) act(action sender.Action) {
	switch a := action.(type) {
	case sender.Wake:
		s.write()
	case sender.Write:
		message := a.Message
		s.occupy(s.there.send(messageBytes, func() { s.to.receive(receiver.Received{Stream: s.stream, Message: message}) }))
	case *sender.WriteChunk:
		s.ship(a)
	case sender.Recall: // nothing is lent
	case sender.Accepted:
		if t := s.transfers[a.ID]; t != nil {
			t.accepted()
		}
	case sender.Released:
	case sender.Ended:
		if t := s.transfers[a.ID]; t != nil {
			delete(s.transfers, a.ID)
			t.ended(a)
		}
	case sender.CloseStream:
		s.lose(a.Err)
	}
}

// write asks the core for the next write, unless the stream is busy.
func (s *session) write() {
	if !s.writing && !s.lost {
		step(s, (*sender.Core).HandleWriterReady, sender.WriterReady{})
	}
}

// occupy keeps the stream busy until a time.
func (s *session) occupy(until int64) {
	s.writing = true
	s.from.cluster.soon.push(s.from.cluster.momentAt(until), (*written)(s))
}

// written is the moment at which a session's stream is free again.
type written session

func (w *written) happen() {
	s := (*session)(w)
	s.writing = false
	s.write()
}

// ship reads the pages of a chunk and sends it.
func (s *session) ship(w *sender.WriteChunk) {
	m := reuse(&s.from.cluster.chunks)
	runs := m.chunk.Runs[:0]
	runs = append(runs, w.Chunk.Runs...)
	m.session, m.chunk = s, w.Chunk
	m.chunk.Runs = runs
	m.payload = slices.Grow(m.payload[:0], len(w.Blocks)*s.from.layout.SliceBytes)[:len(w.Blocks)*s.from.layout.SliceBytes]
	err := s.from.engine.Pages().Read(int(m.chunk.Layer), w.Blocks, m.payload)
	if t := s.transfers[w.ID]; t != nil {
		t.shipped(m.chunk.PayloadBytes)
	}
	s.handle(sender.PagesRead{Chunk: w, Err: err})
	if err != nil {
		return
	}
	s.from.cluster.watch.credited(s)
	s.occupy(s.there.post(m.chunk.PayloadBytes+messageBytes, m))
}

// chunk is on its way to the receiver. It is reused once it has arrived.
type chunk struct {
	session *session
	chunk   wire.Chunk
	payload []byte
}

func (m *chunk) happen() {
	p := m.session.to
	p.receiveChunk(m.session, &m.chunk, m.payload)
	m.session = nil
	p.cluster.chunks = append(p.cluster.chunks, m)
}

// grant is on its way to the sender. It is reused once it has arrived.
type grant struct {
	session *session
	message kvtransferv1.ReceiverMessage
	of      kvtransferv1.ReceiverMessage_Grant
	grant   kvtransferv1.Grant
}

func (g *grant) happen() {
	s := g.session
	s.answered(&g.message)
	g.session = nil
	s.from.cluster.grants = append(s.from.cluster.grants, g)
}

// reuse takes an object from a list for reuse, or makes one.
func reuse[T any](again *[]*T) *T {
	last := len(*again) - 1
	if last < 0 {
		return new(T)
	}
	t := (*again)[last]
	*again = (*again)[:last]
	return t
}

// lose ends a session at its sender.
func (s *session) lose(err error) {
	if s.lost {
		return
	}
	s.lost = true
	if s.from.sessions[s.key] == s {
		delete(s.from.sessions, s.key)
	}
	if err == nil {
		err = errors.New("the session has ended")
	}
	if s.core != nil {
		s.handle(sender.StreamLost{Err: err})
	}
	waiting := s.waiting
	s.waiting = nil
	for _, w := range waiting {
		w.transfer.unreached(err)
	}
	// The receiver sees the end of the stream after all that was sent.
	s.there.send(0, s.closed)
}

// closed ends a session at its receiver.
func (s *session) closed() {
	if s.to.session(s.stream) == s {
		s.to.unlist(s)
		s.to.receive(receiver.StreamClosed{Stream: s.stream})
	}
}

func (s *session) answered(m *kvtransferv1.ReceiverMessage) {
	if s.lost || s.from.dead {
		return
	}
	if s.core != nil {
		step(s, (*sender.Core).HandleReceived, sender.Received{Message: m})
		return
	}
	hello := m.GetHello()
	if hello == nil {
		s.lose(errors.New("the receiver sent no ReceiverHello"))
		return
	}
	s.core = sender.New(sender.Config{
		LayoutDigest: s.from.record.GetLayoutDigest(), Layers: s.from.layout.Layers, SliceBytes: s.from.cluster.sliceBytes,
		CreditBytes: []int{int(hello.GetCreditBytes())}, MaxChunkBytes: int(hello.GetMaxChunkBytes()),
		AnswerTimeout: kvtransfer.DefaultAnswerTimeout, IdleTimeout: kvtransfer.DefaultIdleTimeout,
	}, s.from.cluster.now)
	s.timer = timer{clock: &s.from.cluster.clock, of: s}
	waiting := s.waiting
	s.waiting = nil
	for _, w := range waiting {
		s.begin(w.ticket, w.transfer)
	}
	s.write()
}
