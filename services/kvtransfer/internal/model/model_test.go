package model_test

import (
	"flag"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
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
		for range rapid.IntRange(20, 600).Draw(t, "steps") {
			w.step(true)
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
		for _, c := range w.conns {
			for id, o := range c.transfers {
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
		w.connect()
	case op < 10:
		w.reserve()
	case op < 18:
		w.open(faults)
	case op < 34:
		w.offer()
	case op < 42:
		w.commit(faults)
	case op < 54:
		w.eachConn("write", func(c *conn) bool { return c.core != nil && !c.senderGone && c.reading == nil }, w.writerStep)
	case op < 62:
		w.eachConn("read", func(c *conn) bool { return c.reading != nil }, func(c *conn) { w.readPages(c, faults && w.rarely()) })
	case op < 72:
		w.eachConn("up", func(c *conn) bool { return len(c.up) > 0 && !c.targetGone }, func(c *conn) { w.deliverUp(c, faults && w.rarely()) })
	case op < 80:
		w.eachConn("down", func(c *conn) bool { return len(c.down) > 0 && !c.senderGone }, w.deliverDown)
	case op < 88:
		if len(w.writes) > 0 {
			w.copyOne(w.draw("copy", len(w.writes)), faults && w.rarely())
		}
	case !faults:
		if w.rarely() {
			w.pass()
		}
	case op < 90:
		w.abort()
	case op < 92:
		w.cancel()
	case op < 95:
		w.advance(time.Duration(1 + w.draw("time", int(lease/2))))
	case op < 96:
		w.eachConn("cut", func(c *conn) bool { return !c.cut }, func(c *conn) { c.cut = true })
	case op < 97:
		w.eachConn("lose at the sender", func(c *conn) bool { return !c.senderGone && (c.cut || c.closing || c.targetGone) }, w.loseSender)
	case op < 98:
		w.eachConn("lose at the receiver", func(c *conn) bool { return !c.targetGone && (c.cut || c.closing || c.senderGone) }, w.loseTarget)
	case w.rarely():
		w.calamity()
	}
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
		for _, c := range w.conns {
			c.cut, c.targetGone, c.up = true, true, nil
		}
		w.startReceiver()
	case 1: // a sender's process dies
		w.eachConn("die", func(c *conn) bool { return !c.senderGone }, func(c *conn) {
			c.cut, c.senderGone, c.down, c.reading, c.core = true, true, nil, nil, nil
		})
	case 2:
		w.closed = true
		w.toReceiver(receiver.Shutdown{})
	}
}

func (w *world) eachConn(label string, may func(*conn) bool, do func(*conn)) {
	var able []*conn
	for _, c := range w.conns {
		if may(c) {
			able = append(able, c)
		}
	}
	if len(able) > 0 {
		do(able[w.draw(label, len(able))])
	}
}

func (w *world) connect() {
	live := 0
	for _, c := range w.conns {
		if !c.senderGone {
			live++
		}
	}
	if live >= 2 {
		return
	}
	w.lastStream++
	c := &conn{id: w.lastStream, target: w.receiver, epoch: w.epoch, transfers: map[uint64]*outgoing{}, asleep: true}
	w.conns = append(w.conns, c)
	w.toReceiver(receiver.StreamOpened{Stream: c.id})
	c.put(&kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{
		Hello: &kvtransferv1.SenderHello{Sender: "prefill", Epoch: 1, Version: 2, LayoutDigest: layout}}})
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
	r := &reservation{blocks: free[:n], since: w.now, ticket: &kvtransferv1.Ticket{
		TransferId: id, Epoch: w.epoch, Secret: id * 3, LayoutDigest: layout,
		Blocks: uint32(n), HeldBlocks: uint32(held), Lease: durationpb.New(lease),
	}}
	w.reservations[id] = r
	for _, b := range r.blocks {
		w.owner[b] = id
	}
	w.toReceiver(receiver.Reserve{ID: id, Secret: id * 3, Blocks: r.blocks, Held: held})
}

// open takes a ticket to a stream; with faults also one that was used before, or
// one with a wrong secret.
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
	w.eachConn("open", func(c *conn) bool { return c.core != nil && !c.senderGone && c.target == w.receiver }, func(c *conn) {
		r := tickets[w.draw("ticket", len(tickets))]
		if c.transfers[r.ticket.GetTransferId()] != nil {
			return
		}
		ticket := r.ticket
		if faults && w.rarely() {
			ticket = &kvtransferv1.Ticket{TransferId: ticket.GetTransferId(), Epoch: ticket.GetEpoch(), Secret: 1,
				LayoutDigest: layout, Blocks: ticket.GetBlocks(), HeldBlocks: ticket.GetHeldBlocks()}
		}
		r.opened = true
		o := &outgoing{ticket: ticket, descending: w.draw("order", 2) == 0}
		for layer := range o.offered {
			o.offered[layer] = int(ticket.GetHeldBlocks())
		}
		c.transfers[ticket.GetTransferId()] = o
		w.toSender(c, sender.Open{Ticket: ticket, Lease: lease})
	})
}

// eachOutgoing draws a transfer of some sender that may.
func (w *world) eachOutgoing(label string, may func(*outgoing) bool, do func(*conn, uint64, *outgoing)) {
	type one struct {
		c  *conn
		id uint64
	}
	var able []one
	for _, c := range w.conns {
		for id := uint64(1); id <= w.lastID; id++ {
			if o := c.transfers[id]; o != nil && c.core != nil && may(o) {
				able = append(able, one{c, id})
			}
		}
	}
	if len(able) > 0 {
		x := able[w.draw(label, len(able))]
		do(x.c, x.id, x.c.transfers[x.id])
	}
}

func (w *world) offer() {
	w.eachOutgoing("offer", func(o *outgoing) bool { return o.accepted && !o.committing }, func(c *conn, id uint64, o *outgoing) {
		layer := w.draw("layer", layers)
		if rest := int(o.ticket.GetBlocks()) - o.offered[layer]; rest > 0 {
			w.offerSome(c, id, o, layer, 1+w.draw("count", rest))
		}
	})
}

func (w *world) offerSome(c *conn, id uint64, o *outgoing, layer, count int) {
	first := o.offered[layer]
	o.offered[layer] += count
	if o.descending {
		first = int(o.ticket.GetBlocks()+o.ticket.GetHeldBlocks()) - o.offered[layer]
	}
	w.toSender(c, sender.Offer{ID: id, Layer: layer, First: first, Blocks: make([]kvcache.BlockID, count)})
}

func (w *world) offerRest(c *conn, id uint64, o *outgoing) {
	for layer := range layers {
		if rest := int(o.ticket.GetBlocks()) - o.offered[layer]; rest > 0 {
			w.offerSome(c, id, o, layer, rest)
		}
	}
}

// commit offers what is left and commits; with faults it may forget the rest.
func (w *world) commit(faults bool) {
	w.eachOutgoing("commit", func(o *outgoing) bool { return o.accepted && !o.committing }, func(c *conn, id uint64, o *outgoing) {
		if !faults || !w.rarely() {
			w.offerRest(c, id, o)
		}
		o.committing = true
		w.toSender(c, sender.Commit{ID: id, Sampled: []int32{int32(id)}})
	})
}

func (w *world) abort() {
	w.eachOutgoing("abort", func(*outgoing) bool { return true }, func(c *conn, id uint64, o *outgoing) {
		o.aborted = true
		w.toSender(c, sender.Abort{ID: id, Reason: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED})
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
