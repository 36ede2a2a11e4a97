package protocolmodeltest_test

import (
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

// quiesce lets everything finish: prefill workers commit what they began, the network
// delivers, cuts are noticed. Nothing may be left within the lease.
func (w *world) quiesce() {
	w.commitAll()
	w.run()
	w.advance(lease) // expires unused tickets and incomplete sessions
	w.run()
	for _, s := range w.sessions {
		if s.spoilt { // a corrupted message counts as lost
			for range 3 {
				w.advance(patience)
				w.run()
			}
			break
		}
	}
	w.finish()
}

func (w *world) commitAll() {
	for _, s := range w.sessions {
		for id := uint64(1); id <= w.lastID; id++ {
			if o := s.transfers[id]; o != nil && s.core != nil && !o.ended && !o.committing {
				w.offerRest(s, id, o)
				o.committing = true
				w.toSender(s, sender.Commit{ID: id, Sampled: tokens(id)})
			}
		}
	}
}

// blackout stops all deliveries without anyone noticing, and the senders' engines. The
// receiver must give up within two leases, and so must senders that wait for an answer.
func (w *world) blackout() {
	for _, s := range w.sessions {
		for _, st := range s.stripes {
			st.cut, st.up, st.down = true, nil, nil
		}
	}
	for range 4 {
		w.advance(lease / 2)
		w.local()
	}
	for id, r := range w.reservations {
		if !r.over() && !r.mapped() { // no timer frees what a sender can still write
			w.fatalf("transfer %d is left after two leases: %+v; %s", id, r, w.describe())
		}
	}
	for _, s := range w.sessions {
		for id := uint64(1); s.core != nil && id <= w.lastID; id++ {
			if s.transfers[id] != nil {
				// The owner must end one that waits for its engine.
				w.toSender(s, sender.Abort{ID: id})
			}
		}
	}
	w.local()
	w.advance(patience)
	w.local()
	w.advance(patience)
	w.local()
	w.finish()
}

// local runs what each side does by itself.
func (w *world) local() {
	for len(w.copies) > 0 {
		w.copyOne(0, false)
	}
	for _, s := range w.sessions {
		for _, st := range s.stripes {
			if st.closing && !st.targetGone {
				w.loseTarget(st)
			}
		}
		w.writeAll(s)
	}
	w.unmapAll()
	w.check()
}

// run delivers until nothing moves.
func (w *world) run() {
	for moved := true; moved; {
		moved = len(w.copies) > 0
		for _, s := range w.sessions {
			for _, st := range s.stripes {
				for !st.targetGone && w.deliverUp(s, st) {
					moved = true
				}
				for !s.gone && w.deliverDown(s, st) {
					moved = true
				}
				if !st.targetGone && (st.cut || st.closing || s.gone) {
					w.loseTarget(st)
					moved = true
				}
				if !s.gone && (st.cut || st.closing || st.targetGone) {
					w.loseSender(s)
					moved = true
				}
			}
			moved = w.writeAll(s) || moved
		}
		moved = w.unmapAll() || moved
		for len(w.copies) > 0 {
			w.copyOne(0, false)
		}
		w.check()
	}
}

// writeAll runs a sender's writers until all are asleep.
func (w *world) writeAll(s *session) (wrote bool) {
	if s.core == nil {
		return false
	}
	for range 10_000 {
		idle := true
		for _, st := range s.stripes {
			switch {
			case st.writing != nil:
				w.ship(s, st, false)
			case w.readable(st) >= 0:
				w.read(s, st)
			case !s.gone && !st.asleep:
				w.writerStep(s, st)
			default:
				continue
			}
			idle, wrote = false, true
		}
		if idle {
			return wrote
		}
	}
	w.fatalf("the writers do not come to rest")
	return false
}

// finish checks that nothing is left but streams.
func (w *world) finish() {
	w.check()
	if s := w.receiver.Stats(); s.Reserved+s.Open+s.Ending != 0 {
		w.fatalf("left at the receiver: %s", w.describe())
	}
	mappings := 0
	for _, s := range w.sessions {
		if s.mapping == mapped && s.target == w.receiver {
			mappings++
		}
	}
	if got := w.receiver.Stats().Mappings; got != mappings {
		w.fatalf("the receiver knows of %d mappings, there are %d; %s", got, mappings, w.describe())
	}
	for i, s := range w.sessions {
		if s.core == nil {
			continue
		}
		for id, o := range s.transfers {
			if !o.ended {
				w.fatalf("transfer %d is left at its sender: %+v; %s", id, o, w.describe())
			}
		}
		// Grants lost with a cut stream do not count: nothing waits for them.
		for _, st := range s.stripes {
			if got := s.core.Credit(st.number); !s.core.Lost() && got != creditBytes && !s.spoilt && !s.broken() {
				w.fatalf("stripe %d of session %d has %d bytes of credit at rest; %s", st.number, i, got, w.describe())
			}
		}
		if n := s.core.Transfers(); n != 0 {
			w.fatalf("%d transfers are not forgotten at a sender; %s", n, w.describe())
		}
	}
	for number, l := range w.loans {
		w.fatalf("loan %#x of transfer %d is left", number, l.chunk.ID)
	}
	if w.closed {
		w.toReceiver(receiver.CloseStreams{})
	}
}
