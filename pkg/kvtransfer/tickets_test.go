package kvtransfer_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// A ticket is of use to the sender that it names alone, once, and for its own transfer. None of
// the tries writes a byte, and none spoils the ticket for whom it is.
func TestForgedAndReplayedTickets(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		t.Run(network, func(t *testing.T) {
			g := newSocketRig(t, network, 1, hostPages(t))
			reserve := func(sender string, first int) (*kvtransferv1.Ticket, *outcome) {
				o := &outcome{t: t, over: make(chan struct{})}
				r := o.reservation(kvcache.BlockRange(first, 2), 0, 2)
				r.Sender = sender
				ticket, err := g.receiver.Reserve(r)
				if err != nil {
					t.Fatal(err)
				}
				return ticket, o
			}
			mine, o := reserve("prefill-0", 0)
			others, waiting := reserve("prefill-1", 2)
			forged := func(change func(*kvtransferv1.Ticket)) *kvtransferv1.Ticket {
				ticket := proto.CloneOf(mine)
				change(ticket)
				return ticket
			}
			for _, c := range []struct {
				name   string
				ticket *kvtransferv1.Ticket
				reason kvtransferv1.RefuseReason
			}{
				{"a guessed secret", forged(func(k *kvtransferv1.Ticket) { k.Secret++ }), kvtransferv1.RefuseReason_REFUSE_REASON_BAD_SECRET},
				{"a guessed transfer", forged(func(k *kvtransferv1.Ticket) { k.TransferId++ }), kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER},
				{"one's own secret for another transfer", forged(func(k *kvtransferv1.Ticket) { k.TransferId = others.GetTransferId() }), kvtransferv1.RefuseReason_REFUSE_REASON_BAD_SECRET},
				{"another start of the receiver", forged(func(k *kvtransferv1.Ticket) { k.Epoch++ }), kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH},
				{"a ticket of another sender", others, kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_SENDER},
				{"the same without a name in it", func() *kvtransferv1.Ticket {
					ticket := proto.CloneOf(others)
					ticket.Sender = ""
					return ticket
				}(), kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_SENDER},
				{"the same with one's own name in it", func() *kvtransferv1.Ticket {
					ticket := proto.CloneOf(others)
					ticket.Sender = "prefill-0"
					return ticket
				}(), kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_SENDER},
			} {
				if _, err := g.sender.Open(t.Context(), c.ticket, "r"); refuseReason(err) != c.reason {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			g.checkEmpty(kvcache.BlockRange(0, 4))

			tr := g.open(mine)
			if _, err := g.sender.Open(t.Context(), forged(func(k *kvtransferv1.Ticket) {}), "r"); err == nil {
				t.Error("a ticket is used twice at a time")
			}
			sendAll(tr, kvcache.BlockRange(8, 2), 0, 2)
			tr.Commit(nil)
			wait(t, "committed", o.over)
			wait(t, "done", tr.Done())
			if !o.committed {
				t.Fatalf("the right sender's transfer ended with %v", o.err)
			}
			if _, err := g.sender.Open(t.Context(), mine, "r"); refuseReason(err) != kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER {
				t.Errorf("a replayed ticket: %v", err)
			}
			g.receiver.Cancel(others.GetTransferId())
			wait(t, "drained", waiting.over)
		})
	}
}

// One holder's reservations have no more blocks than their share, whoever else has room; one
// reservation is always allowed, and what ends makes room.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, func(c *rigConfig) { c.receiver.HolderBlocks = 4 })
		reserve := func(first, blocks int, holders ...string) (*kvtransferv1.Ticket, *outcome, error) {
			o := &outcome{t: t, over: make(chan struct{})}
			r := o.reservation(kvcache.BlockRange(first, blocks), 0, 1)
			r.Holders = holders
			ticket, err := g.receiver.Reserve(r)
			return ticket, o, err
		}
		full := func(err error, holder string) bool {
			share, is := errors.AsType[*kvtransfer.ShareError](err)
			return is && share.Holder == holder && strings.Contains(err.Error(), holder)
		}
		first, o, err := reserve(0, 3, "router a", "tenant x")
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := reserve(3, 2, "router b", "tenant x"); !full(err, "tenant x") {
			t.Errorf("a tenant over its share: %v", err)
		}
		if _, _, err := reserve(3, 2, "router a", "tenant y"); !full(err, "router a") {
			t.Errorf("a router over its share: %v", err)
		}
		large, _, err := reserve(3, 9, "router b", "tenant y")
		if err != nil {
			t.Errorf("a reservation larger than the share, the only one of its holders: %v", err)
		}
		g.receiver.Cancel(first.GetTransferId())
		wait(t, "drained", o.over)
		again, _, err := reserve(0, 3, "router a", "tenant x")
		if err != nil {
			t.Errorf("after the first has ended: %v", err)
		}
		for _, ticket := range []*kvtransferv1.Ticket{large, again} {
			g.receiver.Cancel(ticket.GetTransferId())
		}
	})
}
