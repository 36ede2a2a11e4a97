package protocolmodel_test

import (
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
)

// quiesce lets everything that is under way come to its end: prefill workers
// commit what they began, the network is fair, what was cut is noticed. Then
// nothing may be left within the lease.
func (w *world) quiesce() {
	w.commitAll()
	w.run()
	w.advance(lease) // tickets that nobody took, sessions that are not complete
	w.run()
	for _, s := range w.sessions {
		if s.spoilt { // a message that was made another is as good as lost
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

// blackout: from now on no message arrives, nobody notices, and the senders'
// engines stand still. The receiver gives up by itself within two leases, and
// so do senders that wait for an answer.
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
		if !r.over() {
			w.fatalf("transfer %d is left after two leases: %+v; %s", id, r, w.describe())
		}
	}
	for _, s := range w.sessions {
		for id := uint64(1); s.core != nil && id <= w.lastID; id++ {
			if s.transfers[id] != nil {
				// One that waits for its engine is the owner's to end.
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

// local does what either side has to do by itself.
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
		for len(w.copies) > 0 {
			w.copyOne(0, false)
		}
		w.check()
	}
}

// writeAll lets a sender's writers write until all are asleep.
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

// finish checks that nothing is left anywhere, but streams.
func (w *world) finish() {
	w.check()
	if s := w.receiver.Stats(); s.Reserved+s.Open+s.Ending+s.QuarantinedBlocks != 0 {
		w.fatalf("left at the receiver: %s", w.describe())
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
		// Grants that were lost with a cut stream are not missed: nothing waits for them.
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
