package sender_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
)

const (
	turnLayers   = 16
	turnMaxChunk = 16 * sliceBytes
)

// busy is a core whose transfers were accepted and have all of their slices to
// send: ticket i of them has blocks[i] blocks.
func busy(stripes int, blocks ...int) *sender.Core {
	cfg := sender.Config{
		LayoutDigest: 9, Layers: turnLayers, SliceBytes: sliceBytes, MaxChunkBytes: turnMaxChunk,
		AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
	}
	for range stripes {
		cfg.CreditBytes = append(cfg.CreditBytes, 1<<40)
	}
	c := sender.New(cfg, start)
	for i, n := range blocks {
		id := uint64(i + 1)
		c.Handle(start, sender.Open{Ticket: &kvtransferv1.Ticket{TransferId: id, Blocks: uint32(n)}, Lease: lease})
		c.Handle(start, sender.WriterReady{})
		c.Handle(start, sender.Received{Message: accept(id)})
		for layer := range turnLayers {
			c.Handle(start, sender.Offer{ID: id, Layer: layer, Blocks: make([]kvcache.BlockID, n)})
		}
	}
	return c
}

// take lets a stripe's writer take a chunk; false: there is none.
func take(c *sender.Core, stripe int) (id uint64, bytes int, ok bool) {
	for _, a := range c.Handle(start, sender.WriterReady{Stripe: stripe}) {
		if w, is := a.(*sender.WriteChunk); is {
			id, bytes = w.ID, w.Chunk.PayloadBytes
			c.Handle(start, sender.PagesRead{Chunk: w})
			return id, bytes, true
		}
	}
	return 0, 0, false
}

// A transfer of one block has two chunks' worth of bytes before it, and as much again
// for each chunk's worth of its own, however many long ones there are.
func TestShortTransfersDoNotWait(t *testing.T) {
	for _, stripes := range []int{1, 3} {
		blocks := make([]int, 101)
		for i := range 100 {
			blocks[i] = 200
		}
		blocks[100] = 1
		c := busy(stripes, blocks...)
		before, own := 0, 0
		for i := 0; own < turnLayers*sliceBytes; i++ {
			id, bytes, ok := take(c, i%stripes)
			if !ok {
				t.Fatal("nothing is sent")
			}
			if id == 101 {
				own += bytes
			} else {
				before += bytes
			}
		}
		if before > 2*turnMaxChunk {
			t.Errorf("%d bytes of long transfers go before the last of a short one, two chunks are %d", before, 2*turnMaxChunk)
		}
	}
}

// Whatever its size, a transfer that has something to send is served within the
// bytes of two chunks for each of the others.
func TestNoTransferStarves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.SliceOfN(rapid.IntRange(1, 40), 1, 12).Draw(t, "blocks")
		stripes := rapid.IntRange(1, 3).Draw(t, "stripes")
		c := busy(stripes, blocks...)
		left, waited := make([]int, len(blocks)), make([]int, len(blocks))
		for i, n := range blocks {
			left[i] = n * turnLayers * sliceBytes
		}
		for i := 0; ; i++ {
			id, bytes, ok := take(c, i%stripes)
			if !ok {
				break
			}
			left[id-1] -= bytes
			for j := range waited {
				waited[j] += bytes
				if j == int(id-1) || left[j] == 0 {
					waited[j] = 0
				}
				if limit := (2*len(blocks) + 1) * turnMaxChunk; waited[j] > limit {
					t.Fatalf("transfer %d of %d has waited for %d bytes, more than %d", j+1, len(blocks), waited[j], limit)
				}
			}
		}
		for i, n := range left {
			if n != 0 {
				t.Fatalf("%d bytes of transfer %d were not sent", n, i+1)
			}
		}
	})
}
