package simulate

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/worker"
)

// owner reserved blocks for a transfer to a process. Its last call is committed or drained;
// broke may come before drained.
type owner interface {
	committed(a receiver.Committed)
	broke(err error, finished bool)
	drained()
}

// receive gives an event to the receiver's core and carries out the actions.
func (p *process) receive(event receiver.Event) {
	if p.receipts.put(event) {
		p.emptyReceipts()
	}
}

// emptyReceipts handles the events in receipts.
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
			g := reuse(&p.cluster.grants)
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

// receiveChunk gives a chunk to the receiver's core and writes its payload into the pages.
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
	if write == nil { // the core refused the chunk
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

func (p *process) broke(transfer uint64, err error, finished bool) {
	if o := p.owners[transfer]; o != nil {
		o.broke(err, finished)
	}
}

// disown forgets a reservation whose transfer has ended.
func (p *process) disown(transfer uint64) {
	delete(p.owners, transfer)
	p.cluster.watch.closed(p, transfer)
}

// session finds the session of an inbound stream; nil if it has ended. It remembers the last
// one, since messages of a session often follow each other.
func (p *process) session(stream receiver.StreamID) *session {
	if s := p.heard; s != nil && s.stream == stream {
		return s
	}
	p.heard = p.inbound[stream]
	return p.heard
}

// unlist removes a session at its receiver.
func (p *process) unlist(s *session) {
	delete(p.inbound, s.stream)
	p.heard = nil
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
