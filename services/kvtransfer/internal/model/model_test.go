package model_test

import (
	"flag"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// TestMain asks for more histories than rapid's 100: they are cheap, and the
// rare ones are those that matter. -rapid.checks has the last word.
func TestMain(m *testing.M) {
	if err := flag.Set("rapid.checks", "2000"); err != nil {
		panic(err)
	}
	m.Run()
}

// Whatever happens, no block is written late, every transfer ends once at both
// sides, and once the network is quiet nothing is left.
func TestAnythingMayHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		noisy := w.draw("noisy", 2) == 0
		for range rapid.IntRange(20, 600).Draw(t, "steps") {
			w.step(true)
			if noisy && w.draw("noise", 25) == 0 {
				w.spoil()
			}
			w.check()
		}
		if rapid.Bool().Draw(t, "blackout") {
			w.blackout()
		} else {
			w.settle()
		}
	})
}

// Where nothing goes wrong, everything that is committed at the sender arrives.
func TestNothingGoesWrong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.healthy = true
		for range rapid.IntRange(20, 600).Draw(t, "steps") {
			w.step(false)
			w.check()
		}
		w.settle()
		for _, s := range w.sessions {
			for id, o := range s.transfers {
				if o.result.End != sender.EndCommitted {
					t.Fatalf("transfer %d ended with %+v; %s", id, o.result, w.describe())
				}
			}
		}
	})
}

// step draws one thing that happens. Without faults there are only those that a
// healthy cluster sees, and time passes only while the network has nothing to do.
func (w *world) step(faults bool) {
	op := w.draw("op", 100)
	switch {
	case op < 4:
		w.connect(faults)
	case op < 10:
		w.reserve()
	case op < 17:
		w.open(faults)
	case op < 32:
		w.offer()
	case op < 39:
		w.commit(faults)
	case op < 51:
		w.eachStripe("write", func(s *session, st *stripe) bool { return s.core != nil && !s.gone && st.writing == nil }, w.writerStep)
	case op < 58:
		w.eachStripe("ship", func(_ *session, st *stripe) bool { return st.writing != nil },
			func(s *session, st *stripe) { w.ship(s, st, faults && w.rarely()) })
	case op < 64:
		w.eachStripe("read", func(_ *session, st *stripe) bool { return len(st.unread) > 0 }, w.read)
	case op < 75:
		w.eachStripe("up", func(_ *session, st *stripe) bool { return len(st.up) > 0 && !st.targetGone },
			func(s *session, st *stripe) { w.deliverUp(s, st) })
	case op < 82:
		w.eachStripe("down", func(s *session, st *stripe) bool { return len(st.down) > 0 && !s.gone },
			func(s *session, st *stripe) { w.deliverDown(s, st) })
	case op < 89:
		if len(w.copies) > 0 {
			w.copyOne(w.draw("copy", len(w.copies)), faults && w.rarely())
		}
	case !faults:
		if w.rarely() {
			w.pass()
		}
	default:
		w.fault(op)
	}
}

// fault draws one thing that a healthy cluster does not see.
func (w *world) fault(op int) {
	switch {
	case op < 91:
		w.abort()
	case op < 92:
		w.cancel()
	case op < 95:
		w.advance(time.Duration(1 + w.draw("time", int(lease/2))))
	case op < 96:
		w.eachStripe("cut", func(_ *session, st *stripe) bool { return !st.cut }, func(_ *session, st *stripe) { w.cutStream(st) })
	case op < 97:
		w.eachStripe("lose at the sender", func(s *session, _ *stripe) bool { return !s.gone && s.severed() },
			func(s *session, _ *stripe) { w.loseSender(s) })
	case op < 98:
		w.eachStripe("lose at the receiver", func(s *session, st *stripe) bool { return !st.targetGone && (st.cut || st.closing || s.gone) },
			func(_ *session, st *stripe) { w.loseTarget(st) })
	case op < 99:
		if w.rarely() {
			w.spoil()
		}
	case w.rarely():
		w.calamity()
	}
}

// spoil flips a bit on its way.
func (w *world) spoil() {
	if w.draw("direction", 4) > 0 {
		w.eachStripe("flip up", func(_ *session, st *stripe) bool { return len(st.up) > 4 && !st.targetGone },
			func(s *session, st *stripe) { s.spoilt = w.flip(st.up) || s.spoilt })
		return
	}
	w.eachStripe("flip down", func(s *session, st *stripe) bool { return len(st.down) > 4 && !s.gone },
		func(s *session, st *stripe) {
			if w.flip(st.down) {
				s.spoilt, s.lied = true, true
			}
		})
}

// draw is a number below n. Rapid prefers small and extreme numbers, which would
// make of every history one of calamities: what it draws is mixed.
func (w *world) draw(label string, n int) int {
	x := rapid.Uint64().Draw(w.t, label)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return int((x ^ x>>31) % uint64(n))
}

// pass lets time pass in a healthy cluster, in which some engine is slow.
func (w *world) pass() {
	for range 6 {
		w.run()
		w.advance(lease / 3)
		w.run()
	}
}

func (w *world) rarely() bool { return w.draw("rarely", 40) == 0 }

func (w *world) calamity() {
	switch w.draw("calamity", 3) {
	case 0: // the receiver's process starts anew
		for _, s := range w.sessions {
			for _, st := range s.stripes {
				st.cut, st.targetGone, st.up = true, true, nil
				w.truncate(&st.down)
			}
		}
		w.startReceiver()
	case 1: // a sender's process dies
		w.eachSession("die", func(s *session) bool { return !s.gone }, func(s *session) {
			s.leave(w)
			s.core = nil
			for _, st := range s.stripes {
				st.cut, st.writing, st.unread = true, nil, nil
			}
		})
	case 2:
		w.closed = true
		w.toReceiver(receiver.Shutdown{})
	}
}

func (w *world) eachSession(label string, may func(*session) bool, do func(*session)) {
	var able []*session
	for _, s := range w.sessions {
		if may(s) {
			able = append(able, s)
		}
	}
	if len(able) > 0 {
		do(able[w.draw(label, len(able))])
	}
}

func (w *world) eachStripe(label string, may func(*session, *stripe) bool, do func(*session, *stripe)) {
	type one struct {
		s  *session
		st *stripe
	}
	var able []one
	for _, s := range w.sessions {
		for _, st := range s.stripes {
			if may(s, st) {
				able = append(able, one{s, st})
			}
		}
	}
	if len(able) > 0 {
		x := able[w.draw(label, len(able))]
		do(x.s, x.st)
	}
}

// sessionNumber is as far from every other as random ones are: no flipped bit makes
// another of it.
func sessionNumber(n int) uint64 { return uint64(n) * 0x9e3779b97f4a7c15 }

// connect begins a session; with faults one of its streams may never come, or not fit.
func (w *world) connect(faults bool) {
	live := 0
	for _, s := range w.sessions {
		if !s.gone {
			live++
		}
	}
	if live >= 2 {
		return
	}
	s := &session{target: w.receiver, epoch: w.epoch, transfers: map[uint64]*outgoing{}}
	w.sessions = append(w.sessions, s)
	stripes := 1 + w.draw("stripes", 3)
	for i := range stripes {
		w.lastStream++
		st := &stripe{id: w.lastStream, number: i}
		s.stripes = append(s.stripes, st)
		hello := &kvtransferv1.SenderHello{
			Sender: "prefill", Epoch: 1, Version: 2, LayoutDigest: layout,
			Session: sessionNumber(len(w.sessions)), Stripe: uint32(i), Stripes: uint32(stripes),
		}
		w.toReceiver(receiver.StreamOpened{Stream: st.id})
		if faults && w.rarely() {
			s.spoilt = true
			hello.Stripe = uint32(w.draw("stripe", 10))
		}
		w.putUp(s, st, &wire.Outbound{Message: &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: hello}}})
		if faults && w.rarely() {
			w.cutStream(st)
		}
	}
}

func (w *world) reserve() {
	var free []kvcache.BlockID
	for b, owner := range w.owner {
		if owner == 0 {
			free = append(free, kvcache.BlockID(b))
		}
	}
	n := w.draw("blocks", 8)
	if n > len(free) {
		return
	}
	free = rapid.Permutation(free).Draw(w.t, "free")
	w.lastID++
	id := w.lastID
	held := w.draw("held", n+1)
	r := &reservation{blocks: free[:n], ticket: &kvtransferv1.Ticket{
		TransferId: id, Epoch: w.epoch, Secret: id * 3, LayoutDigest: layout, Encoding: w.encoding,
		Blocks: uint32(n), HeldBlocks: uint32(held), Lease: durationpb.New(lease),
	}}
	w.reservations[id] = r
	for _, b := range r.blocks {
		w.owner[b] = id
	}
	w.toReceiver(receiver.Reserve{ID: id, Secret: id * 3, Blocks: r.blocks, Held: held})
}

// open takes a ticket to a session; with faults also one that was used before, or
// one with a wrong secret or epoch.
func (w *world) open(faults bool) {
	var tickets []*reservation
	for id := uint64(1); id <= w.lastID; id++ {
		if r := w.reservations[id]; r != nil && (!r.opened && !r.failed || faults && w.rarely()) {
			tickets = append(tickets, r)
		}
	}
	if len(tickets) == 0 {
		return
	}
	w.eachSession("open", func(s *session) bool { return s.core != nil && !s.gone && s.target == w.receiver }, func(s *session) {
		r := tickets[w.draw("ticket", len(tickets))]
		if s.transfers[r.ticket.GetTransferId()] != nil {
			return
		}
		ticket := r.ticket
		if faults && w.rarely() {
			ticket = proto.CloneOf(ticket)
			if w.draw("forge", 2) == 0 {
				ticket.Secret = 1
			} else {
				ticket.Epoch-- // of the start before
			}
		}
		r.opened = true
		o := &outgoing{ticket: ticket, descending: w.draw("order", 2) == 0}
		for layer := range o.offered {
			o.offered[layer] = int(ticket.GetHeldBlocks())
		}
		s.transfers[ticket.GetTransferId()] = o
		ev := sender.Open{Ticket: ticket, Lease: lease}
		if ticket.GetEncoding() == kvtransferv1.Encoding_ENCODING_INT8 && w.draw("encode", 2) == 0 {
			ev.Encoding, ev.EncodedBytes = ticket.GetEncoding(), encodedBytes
		}
		w.toSender(s, ev)
	})
}

// eachOutgoing draws a transfer of some sender that may.
func (w *world) eachOutgoing(label string, may func(*outgoing) bool, do func(*session, uint64, *outgoing)) {
	type one struct {
		s  *session
		id uint64
	}
	var able []one
	for _, s := range w.sessions {
		for id := uint64(1); id <= w.lastID; id++ {
			if o := s.transfers[id]; o != nil && s.core != nil && may(o) {
				able = append(able, one{s, id})
			}
		}
	}
	if len(able) > 0 {
		x := able[w.draw(label, len(able))]
		do(x.s, x.id, x.s.transfers[x.id])
	}
}

func (w *world) offer() {
	w.eachOutgoing("offer", func(o *outgoing) bool { return !o.committing }, func(s *session, id uint64, o *outgoing) {
		layer := w.draw("layer", layers)
		if rest := int(o.ticket.GetBlocks()) - o.offered[layer]; rest > 0 {
			w.offerSome(s, id, o, layer, 1+w.draw("count", rest))
		}
	})
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

// commit offers what is left and commits; with faults it may forget the rest.
func (w *world) commit(faults bool) {
	w.eachOutgoing("commit", func(o *outgoing) bool { return !o.committing }, func(s *session, id uint64, o *outgoing) {
		if !faults || !w.rarely() {
			w.offerRest(s, id, o)
		}
		o.committing = true
		w.toSender(s, sender.Commit{ID: id, Sampled: tokens(id)})
	})
}

func (w *world) abort() {
	w.eachOutgoing("abort", func(*outgoing) bool { return true }, func(s *session, id uint64, _ *outgoing) {
		w.toSender(s, sender.Abort{ID: id, Reason: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED})
	})
}

func (w *world) cancel() {
	var ids []uint64
	for id := uint64(1); id <= w.lastID; id++ {
		if w.reservations[id] != nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return
	}
	id := ids[w.draw("cancel", len(ids))]
	if r := w.reservations[id]; !r.failed && !r.over() {
		r.cancelled = true
	}
	w.toReceiver(receiver.Cancel{ID: id})
}
