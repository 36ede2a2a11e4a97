package sender_test

import (
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// The steps of every chunk do not allocate in the long run: offer, turn, end of reading and
// grant.
func TestChunksAllocateNothing(t *testing.T) {
	const layers, blocks = 2000, 4
	c := sender.New(sender.Config{
		LayoutDigest: 9, Layers: layers, SliceBytes: sliceBytes, CreditBytes: []int{64, 64}, MaxChunkBytes: 16,
		AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
	}, start)
	c.Handle(start, sender.Open{Ticket: &kvtransferv1.Ticket{TransferId: 1, Blocks: blocks}, Lease: lease})
	c.Handle(start, sender.WriterReady{})
	c.Handle(start, sender.Received{Message: accept(1)})
	pages := make([]kvcache.BlockID, blocks)
	granted := sender.Received{Stripe: 1, Message: grant(16)}
	layer := 0
	one := func() {
		c.HandleOffer(start, sender.Offer{ID: 1, Layer: layer, Blocks: pages})
		layer++
		for _, a := range c.HandleWriterReady(start, sender.WriterReady{Stripe: 1}) {
			if w, ok := a.(*sender.WriteChunk); ok {
				c.HandlePagesRead(start, sender.PagesRead{Chunk: w})
			}
		}
		c.HandleReceived(start, granted)
	}
	one()
	if n := testing.AllocsPerRun(layers/2, one); n != 0 {
		t.Errorf("%v allocations a chunk", n)
	}
	if c.Credit(1) != 64 || layer < layers/2 {
		t.Errorf("credit is %d after %d layers", c.Credit(1), layer)
	}
}
