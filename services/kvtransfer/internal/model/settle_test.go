package model_test

import (
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
)

// settle lets everything that is under way come to its end: prefill workers
// commit what they began, the network is fair, what was cut is noticed. Then
// nothing may be left within the lease.
func (w *world) settle() {
	for _, c := range w.conns {
		for id, o := range c.transfers {
			if c.core != nil && !o.ended && !o.committing {
				w.offerRest(c, id, o)
				o.committing = true
				w.toSender(c, sender.Commit{ID: id, Sampled: []int32{int32(id)}})
			}
		}
	}
	w.run()
	w.advance(lease) // tickets that nobody took
	w.run()
	w.finish()
}

// blackout: from now on no message arrives, nobody notices, and the senders'
// engines stand still. The receiver gives up by itself within two leases, and
// so do senders that wait for an answer.
func (w *world) blackout() {
	for _, c := range w.conns {
		c.cut, c.up, c.down = true, nil, nil
	}
	for range 4 {
		w.advance(lease / 2)
		w.local()
	}
	for id, r := range w.reservations {
		if !r.over() {
			w.t.Fatalf("transfer %d is left after two leases: %+v; %s", id, r, w.describe())
		}
	}
	for _, c := range w.conns {
		if c.core == nil {
			continue
		}
		for id := range c.transfers {
			// One that waits for its engine is the owner's to end.
			w.toSender(c, sender.Abort{ID: id})
		}
	}
	w.local()
	w.advance(answerTimeout)
	w.local()
	w.advance(answerTimeout)
	w.finish()
}

// local does what either side has to do by itself.
func (w *world) local() {
	for len(w.writes) > 0 {
		w.copyOne(0, false)
	}
	for _, c := range w.conns {
		if c.closing && !c.targetGone {
			w.loseTarget(c)
		}
		for c.core != nil && (c.reading != nil || !c.core.Lost()) {
			if c.reading != nil {
				w.readPages(c, false)
			}
			before := len(c.up)
			w.writerStep(c)
			if c.asleep && c.reading == nil && len(c.up) == before {
				break
			}
		}
	}
	w.check()
}

// run delivers until nothing moves.
func (w *world) run() {
	for moved := true; moved; {
		moved = len(w.writes) > 0
		for _, c := range w.conns {
			for len(c.up) > 0 && !c.targetGone {
				w.deliverUp(c, false)
				moved = true
			}
			for len(c.down) > 0 && !c.senderGone {
				w.deliverDown(c)
				moved = true
			}
			if !c.targetGone && (c.cut || c.closing || c.senderGone) {
				w.loseTarget(c)
				moved = true
			}
			if !c.senderGone && (c.cut || c.closing || c.targetGone) {
				w.loseSender(c)
				moved = true
			}
			up := len(c.up)
			if c.core != nil {
				w.writerStepAll(c)
			}
			moved = moved || len(c.up) > up
		}
		for len(w.writes) > 0 {
			w.copyOne(0, false)
		}
		w.check()
	}
}

func (w *world) writerStepAll(c *conn) {
	for range 1000 {
		if c.reading != nil {
			w.readPages(c, false)
			continue
		}
		before := len(c.up)
		w.writerStep(c)
		if c.reading == nil && len(c.up) == before {
			return
		}
	}
	w.t.Fatal("the writer does not come to rest")
}

// finish checks that nothing is left anywhere, but streams.
func (w *world) finish() {
	w.check()
	if s := w.receiver.Stats(); s.Reserved+s.Open+s.Ending+s.QuarantinedBlocks != 0 {
		w.t.Fatalf("left at the receiver: %s", w.describe())
	}
	for _, c := range w.conns {
		if c.core == nil {
			continue
		}
		for id, o := range c.transfers {
			if !o.ended {
				w.t.Fatalf("transfer %d is left at its sender: %+v; %s", id, o, w.describe())
			}
		}
		if got := c.core.Credit(); !c.core.Lost() && got != creditBytes {
			w.t.Fatalf("stream %d has %d bytes of credit at rest; %s", c.id, got, w.describe())
		}
		if n := c.core.Transfers(); n != 0 {
			w.t.Fatalf("%d transfers are not forgotten at a sender; %s", n, w.describe())
		}
	}
	if w.closed {
		w.toReceiver(receiver.CloseStreams{})
	}
}
