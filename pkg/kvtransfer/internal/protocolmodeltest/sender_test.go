package protocolmodeltest_test

import (
	"strings"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

func (w *world) toSender(s *session, ev sender.Event) {
	for _, a := range s.core.Handle(w.now, ev) {
		switch a := a.(type) {
		case sender.Write:
			w.putUp(s, s.stripes[a.Stripe], a.Message)
		case *sender.WriteChunk:
			if s.stripes[a.Stripe].writing != nil {
				w.fatalf("a writer has two chunks at once")
			}
			s.stripes[a.Stripe].writing = a
		case sender.Wake:
			s.stripes[a.Stripe].asleep = false
		case sender.Accepted:
			o := s.transfers[a.ID]
			if o.accepted || o.ended {
				w.fatalf("transfer %d: accepted after %+v", a.ID, o)
			}
			if (o.ticket.GetEpoch() != s.epoch || o.ticket.GetSecret() == 1) && !s.spoilt {
				w.fatalf("transfer %d: accepted with a forged ticket", a.ID)
			}
			o.accepted, o.pages = true, a.Pages
		case sender.Recall:
			w.recall(s, a.ID)
		case sender.Released:
			w.releaseOutgoing(s, a.ID)
		case sender.Ended:
			w.endOutgoing(s, a)
		case sender.CloseStream:
			if a.Err != nil && strings.Contains(a.Err.Error(), "protocol") && !s.spoilt {
				w.fatalf("the sender takes a right receiver for a wrong one: %v", a.Err)
			}
			if w.healthy {
				w.fatalf("the sender gives a healthy session up: %v", a.Err)
			}
			s.leave()
		}
	}
}

func (w *world) releaseOutgoing(s *session, id uint64) {
	o := s.transfers[id]
	if o.released || o.ended {
		w.fatalf("transfer %d: released after %+v", id, o)
	}
	for _, st := range s.stripes {
		for _, c := range append(st.unread, st.writing) {
			if c != nil && c.ID == id {
				w.fatalf("transfer %d: released while its pages are read", id)
			}
		}
	}
	o.released = true
}

func (w *world) endOutgoing(s *session, a sender.Ended) {
	o := s.transfers[a.ID]
	if o.ended || !o.released || a.Result.End == 0 {
		w.fatalf("transfer %d: ended with %+v after %+v", a.ID, a.Result, o)
	}
	o.ended, o.result = true, a.Result
	// The sender may report a commit only if there was one.
	if a.Result.End != sender.EndCommitted || s.target != w.receiver || s.lied {
		return
	}
	if r := w.reservations[a.ID]; r == nil || !r.committed {
		w.fatalf("transfer %d: the sender was told of a commit that was not", a.ID)
	}
}

// writerStep gives a stripe's writer one thing.
func (w *world) writerStep(s *session, st *stripe) {
	before := len(st.up)
	st.asleep = true
	w.toSender(s, sender.WriterReady{Stripe: st.number})
	if len(st.up) > before || st.writing != nil {
		st.asleep = false
	}
}

// ship puts the writer's chunk on its stream.
func (w *world) ship(s *session, st *stripe, fail bool) {
	chunk := st.writing
	st.writing = nil
	if chunk.Chunk.PayloadBytes > maxChunkBytes {
		w.fatalf("a chunk of %d bytes", chunk.Chunk.PayloadBytes)
	}
	out := &wire.Outbound{Chunk: chunk.Chunk, Blocks: chunk.Blocks, Pages: &source{w: w, s: s, fails: fail}}
	if chunk.Encoding == kvtransferv1.Encoding_ENCODING_INT8 {
		out.Coding = halving{}
	}
	if chunk.Encoding == kvtransferv1.Encoding_ENCODING_LENT {
		w.shipLent(s, st, chunk, fail)
		return
	}
	if chunk.Encoding == kvtransferv1.Encoding_ENCODING_SHARED {
		w.shipInto(s, chunk, out)
	}
	released := 0
	var failed error
	out.Released = func(err error) { released++; failed = err }
	w.putUp(s, st, out)
	if released != 1 || (failed != nil) != fail {
		w.fatalf("released %d times, with %v", released, failed)
	}
	if failed != nil {
		w.toSender(s, sender.PagesRead{Chunk: chunk, Err: failed})
		return
	}
	st.unread = append(st.unread, chunk)
}

// read ends the reading of a chunk's pages.
func (w *world) read(s *session, st *stripe) {
	i := w.readable(st)
	chunk := st.unread[i]
	st.unread = append(st.unread[:i:i], st.unread[i+1:]...)
	w.toSender(s, sender.PagesRead{Chunk: chunk})
}

func (w *world) offerSome(s *session, id uint64, o *outgoing, layer, count int) {
	first := o.offered[layer]
	o.offered[layer] += count
	if o.descending {
		first = int(o.ticket.GetBlocks()+o.ticket.GetHeldBlocks()) - o.offered[layer]
	}
	w.toSender(s, sender.Offer{ID: id, Layer: layer, First: first, Blocks: senderBlocks(id, first, count)})
}

func (w *world) offerRest(s *session, id uint64, o *outgoing) {
	for layer := range layers {
		if rest := int(o.ticket.GetBlocks()) - o.offered[layer]; rest > 0 {
			w.offerSome(s, id, o, layer, rest)
		}
	}
}

func senderBlocks(id uint64, first, count int) []kvcache.BlockID {
	blocks := make([]kvcache.BlockID, count)
	for i := range blocks {
		blocks[i] = kvcache.BlockID(id<<blockBits | uint64(first+i))
	}
	return blocks
}
