package model_test

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// session is some streams and the sender process at their end.
type session struct {
	target    *receiver.Core
	epoch     uint64       // of the target
	core      *sender.Core // nil before the last greeting
	gone      bool         // the sender's ends are closed, or its process died
	spoilt    bool         // a bit was flipped on its way: who breaks the protocol did not mean it
	lied      bool         // as spoilt, on the way to the sender
	stripes   []*stripe
	transfers map[uint64]*outgoing
}

// stripe is one stream: the bytes on their way, message after message, each behind
// its length.
type stripe struct {
	id         receiver.StreamID
	number     int
	hello      *kvtransferv1.ReceiverHello
	targetGone bool // the receiver's end is closed
	closing    bool // the receiver wants it closed
	cut        bool // nothing new gets onto it
	up, down   []byte
	writing    *sender.WriteChunk   // taken by the writer, not on the stream
	unread     []*sender.WriteChunk // on the stream, PagesRead was not said
	asleep     bool
}

// outgoing is what the prefill worker knows of a transfer.
type outgoing struct {
	ticket          *kvtransferv1.Ticket
	accepted, ended bool
	released        bool // none of its pages may be read
	result          sender.Result
	committing      bool
	descending      bool        // its blocks are offered from the last to the first
	offered         [layers]int // blocks offered of each layer, held ones included
}

func (s *session) reading() bool {
	for _, st := range s.stripes {
		if st.writing != nil || len(st.unread) > 0 {
			return true
		}
	}
	return false
}

// severed says that a stripe ended, or is about to, somewhere.
func (s *session) severed() bool {
	for _, st := range s.stripes {
		if st.cut || st.closing || st.targetGone {
			return true
		}
	}
	return s.gone
}

func (w *world) stream(id receiver.StreamID) (*session, *stripe) {
	for _, s := range w.sessions {
		for _, st := range s.stripes {
			if st.id == id {
				return s, st
			}
		}
	}
	w.t.Fatalf("no stream %d", id)
	return nil, nil
}

func (w *world) toSender(s *session, ev sender.Event) {
	for _, a := range s.core.Handle(w.now, ev) {
		switch a := a.(type) {
		case sender.Write:
			w.putUp(s, s.stripes[a.Stripe], &wire.Outbound{Message: a.Message})
		case *sender.WriteChunk:
			if s.stripes[a.Stripe].writing != nil {
				w.t.Fatal("a writer has two chunks at once")
			}
			s.stripes[a.Stripe].writing = a
		case sender.Wake:
			s.stripes[a.Stripe].asleep = false
		case sender.Accepted:
			o := s.transfers[a.ID]
			if o.accepted || o.ended {
				w.t.Fatalf("transfer %d: accepted after %+v", a.ID, o)
			}
			if (o.ticket.GetEpoch() != s.epoch || o.ticket.GetSecret() == 1) && !s.spoilt {
				w.t.Fatalf("transfer %d: accepted with a forged ticket", a.ID)
			}
			o.accepted = true
		case sender.Released:
			w.releaseOutgoing(s, a.ID)
		case sender.Ended:
			w.endOutgoing(s, a)
		case sender.CloseStream:
			if a.Err != nil && strings.Contains(a.Err.Error(), "protocol") && !s.spoilt {
				w.t.Fatalf("the sender takes a right receiver for a wrong one: %v", a.Err)
			}
			if w.healthy {
				w.t.Fatalf("the sender gives a healthy session up: %v", a.Err)
			}
			s.leave(w)
		}
	}
}

// leave closes the sender's ends: what is on its way may arrive in part.
func (s *session) leave(w *world) {
	s.gone = true
	for _, st := range s.stripes {
		st.down = nil
		w.truncate(&st.up)
	}
}

func (w *world) releaseOutgoing(s *session, id uint64) {
	o := s.transfers[id]
	if o.released || o.ended {
		w.t.Fatalf("transfer %d: released after %+v", id, o)
	}
	for _, st := range s.stripes {
		for _, c := range append(st.unread, st.writing) {
			if c != nil && c.ID == id {
				w.t.Fatalf("transfer %d: released while its pages are read", id)
			}
		}
	}
	o.released = true
}

func (w *world) endOutgoing(s *session, a sender.Ended) {
	o := s.transfers[a.ID]
	if o.ended || !o.released || a.Result.End == 0 {
		w.t.Fatalf("transfer %d: ended with %+v after %+v", a.ID, a.Result, o)
	}
	o.ended, o.result = true, a.Result
	// The sender believes in a commit only if there was one.
	if a.Result.End != sender.EndCommitted || s.target != w.receiver || s.lied {
		return
	}
	if r := w.reservations[a.ID]; r == nil || !r.committed {
		w.t.Fatalf("transfer %d: the sender was told of a commit that was not", a.ID)
	}
}

// putUp encodes a message for the receiver, as the sender's driver does.
func (w *world) putUp(s *session, st *stripe, out *wire.Outbound) {
	data, err := wire.Codec().Marshal(out)
	if err != nil {
		return // told by Released
	}
	encoded := data.Materialize()
	data.Free()
	if !st.cut && !st.targetGone && !s.gone {
		st.up = append(binary.LittleEndian.AppendUint32(st.up, uint32(len(encoded))), encoded...)
	}
}

func (w *world) putDown(s *session, st *stripe, m *kvtransferv1.ReceiverMessage) {
	encoded, err := proto.Marshal(m)
	if err != nil {
		w.t.Fatal(err)
	}
	if !st.cut && !s.gone {
		st.down = append(binary.LittleEndian.AppendUint32(st.down, uint32(len(encoded))), encoded...)
	}
}

// message takes the next whole message off a stream; nil: there is none.
func message(bytes *[]byte) []byte {
	if len(*bytes) < 4 {
		return nil
	}
	n := 4 + int(binary.LittleEndian.Uint32(*bytes))
	if len(*bytes) < n {
		return nil
	}
	m := (*bytes)[4:n:n]
	*bytes = (*bytes)[n:]
	return m
}

// truncate cuts a stream at any byte.
func (w *world) truncate(bytes *[]byte) {
	if len(*bytes) > 0 {
		*bytes = (*bytes)[:w.draw("cut at", len(*bytes)+1)]
	}
}

// cutStream cuts both directions.
func (w *world) cutStream(st *stripe) {
	st.cut = true
	w.truncate(&st.up)
	w.truncate(&st.down)
}

// flip flips one bit of what some message on its way says.
func (w *world) flip(bytes []byte) bool {
	var messages [][]byte
	for rest := bytes; ; {
		m := message(&rest)
		if m == nil {
			break
		}
		messages = append(messages, m[:len(m):len(m)])
	}
	// What a chunk or a Commit says is what a sum protects.
	if w.draw("of a chunk or commit", 8) > 0 {
		messages = slices.DeleteFunc(messages, func(m []byte) bool { return len(m) == 0 || m[0] != 3<<3|2 && m[0] != 4<<3|2 })
	}
	if len(messages) == 0 {
		return false
	}
	m := messages[w.draw("message", len(messages))]
	if len(m) == 0 {
		return false
	}
	bit := w.draw("bit", len(m)*8)
	m[bit/8] ^= 1 << (bit % 8)
	return true
}

// writerStep lets a stripe's writer take one thing.
func (w *world) writerStep(s *session, st *stripe) {
	before := len(st.up)
	st.asleep = true
	w.toSender(s, sender.WriterReady{Stripe: st.number})
	if len(st.up) > before || st.writing != nil {
		st.asleep = false
	}
}

// ship puts the chunk that a writer has taken on its stream.
func (w *world) ship(s *session, st *stripe, fail bool) {
	chunk := st.writing
	st.writing = nil
	if chunk.Chunk.PayloadBytes > maxChunkBytes {
		w.t.Fatalf("a chunk of %d bytes", chunk.Chunk.PayloadBytes)
	}
	out := &wire.Outbound{Chunk: chunk.Chunk, Blocks: chunk.Blocks, Pages: &source{w: w, s: s, fails: fail}}
	if chunk.Encoding == kvtransferv1.Encoding_ENCODING_INT8 {
		out.Coding = halving{}
	}
	released := 0
	var failed error
	out.Released = func(err error) { released++; failed = err }
	w.putUp(s, st, out)
	if released != 1 || (failed != nil) != fail {
		w.t.Fatalf("released %d times, with %v", released, failed)
	}
	if failed != nil {
		w.toSender(s, sender.PagesRead{Chunk: chunk, Err: failed})
		return
	}
	st.unread = append(st.unread, chunk)
}

// read says that pages are not read any more.
func (w *world) read(s *session, st *stripe) {
	chunk := st.unread[0]
	st.unread = st.unread[1:]
	w.toSender(s, sender.PagesRead{Chunk: chunk})
}

// deliverUp brings one message to the receiver; false: there is none that is whole.
func (w *world) deliverUp(s *session, st *stripe) bool {
	m := message(&st.up)
	if m == nil {
		return false
	}
	in := new(wire.Inbound)
	if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(m)}, in); err != nil {
		if !s.spoilt {
			w.t.Fatalf("a message cannot be read: %v", err)
		}
		w.loseTarget(st)
		return true
	}
	w.arriving = in
	w.toReceiver(receiver.Received{Stream: st.id, Message: in.Message, Chunk: &in.Chunk})
	return true
}

// deliverDown brings one message to the sender; false: there is none that is whole.
func (w *world) deliverDown(s *session, st *stripe) bool {
	encoded := message(&st.down)
	if encoded == nil {
		return false
	}
	m := new(kvtransferv1.ReceiverMessage)
	if err := proto.Unmarshal(encoded, m); err != nil {
		w.loseSender(s)
		return true
	}
	if s.core != nil {
		w.toSender(s, sender.Received{Stripe: st.number, Message: m})
		return true
	}
	h := m.GetHello()
	if h == nil || st.hello != nil || h.GetEpoch() != s.epoch || h.GetLayoutDigest() != layout ||
		h.GetCreditBytes() != creditBytes || h.GetMaxChunkBytes() != maxChunkBytes {
		if !s.spoilt {
			w.t.Fatalf("greeting %v", m)
		}
		s.leave(w)
		return true
	}
	st.hello = h
	cfg := sender.Config{
		LayoutDigest: layout, Layers: layers, SliceBytes: sliceBytes, MaxChunkBytes: maxChunkBytes,
		AnswerTimeout: answerTimeout, IdleTimeout: time.Hour,
		Observe: func(x sender.Transition) { w.observe("sender", x, x.Allowed()) },
	}
	for _, each := range s.stripes {
		if each.hello == nil {
			return true
		}
		cfg.CreditBytes = append(cfg.CreditBytes, creditBytes)
	}
	s.core = sender.New(cfg, w.now)
	return true
}

// advance moves the clock, and ticks whom it concerns.
func (w *world) advance(by time.Duration) {
	w.now = w.now.Add(by)
	if at, ok := w.receiver.Next(); ok && !at.After(w.now) {
		w.toReceiver(receiver.Tick{})
	}
	for _, s := range w.sessions {
		if s.core == nil || s.gone {
			continue
		}
		if at, ok := s.core.Next(); ok && !at.After(w.now) {
			w.toSender(s, sender.Tick{})
		}
	}
}

// loseSender tells the sender that one of its streams is over: it closes the others.
func (w *world) loseSender(s *session) {
	s.leave(w)
	if s.core != nil {
		w.toSender(s, sender.StreamLost{Err: errors.New("cut")})
	}
}

// loseTarget tells the receiver that a stream is over. Copies may still be under way.
func (w *world) loseTarget(st *stripe) {
	st.targetGone, st.up = true, nil
	w.toReceiver(receiver.StreamClosed{Stream: st.id})
}

func senderBlocks(id uint64, first, count int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, count)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(id<<blockBits | uint64(first+i))
	}
	return blocks
}
