package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"

	"github.com/tandem-serving/tandem/integration/faultstest"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// patient are the waits of pairs in which nothing is lost but what a test loses.
var patient = pairTimes{lease: time.Second, answer: 10 * time.Second, connect: 3 * time.Second}

// eachPair runs a test over every transport, with one stream and with several, and
// with both kinds of pages.
func eachPair(t *testing.T, test func(t *testing.T, p *pair)) {
	for _, network := range faultstest.Transports() {
		for _, streams := range pairStreams {
			for _, pages := range pairPages {
				t.Run(fmt.Sprintf("%s, %d streams, %s pages", network, streams, pages.name), func(t *testing.T) {
					t.Parallel() // much of it is waiting for a lease
					test(t, newPair(t, network, streams, pages.make, patient))
				})
			}
		}
	}
}

// A receiver that was started anew in the middle of a transfer has nothing to do
// with what its last incarnation promised.
func TestReceiverRestartsDuringATransfer(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		old := p.reserve(p.receiver, 0, 0, 17)
		hold := p.proxy.Hold(faultstest.ToReceiver, "chunk", 3)
		ended := make(chan error, 1)
		go func() { ended <- old.send(p.sender) }()
		await(t, "the third chunk", hold.Held())
		unopened := p.reserve(p.receiver, 0, 16, 17)

		p.stopReceiver()
		if err := <-ended; !isBroken(err) {
			t.Errorf("the sender was told %v", err)
		}
		for _, d := range []*delivery{old, unopened} {
			await(t, "the old reservations' end", d.over)
			if committed, _, wrong := d.result(); committed || wrong != nil {
				t.Errorf("an old reservation was committed: %v", wrong)
			}
		}
		hold.Release()

		const epoch = 8
		receiver, _ := p.startReceiver(epoch)
		before := p.page(0)
		for _, d := range []*delivery{old, unopened} {
			if err := d.send(p.sender); refusal(err) != kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH {
				t.Errorf("the sender that holds a ticket of the old epoch was told %v", err)
			}
			// A sender that looks at nothing, and tells the new receiver of the old
			// epoch, or makes it up to be the new one.
			if got := p.rawOpen(d.ticket, d.ticket.GetEpoch()); got != kvtransferv1.RefuseReason_REFUSE_REASON_WRONG_EPOCH {
				t.Errorf("an open of the old epoch: %v", got)
			}
			if got := p.rawOpen(d.ticket, epoch); got != kvtransferv1.RefuseReason_REFUSE_REASON_UNKNOWN_TRANSFER {
				t.Errorf("an open of an old transfer in the new epoch: %v", got)
			}
		}
		if !bytes.Equal(before, p.page(0)) {
			t.Error("a block of the old incarnation was written")
		}
		p.delivers(receiver, p.sender)
	})
}

// A sender that was started anew, under its old name and while the receiver still
// has the old connection, is another sender: its transfers work, and those of the
// old one end at their lease, after which nothing of them lands.
func TestSenderRestartsDuringATransfer(t *testing.T) {
	eachPair(t, func(t *testing.T, p *pair) {
		old := p.reserve(p.receiver, 0, 0, 17)
		hold := p.proxy.Hold(faultstest.ToReceiver, "chunk", 3)
		ended := make(chan error, 1)
		go func() { ended <- old.send(p.sender) }()
		await(t, "the third chunk", hold.Held())
		p.proxy.Silence() // the receiver is not told that the old sender is gone

		restarted := p.newSender("prefill-0", 10, false)
		defer p.closeSender(restarted)
		direct := p.around()
		stolen := proto.CloneOf(old.ticket)
		stolen.Addresses = []string{direct}
		if _, err := restarted.Open(t.Context(), stolen, "a request"); refusal(err) != kvtransferv1.RefuseReason_REFUSE_REASON_ALREADY_OPEN {
			select {
			case <-old.over: // a machine that is so busy that the lease ran out
			default:
				t.Errorf("the ticket of the old sender's transfer, used again: %v", err)
			}
		}
		for i := range 3 {
			d := p.reserve(p.receiver, 8*i, 16+8*i, int32(i))
			d.ticket.Addresses = []string{direct}
			if err := d.send(restarted); err != nil {
				t.Errorf("transfer %d of the sender that was started anew: %v", i, err)
			}
			await(t, "the end of a transfer", d.over)
			if committed, failed, wrong := d.result(); !committed || wrong != nil {
				t.Errorf("transfer %d of the sender that was started anew: %v, %v", i, failed, wrong)
			}
		}
		began := time.Now()
		await(t, "the end of the old sender's transfer", old.over)
		t.Logf("the old sender's blocks were back %v later, with a lease of %v", time.Since(began).Round(time.Millisecond), p.times.lease)
		// Over shared pages the receiver may hear first that the old sender gave up and unmapped
		// them.
		gaveUp := func(err error) bool { return p.network == "shm" && isBroken(err) }
		if committed, failed, _ := old.result(); committed || failure(failed) != kvtransferv1.FailReason_FAIL_REASON_EXPIRED && !gaveUp(failed) {
			t.Errorf("the old sender's transfer ended with %v", failed)
		}
		// The blocks are another's now. What the old sender has on its way must not
		// land in them.
		next := p.reserve(p.receiver, 24, 0, 5)
		next.ticket.Addresses = []string{direct}
		if err := next.send(restarted); err != nil {
			t.Errorf("the next transfer into the blocks: %v", err)
		}
		hold.Release()
		p.proxy.Speak()
		if err := <-ended; err == nil {
			t.Error("the old sender was told that its transfer was committed")
		}
		await(t, "the next transfer", next.over)
		if err := next.compare(next.sampled); err != nil {
			t.Errorf("after the old sender spoke again: %v", err)
		}
	})
}

// page is what the receiver's pages hold in a block.
func (p *pair) page(block kvcache.BlockID) []byte { return p.to.Page(block) }

// around is an address of the receiver that leads past the proxy.
func (p *pair) around() string {
	return faultstest.NewProxy(p.t, p.network, p.proxy.Target()).Address()
}

// delivers checks that the next transfer works.
func (p *pair) delivers(receiver *kvtransfer.Receiver, sender *kvtransfer.Sender) {
	p.t.Helper()
	d := p.reserve(receiver, 40, 40, 23)
	if err := d.send(sender); err != nil {
		p.t.Errorf("the next transfer: %v", err)
	}
	await(p.t, "the next transfer", d.over)
	if committed, failed, wrong := d.result(); !committed || wrong != nil {
		p.t.Errorf("the next transfer: committed %v, failed with %v: %v", committed, failed, wrong)
	}
}

// rawOpen opens a transfer as a sender would that looks at nothing, and gives the
// reason why it is refused.
func (p *pair) rawOpen(ticket *kvtransferv1.Ticket, epoch uint64) kvtransferv1.RefuseReason {
	p.t.Helper()
	conn, err := rpc.Dial(p.proxy.Address(), rpc.ClientConfig{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(p.t.Context(), timeout)
	defer cancel()
	stream, err := kvtransferv1.NewKVTransferClient(conn).Stream(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, m := range []*kvtransferv1.SenderMessage{
		{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
			Sender: "raw", Epoch: 1, Version: 2, LayoutDigest: ticket.GetLayoutDigest(), Session: rand.Uint64(), Stripes: 1}}},
		{Message: &kvtransferv1.SenderMessage_Open{Open: &kvtransferv1.Open{
			TransferId: ticket.GetTransferId(), Epoch: epoch, Secret: ticket.GetSecret(), LayoutDigest: ticket.GetLayoutDigest()}}},
	} {
		if err := stream.Send(m); err != nil {
			p.t.Fatal(err)
		}
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			p.t.Fatalf("open of epoch %d: %v", epoch, err)
		}
		if m.GetHello() == nil {
			return m.GetRefuse().GetReason()
		}
	}
}

func refusal(err error) kvtransferv1.RefuseReason {
	if refused, is := errors.AsType[*kvtransfer.RefusedError](err); is {
		return refused.Reason
	}
	return kvtransferv1.RefuseReason_REFUSE_REASON_UNSPECIFIED
}

func failure(err error) kvtransferv1.FailReason {
	if failed, is := errors.AsType[*kvtransfer.FailedError](err); is {
		return failed.Reason
	}
	return kvtransferv1.FailReason_FAIL_REASON_UNSPECIFIED
}

func isBroken(err error) bool {
	_, is := errors.AsType[*kvtransfer.BrokenError](err)
	return is
}
