package protocolmodeltest_test

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// event is one thing that happens in a world, with all its random choices: equal events
// make equal histories. Sessions are numbered from 0, transfers from 1, in order of
// creation.
type event interface {
	// may reports whether it is possible now.
	may(w *world) bool
	happen(w *world)
}

// place is a stripe of a session.
type place struct{ session, stripe int }

type (
	// start starts or restarts the receiver's process.
	start struct{ encoded, views, lends, shares bool }
	// connect begins a session. If odd is not 0, stripe odd-1 sends the hello of another
	// stripe.
	connect struct{ stripes, odd, as int }
	// attach has the sender of a session map the pages, with a ticket.
	attach struct {
		session int
		id      uint64
		forged  forgery
	}
	// unmap unmaps them at the sender: after its streams, or before it has used them, as where
	// mapping fails. hearUnmap tells the receiver.
	unmap     struct{ session int }
	hearUnmap struct{ session int }
	// reserve reserves blocks. The first of them are held.
	reserve struct {
		blocks []kvcache.BlockID
		held   int
	}
	// open opens a transfer in a session.
	open struct {
		session                    int
		id                         uint64
		forged                     forgery
		descending, encoded, again bool
		lent, shared               bool
	}
	// offer offers the next slices of a layer.
	offer struct {
		session      int
		id           uint64
		layer, count int
	}
	// commit offers what is left, unless it forgets to, and commits.
	commit struct {
		session int
		id      uint64
		forgets bool
	}
	// abort is by the sender's owner, cancel by the receiver's.
	abort struct {
		session int
		id      uint64
	}
	cancel struct{ id uint64 }

	// write gives a stripe's writer one thing, ship puts its chunk on the stream, read ends
	// the reading of its pages.
	write place
	ship  struct {
		session, stripe int
		fails           bool
	}
	read place
	// up and down deliver one message on a stripe, to the receiver and to the sender.
	up   place
	down place
	// land ends one copy at the receiver.
	land struct {
		copy  int
		fails bool
	}

	// advance lets time pass; pass does so in a healthy cluster.
	advance struct{ by time.Duration }
	pass    struct{}

	// cut cuts a stripe in both directions; tear drops all but some bytes in flight on a
	// stripe that was cut or left.
	cut  place
	tear struct{ session, stripe, up, down int }
	// flip flips one bit of a message in flight.
	flip struct {
		session, stripe int
		down            bool
		message, bit    int
	}
	// senderHears and receiverHears report the end of a stripe.
	senderHears   struct{ session int }
	receiverHears place
	// die kills a sender's process; shutdown shuts the receiver down.
	die      struct{ session int }
	shutdown struct{}

	// quiesce lets everything finish; blackout stops all deliveries. Either is the last
	// event.
	quiesce  struct{}
	blackout struct{}
)

// forgery is what is wrong with a ticket.
type forgery int

const (
	genuine forgery = iota
	wrongSecret
	oldEpoch
)

// do applies an event and then checks the invariants.
func (w *world) do(e event) {
	w.history = append(w.history, e)
	if !e.may(w) {
		w.fatalf("%#v cannot happen: the history does not say what it was written for", e)
	}
	e.happen(w)
	w.check()
}

func (w *world) at(p place) (*session, *stripe) {
	s := w.sessions[p.session]
	return s, s.stripes[p.stripe]
}

func (e start) may(*world) bool { return true }
func (e start) happen(w *world) {
	for _, s := range w.sessions {
		for _, st := range s.stripes {
			st.cut, st.targetGone, st.up, st.loose = true, true, nil, true
		}
	}
	w.startReceiver(e)
}

func (e connect) may(w *world) bool { return true }
func (e connect) happen(w *world) {
	s := &session{target: w.receiver, epoch: w.epoch, transfers: map[uint64]*outgoing{}, spoilt: e.odd > 0}
	w.sessions = append(w.sessions, s)
	for i := range e.stripes {
		w.lastStream++
		st := &stripe{id: w.lastStream, number: i}
		s.stripes = append(s.stripes, st)
		hello := &kvtransferv1.SenderHello{
			Sender: "prefill", Epoch: 1, Version: 2, LayoutDigest: layout,
			Session: sessionNumber(len(w.sessions)), Stripe: uint32(i), Stripes: uint32(e.stripes),
		}
		if e.odd == i+1 {
			hello.Stripe = uint32(e.as)
		}
		w.toReceiver(receiver.StreamOpened{Stream: st.id})
		w.putUp(s, st, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: hello}})
	}
}

func (e attach) may(w *world) bool {
	s, r := w.sessions[e.session], w.reservations[e.id]
	return w.shares && s.core != nil && !s.gone && s.target == w.receiver && s.mapping == unasked && r != nil && !r.opened && !r.failed && !r.cancelled
}

func (e attach) happen(w *world) {
	s, ticket := w.sessions[e.session], w.reservations[e.id].ticket
	secret := ticket.GetSecret()
	if e.forged == wrongSecret {
		secret = 1
	}
	w.toReceiver(receiver.Map{Stream: s.stripes[0].id, ID: e.id, Secret: secret})
	if e.forged == wrongSecret && s.mapping == mapped {
		w.fatalf("the pages are mapped with a forged ticket")
	}
}

func (e unmap) may(w *world) bool {
	s := w.sessions[e.session]
	return s.mapping == mapped && (s.gone || !s.shared) && !s.writing()
}
func (e unmap) happen(w *world) { w.sessions[e.session].mapping = untold }

func (e hearUnmap) may(w *world) bool { return w.sessions[e.session].mapping == untold }
func (e hearUnmap) happen(w *world)   { w.hearUnmap(w.sessions[e.session]) }

// sessionNumber spreads the numbers like random ones, so that no bit flip maps one to
// another.
func sessionNumber(n int) uint64 { return uint64(n) * 0x9e3779b97f4a7c15 }

func (e reserve) may(w *world) bool {
	for _, b := range e.blocks {
		if w.owner[b] != 0 {
			return false
		}
	}
	return e.held <= len(e.blocks)
}

func (e reserve) happen(w *world) {
	w.lastID++
	id := w.lastID
	r := &reservation{blocks: e.blocks, ticket: &kvtransferv1.Ticket{
		TransferId: id, Epoch: w.epoch, Secret: id * 3, LayoutDigest: layout, Encoding: w.encoding,
		Blocks: uint32(len(e.blocks)), HeldBlocks: uint32(e.held), Lease: durationpb.New(lease),
	}}
	w.reservations[id] = r
	for _, b := range r.blocks {
		w.owner[b] = id
	}
	w.toReceiver(receiver.Reserve{ID: id, Secret: id * 3, Blocks: r.blocks, Held: e.held})
}

func (e open) may(w *world) bool {
	s := w.sessions[e.session]
	r := w.reservations[e.id]
	return s.core != nil && !s.gone && s.target == w.receiver && s.transfers[e.id] == nil &&
		r != nil && (!r.opened && !r.failed || e.again) && (!e.encoded || w.encoding == kvtransferv1.Encoding_ENCODING_INT8) && (!e.lent || w.lends) && (!e.shared || s.mapping == mapped)
}

func (e open) happen(w *world) {
	s, r := w.sessions[e.session], w.reservations[e.id]
	ticket := proto.CloneOf(r.ticket)
	switch e.forged {
	case wrongSecret:
		ticket.Secret = 1
	case oldEpoch:
		ticket.Epoch--
	}
	r.opened = true
	o := &outgoing{ticket: ticket, descending: e.descending}
	for layer := range o.offered {
		o.offered[layer] = int(ticket.GetHeldBlocks())
	}
	s.transfers[e.id] = o
	ev := sender.Open{Ticket: ticket, Lease: lease}
	if e.encoded {
		ev.Encoding, ev.EncodedBytes = ticket.GetEncoding(), encodedBytes
	}
	if e.lent {
		ev.Encoding, ev.EncodedBytes = kvtransferv1.Encoding_ENCODING_LENT, 0
	}
	if e.shared {
		ev.Encoding, ev.EncodedBytes = kvtransferv1.Encoding_ENCODING_SHARED, 0
		r.shared, s.shared = append(r.shared, s), true
	}
	w.toSender(s, ev)
}

// outgoing returns a transfer of a live sender, or nil.
func (w *world) outgoing(session int, id uint64) *outgoing {
	if s := w.sessions[session]; s.core != nil {
		return s.transfers[id]
	}
	return nil
}

func (e offer) may(w *world) bool {
	o := w.outgoing(e.session, e.id)
	return o != nil && !o.committing && e.count > 0 && o.offered[e.layer]+e.count <= int(o.ticket.GetBlocks())
}

func (e offer) happen(w *world) {
	w.offerSome(w.sessions[e.session], e.id, w.outgoing(e.session, e.id), e.layer, e.count)
}

func (e commit) may(w *world) bool {
	o := w.outgoing(e.session, e.id)
	return o != nil && !o.committing
}

func (e commit) happen(w *world) {
	s, o := w.sessions[e.session], w.outgoing(e.session, e.id)
	if !e.forgets {
		w.offerRest(s, e.id, o)
	}
	o.committing = true
	w.toSender(s, sender.Commit{ID: e.id, Sampled: tokens(e.id)})
}

func (e abort) may(w *world) bool { return w.outgoing(e.session, e.id) != nil }
func (e abort) happen(w *world) {
	w.toSender(w.sessions[e.session], sender.Abort{ID: e.id, Reason: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED})
}

func (e cancel) may(w *world) bool { return w.reservations[e.id] != nil }
func (e cancel) happen(w *world) {
	if r := w.reservations[e.id]; !r.failed && !r.over() {
		r.cancelled = true
	}
	w.toReceiver(receiver.Cancel{ID: e.id})
}

func (e write) may(w *world) bool {
	s, st := w.at(place(e))
	return s.core != nil && !s.gone && st.writing == nil
}
func (e write) happen(w *world) { w.writerStep(w.at(place(e))) }

func (e ship) may(w *world) bool {
	_, st := w.at(place{e.session, e.stripe})
	return st.writing != nil
}

func (e ship) happen(w *world) {
	s, st := w.at(place{e.session, e.stripe})
	w.ship(s, st, e.fails)
}

func (e read) may(w *world) bool {
	_, st := w.at(place(e))
	return w.readable(st) >= 0
}
func (e read) happen(w *world) { w.read(w.at(place(e))) }

func (e up) may(w *world) bool {
	_, st := w.at(place(e))
	return !st.targetGone && len(messages(st.up)) > 0
}
func (e up) happen(w *world) { w.deliverUp(w.at(place(e))) }

func (e down) may(w *world) bool {
	s, st := w.at(place(e))
	return !s.gone && len(messages(st.down)) > 0
}
func (e down) happen(w *world) { w.deliverDown(w.at(place(e))) }

func (e land) may(w *world) bool { return e.copy < len(w.copies) }
func (e land) happen(w *world)   { w.copyOne(e.copy, e.fails) }
