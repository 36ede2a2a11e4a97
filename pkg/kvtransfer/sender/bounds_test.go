package sender_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// A receiver that grants too little for a chunk times out like one that grants nothing.
func TestGrantsThatAreOfNoUse(t *testing.T) {
	for _, bytes := range []uint64{0, 1} {
		c := opened(t, 1)
		for layer := range 3 {
			offer(c, 1, layer, 2, 18)
		}
		if sent := chunks(write(c)); len(sent) != 4 {
			t.Fatalf("%d chunks in the credit of four", len(sent))
		}
		for at := start.Add(time.Second); !c.Lost() && at.Before(start.Add(lease)); at = at.Add(time.Second) {
			handle(c, at, sender.Received{Message: grant(bytes)})
			for len(handle(c, at, sender.WriterReady{})) > 0 { // Renew
			}
			handle(c, at, sender.Tick{})
		}
		handle(c, start.Add(lease), sender.Tick{})
		if !c.Lost() {
			t.Errorf("the session outlives grants of %d bytes", bytes)
		}
	}
}

// A chunk never exceeds the receiver's limit of runs.
func TestRunsAreBounded(t *testing.T) {
	const blocks, most = 1<<17 + 2, 1 << 16
	c := sender.New(sender.Config{
		LayoutDigest: 9, Layers: 1, SliceBytes: sliceBytes, CreditBytes: []int{1 << 30}, MaxChunkBytes: 1 << 30,
		AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
	}, start)
	c.Handle(start, sender.Open{Ticket: &kvtransferv1.Ticket{TransferId: 1, Blocks: blocks}, Lease: lease})
	c.Handle(start, sender.WriterReady{})
	c.Handle(start, sender.Received{Message: accept(1)})
	for first := 0; first < blocks; first += 2 {
		c.Handle(start, sender.Offer{ID: 1, First: first, Blocks: make([]kvcache.BlockID, 1)})
	}
	sent := 0
	for _, w := range chunks(write(c)) {
		if len(w.Chunk.Runs) > most {
			t.Errorf("a chunk has %d runs", len(w.Chunk.Runs))
		}
		sent += len(w.Blocks)
	}
	if sent != blocks/2 {
		t.Errorf("%d blocks of %d are sent", sent, blocks/2)
	}
}

// The receiver may keep this side waiting at most for the answer timeout and at most for a
// lease, so that blocks are returned by then.
func TestAnswersAreAwaitedForALeaseAtMost(t *testing.T) {
	for _, await := range []struct {
		name string
		make func(*sender.Core)
	}{
		{"accept", func(*sender.Core) {}},
		{"a grant", func(c *sender.Core) {
			handle(c, start, sender.Received{Message: accept(1)})
			for layer := range 3 {
				offer(c, 1, layer, 2, 18)
			}
			write(c)
		}},
		{"the stream's taking a chunk", func(c *sender.Core) {
			handle(c, start, sender.Received{Message: accept(1)})
			offer(c, 1, 0, 2, 1)
			for _, w := range chunks(handle(c, start, sender.WriterReady{})) {
				handle(c, start, sender.PagesRead{Chunk: w})
			}
		}},
		{"committed", func(c *sender.Core) {
			handle(c, start, sender.Received{Message: accept(1)})
			handle(c, start, sender.Commit{ID: 1})
			write(c)
		}},
		{"drained", func(c *sender.Core) {
			handle(c, start, sender.Abort{ID: 1})
			write(c)
		}},
	} {
		for _, test := range []struct{ lease, want time.Duration }{
			{3 * time.Second, 3 * time.Second},
			{time.Minute, answerTimeout},
		} {
			t.Run(await.name+", a lease of "+test.lease.String(), func(t *testing.T) {
				c := newCore()
				handle(c, start, sender.Open{Ticket: ticket(1), Lease: test.lease})
				write(c)
				await.make(c)
				handle(c, start.Add(test.want-1), sender.Tick{})
				if c.Lost() {
					t.Errorf("given up before %v", test.want)
				}
				handle(c, start.Add(test.want), sender.Tick{})
				if !c.Lost() {
					t.Errorf("waited for longer than %v", test.want)
				}
			})
		}
	}
}

// The short lease of an ended transfer does not shorten later waits.
func TestPatienceComesBack(t *testing.T) {
	c := newCore()
	handle(c, start, sender.Open{Ticket: ticket(1), Lease: time.Second})
	write(c)
	handle(c, start, sender.Received{Message: &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Refuse{
		Refuse: &kvtransferv1.Refuse{TransferId: 1}}}})
	handle(c, start, sender.Open{Ticket: ticket(2), Lease: lease})
	write(c)
	handle(c, start.Add(lease-1), sender.Tick{})
	if c.Lost() {
		t.Error("the next transfer's answer was awaited for less than its lease")
	}
}
