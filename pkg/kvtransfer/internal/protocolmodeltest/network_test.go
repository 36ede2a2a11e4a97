package protocolmodeltest_test

import (
	"encoding/binary"
	"errors"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// session is some streams and their sender process.
type session struct {
	target    *receiver.Core
	epoch     uint64       // of the receiver
	core      *sender.Core // nil before the last ReceiverHello
	gone      bool         // the sender closed its ends or died
	spoilt    bool         // a bit was flipped: protocol violations are not the peer's
	lied      bool         // the same, on the way to the sender
	stripes   []*stripe
	mapping   mapping // of the receiver's pages
	shared    bool    // a transfer was opened that writes there
	transfers map[uint64]*outgoing
}

// mapping is what a sender has of the receiver's pages.
type mapping int

const (
	unasked  mapping = iota
	mapped           // it can write them, also after its streams
	untold           // it cannot any more, and the receiver does not know
	unmapped         // the receiver knows
)

// writing reports whether a writer is about to write a chunk.
func (s *session) writing() bool {
	for _, st := range s.stripes {
		if st.writing != nil {
			return true
		}
	}
	return false
}

// hearUnmap tells the receiver that a sender has unmapped its pages, or has died.
func (w *world) hearUnmap(s *session) {
	s.mapping = unmapped
	w.toReceiver(receiver.Unmapped{Stream: s.stripes[0].id})
}

// unmapAll lets senders that have left unmap the pages.
func (w *world) unmapAll() (some bool) {
	for _, s := range w.sessions {
		if s.mapping == mapped && s.gone && !s.writing() {
			s.mapping = untold
		}
		if s.mapping == untold {
			w.hearUnmap(s)
			some = true
		}
	}
	return some
}

// stripe is one stream: bytes in flight, as length-prefixed messages.
type stripe struct {
	id         receiver.StreamID
	number     int
	hello      *kvtransferv1.ReceiverHello
	targetGone bool // the receiver closed its end
	closing    bool // the receiver wants to close it
	cut        bool // accepts no new bytes
	loose      bool // tear may drop its last bytes
	up, down   []byte
	writing    *sender.WriteChunk   // with the writer, not on the stream
	unread     []*sender.WriteChunk // on the stream, without PagesRead
	asleep     bool
}

// outgoing is the prefill worker's view of a transfer.
type outgoing struct {
	ticket          *kvtransferv1.Ticket
	accepted, ended bool
	pages           []uint32 // of the receiver, to write into
	released        bool     // none of its pages may be read
	recalled        bool     // it lends nothing any more
	result          sender.Result
	committing      bool
	descending      bool        // offers its blocks from last to first
	offered         [layers]int // blocks offered per layer, including held ones
}

func (s *session) reading() bool {
	for _, st := range s.stripes {
		if st.writing != nil || len(st.unread) > 0 {
			return true
		}
	}
	return false
}

// broken reports whether a stripe has ended or is about to, at either side.
func (s *session) broken() bool {
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
	w.fatalf("no stream %d", id)
	return nil, nil
}

// leave closes the sender's ends. Bytes in flight may arrive in part.
func (s *session) leave() {
	s.gone = true
	for _, st := range s.stripes {
		st.down, st.loose = nil, true
	}
}

// putUp encodes a message or a chunk for the receiver, like the sender's driver.
func (w *world) putUp(s *session, st *stripe, out any) {
	data, err := wire.Codec().Marshal(out)
	if err != nil {
		return // reported through Released
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
		w.fatalf("%v", err)
	}
	if !st.cut && !s.gone {
		st.down = append(binary.LittleEndian.AppendUint32(st.down, uint32(len(encoded))), encoded...)
	}
}

// message takes the next whole message off a stream, nil if there is none.
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

// messages returns the whole messages on a stream.
func messages(bytes []byte) (all [][]byte) {
	for {
		m := message(&bytes)
		if m == nil {
			return all
		}
		all = append(all, m)
	}
}

// isChunk and isCommit check the first byte of a SenderMessage, the tag.
func isChunk(m []byte) bool  { return len(m) > 0 && m[0] == 3<<3|2 }
func isCommit(m []byte) bool { return len(m) > 0 && m[0] == 4<<3|2 }

// deliverUp delivers one whole message to the receiver, and returns false if there is none.
func (w *world) deliverUp(s *session, st *stripe) bool {
	m := message(&st.up)
	if m == nil {
		return false
	}
	in := new(wire.Inbound)
	if err := wire.Codec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(m)}, in); err != nil {
		if !s.spoilt {
			w.fatalf("a message cannot be read: %v", err)
		}
		w.loseTarget(st)
		return true
	}
	w.arriving = in
	w.toReceiver(receiver.Received{Stream: st.id, Message: in.Message, Chunk: &in.Chunk})
	return true
}

// deliverDown delivers one whole message to the sender, and returns false if there is none.
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
			w.fatalf("greeting %v", m)
		}
		s.leave()
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

// advance moves the clock and ticks the cores.
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

// loseSender reports the end of a stream to the sender, which closes the others.
func (w *world) loseSender(s *session) {
	s.leave()
	if s.core != nil {
		w.toSender(s, sender.StreamLost{Err: errors.New("cut")})
	}
}

// loseTarget reports the end of a stream to the receiver. Copies may be in progress.
func (w *world) loseTarget(st *stripe) {
	st.targetGone, st.up = true, nil
	w.toReceiver(receiver.StreamClosed{Stream: st.id})
}
