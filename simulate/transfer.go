package simulate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// session is one session of a sender with a receiver, of one stream.
type session struct {
	key      string
	from, to *process
	there    *pipe // sender to receiver
	back     *pipe
	stream   receiver.StreamID

	core      *sender.Core // nil until ReceiverHello
	timer     timer
	waiting   []opening // transfers that begin when core is there
	transfers map[uint64]outgoing
	writing   bool // the stream is busy with what was written last
	lost      bool
	inbox     inbox[sender.Event]
}

// outgoing is a transfer that a session carries. unreached or ended is the last that it hears.
type outgoing interface {
	// unreached: there is no session, for err.
	unreached(err error)
	// began: the receiver is asked now. accepted: it has agreed.
	began(s *session)
	accepted()
	// shipped: so many bytes of payload go out.
	shipped(bytes int)
	// ended: none of its blocks is read any more.
	ended(e sender.Ended)
}

// opening is a transfer that waits for its session.
type opening struct {
	ticket   *kvtransferv1.Ticket
	transfer outgoing
}

// open opens a transfer in the session with the ticket's receiver.
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

// begin opens a transfer whose session is there.
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

// handle gives an event to the sender's core, and does what it asks for.
func (s *session) handle(event sender.Event) {
	if s.inbox.put(event) {
		s.empty()
	}
}

// step is handle by a method of the core that does not allocate.
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

// empty handles what is in the inbox.
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

// write asks for the next thing to write, unless the stream is busy.
func (s *session) write() {
	if !s.writing && !s.lost {
		step(s, (*sender.Core).HandleWriterReady, sender.WriterReady{})
	}
}

// occupy keeps the stream busy until then.
func (s *session) occupy(until int64) {
	s.writing = true
	s.from.cluster.soon.push(s.from.cluster.momentAt(until), (*written)(s))
}

// written is when the stream of a session is free again.
type written session

func (w *written) happen() {
	s := (*session)(w)
	s.writing = false
	s.write()
}

// ship reads the pages of a chunk and sends it.
func (s *session) ship(w *sender.WriteChunk) {
	m := taken(&s.from.cluster.chunks)
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

// chunk is one on its way to the receiver. It is used again when it has arrived.
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

// grant is one on its way to the sender. It is used again when it has arrived.
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

// taken takes something out of those to be used again, or makes it.
func taken[T any](again *[]*T) *T {
	last := len(*again) - 1
	if last < 0 {
		return new(T)
	}
	t := (*again)[last]
	*again = (*again)[:last]
	return t
}

// unreached tells the worker that the transfer of a call could not begin.
func (c *call) unreached(err error) {
	c.process.handle(worker.NotOpened{ID: c.id, Err: worker.TransferNotStartedError(err, true)})
}

func (c *call) began(s *session) { c.session, c.opened = s, c.process.cluster.now }

func (c *call) accepted() {
	c.sending = true
	c.process.handle(worker.Opened{ID: c.id})
}

func (c *call) shipped(bytes int) {
	c.sent.Bytes += uint64(bytes)
	c.sent.LastSent = c.process.cluster.now.Sub(c.opened)
}

// ended tells the worker of the end of its transfer.
func (c *call) ended(e sender.Ended) {
	err := resultError(e.Result)
	if !c.sending {
		if e.Result.End == sender.EndRefused {
			err = worker.TransferRefusedError(e.Result.Refuse, err)
		} else {
			err = worker.TransferNotStartedError(err, e.Result.End == sender.EndBroken)
		}
		c.process.handle(worker.NotOpened{ID: c.id, Err: err})
		return
	}
	c.sending = false
	c.sent.PathBytes, c.sent.PathBusy = e.Pace.Bytes, e.Pace.Busy
	c.process.handle(worker.Sent{ID: c.id, Err: err, Stats: c.stats(c.process.cluster.now, err)})
	c.process.storing.abandon(c)
}

func resultError(r sender.Result) error {
	switch r.End {
	case sender.EndCommitted:
		return nil
	case sender.EndRefused:
		return fmt.Errorf("refused: %v: %s", r.Refuse, r.Detail)
	case sender.EndFailed:
		return fmt.Errorf("the receiver ended it: %v: %s", r.Fail, r.Detail)
	case sender.EndAborted:
		return fmt.Errorf("aborted: %v", r.Abort)
	}
	return errors.Join(errors.New("the stream ended"), r.Err)
}

// stats are what the router is told of a transfer.
func (c *call) stats(now time.Time, err error) *workerv1.KvSent {
	c.sent.Transport = "simulated"
	if err == nil {
		c.sent.Acknowledged = now.Sub(c.opened)
	}
	return c.sent.Message()
}

// lose ends a session at its sender: nothing comes or goes any more.
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
	// The receiver reads the end of the stream after what was sent before.
	s.there.send(0, s.closed)
}

// closed is the end of a session at its receiver.
func (s *session) closed() {
	if s.to.session(s.stream) == s {
		s.to.unlist(s)
		s.to.receive(receiver.StreamClosed{Stream: s.stream})
	}
}

// session is the one of a stream that its receiver has; nil: it has ended. Several messages of one
// come after the other.
func (p *process) session(stream receiver.StreamID) *session {
	if s := p.heard; s != nil && s.stream == stream {
		return s
	}
	p.heard = p.inbound[stream]
	return p.heard
}

// unlist ends a session at its receiver.
func (p *process) unlist(s *session) {
	delete(p.inbound, s.stream)
	p.heard = nil
}

// receive gives an event to the receiver's core, and does what it asks for.
func (p *process) receive(event receiver.Event) {
	if p.receipts.put(event) {
		p.emptyReceipts()
	}
}

// emptyReceipts handles what is in receipts.
func (p *process) emptyReceipts() {
	for e, more := p.receipts.next(); more && !p.dead; e, more = p.receipts.next() {
		for _, action := range p.receiver.Handle(p.cluster.now, e) {
			p.received(action)
		}
	}
	p.leases.set()
}

func (p *process) received(action receiver.Action) {
	switch a := action.(type) {
	case receiver.Send:
		p.answer(a.Stream, a.Message)
	case *receiver.Grant:
		if s := p.session(a.Stream); s != nil {
			g := taken(&p.cluster.grants)
			g.session, g.grant.CreditBytes = s, uint64(a.Bytes)
			g.of.Grant, g.message.Message = &g.grant, &g.of
			s.back.post(messageBytes, g)
		}
	case receiver.CloseStream:
		if s := p.session(a.Stream); s != nil {
			p.unlist(s)
			detail := a.Detail
			s.back.send(messageBytes, func() { s.lose(errors.New(detail)) })
			p.receive(receiver.StreamClosed{Stream: a.Stream})
		}
	case receiver.Committed:
		if o := p.owners[a.ID]; o != nil {
			p.disown(a.ID)
			o.committed(a)
		}
	case receiver.Failed:
		p.broke(a.ID, fmt.Errorf("%v: %s", a.Reason, a.Detail), false)
	case receiver.Aborted:
		err := fmt.Errorf("the sender gave it up: %v", a.Reason)
		if a.Reason == kvtransferv1.AbortReason_ABORT_REASON_CANCELLED {
			err = status.Error(codes.Canceled, err.Error())
		}
		p.broke(a.ID, err, a.Reason == kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
	case receiver.Broken:
		p.broke(a.ID, errors.New("the sender's stream ended"), false)
	case receiver.Drained:
		if o := p.owners[a.ID]; o != nil {
			p.disown(a.ID)
			o.drained()
		}
	}
}

// owner is who reserved blocks for a transfer to a process. It hears of its end by committed, or by
// drained, before which broke may come.
type owner interface {
	committed(a receiver.Committed)
	broke(err error, finished bool)
	drained()
}

func (p *process) broke(transfer uint64, err error, finished bool) {
	if o := p.owners[transfer]; o != nil {
		o.broke(err, finished)
	}
}

// disown forgets a reservation into which nothing is written any more.
func (p *process) disown(transfer uint64) {
	delete(p.owners, transfer)
	p.cluster.watch.closed(p, transfer)
}

// receiving is a sequence of a decode worker that owns a reservation.
type receiving struct {
	process *process
	id      scheduler.SequenceID
}

func (r receiving) committed(a receiver.Committed) {
	r.process.handle(worker.Arrived{ID: r.id, From: a.Sender, Sampled: a.Sampled, Approximate: a.Approximate})
}

func (r receiving) broke(err error, finished bool) {
	r.process.handle(worker.Broke{ID: r.id, Err: err, Finished: finished})
}

func (r receiving) drained() { r.process.handle(worker.Drained{ID: r.id}) }

// receiveChunk takes in a chunk and writes its payload into the pages.
func (p *process) receiveChunk(s *session, chunk *wire.Chunk, payload []byte) {
	if p.dead {
		return
	}
	p.receipts.begin()
	var write *receiver.Write
	for _, action := range p.receiver.HandleReceived(p.cluster.now, receiver.Received{Stream: s.stream, Chunk: chunk}) {
		if a, is := action.(*receiver.Write); is {
			write = a
			continue
		}
		p.received(action)
	}
	if write == nil { // it was refused
		p.emptyReceipts()
		return
	}
	p.cluster.watch.wrote(p, write.ID, write.Blocks)
	outcome := receiver.Landed
	if p.member.corrupting {
		p.member.corrupting, outcome = false, receiver.Corrupt
		clear(payload)
	}
	if err := p.engine.Pages().Write(write.Layer, write.Blocks, payload); err != nil {
		outcome = receiver.Unwritable
	}
	written := receiver.Written{Stream: write.Stream, ID: write.ID, Bytes: write.Bytes, Outcome: outcome}
	if p.receipts.more() {
		p.receipts.put(written)
	} else {
		for _, action := range p.receiver.HandleWritten(p.cluster.now, written) {
			p.received(action)
		}
	}
	p.emptyReceipts()
}

// answer sends a message of the receiver to the sender of a stream.
func (p *process) answer(stream receiver.StreamID, m *kvtransferv1.ReceiverMessage) {
	s := p.session(stream)
	if s == nil {
		return
	}
	s.back.send(messageBytes, func() { s.answered(m) })
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
