package sender_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	turnLayers   = 16
	turnMaxChunk = 16 * sliceBytes
)

// busy returns a core with accepted transfers and all their slices offered; transfer i has
// blocks[i] blocks.
func busy(stripes int, blocks ...int) *sender.Core {
	return busyWith(stripes, 1<<40, turnMaxChunk, blocks...)
}

func busyWith(stripes, creditBytes, maxChunkBytes int, blocks ...int) *sender.Core {
	cfg := sender.Config{
		LayoutDigest: 9, Layers: turnLayers, SliceBytes: sliceBytes, MaxChunkBytes: maxChunkBytes,
		AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
	}
	for range stripes {
		cfg.CreditBytes = append(cfg.CreditBytes, creditBytes)
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

// take gives a stripe's writer a chunk; ok is false if there is none.
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

// A transfer of one block waits for at most two chunks' worth of bytes, plus as much for
// each of its own chunks, however many long ones there are.
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

// Any transfer with something to send is served within two chunks' bytes of each other one.
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

// onTheWay sends on all stripes until none may, and returns the bytes in flight per stripe
// and the largest chunk.
func onTheWay(c *sender.Core, stripes int) (bytes []int, largest int) {
	bytes = make([]int, stripes)
	for i := range stripes {
		for {
			_, n, ok := take(c, i)
			if !ok {
				break
			}
			bytes[i] += n
			largest = max(largest, n)
		}
	}
	return bytes, largest
}

// With several transfers, all stripes together have at most one stripe's credit in flight,
// in chunks reduced alike. A single transfer uses all the credit.
func TestStripesShareWhatIsOnItsWay(t *testing.T) {
	const credit, maxChunk = 1 << 10, 256
	for _, test := range []struct{ stripes, transfers, each, chunk int }{
		{1, 2, credit, maxChunk / 4},
		{2, 2, credit / 2, maxChunk / 4 / 2},
		{4, 2, credit / 4, maxChunk / 4 / 4},
		{4, 1, credit, maxChunk},
	} {
		c := busyWith(test.stripes, credit, maxChunk, []int{1000, 1000}[:test.transfers]...)
		bytes, largest := onTheWay(c, test.stripes)
		for i, n := range bytes {
			if n != test.each || largest != test.chunk {
				t.Errorf("%d transfers: stripe %d of %d has %d bytes on its way, want %d, in chunks of up to %d, want %d",
					test.transfers, i, test.stripes, n, test.each, largest, test.chunk)
			}
		}
	}
}

// A stripe whose share is below a slice sends slices one by one.
func TestAShareThatIsLessThanASlice(t *testing.T) {
	c := busyWith(8, 2*sliceBytes, 2*sliceBytes, 1000, 1000)
	for range 5 {
		bytes, _ := onTheWay(c, 8)
		for i, n := range bytes {
			if n != sliceBytes {
				t.Fatalf("stripe %d has %d bytes on its way, a slice has %d", i, n, sliceBytes)
			}
			handle(c, start, sender.Received{Stripe: i, Message: grant(uint64(n))})
		}
	}
}

// When contention ends while a stripe waits for credit, the wait ends without breaking the
// session.
func TestAWaitForCreditEndsWithTheCrowd(t *testing.T) {
	c := busyWith(2, 64, 32, 1000, 4)
	onTheWay(c, 2)
	handle(c, start, sender.Abort{ID: 2})
	at := start.Add(lease - time.Second)
	for i := range 2 {
		for len(handle(c, at, sender.WriterReady{Stripe: i})) > 0 {
		}
		handle(c, at, sender.Received{Stripe: i, Message: grant(4)})
	}
	handle(c, at, sender.Received{Message: drained(2)})
	handle(c, start.Add(lease), sender.Tick{})
	if c.Lost() {
		t.Error("the session has ended")
	}
}

// A receiver has its timeout for each chunk's worth of grants, however much credit must
// return before the next chunk may go. When a second transfer begins, that is most of the
// credit.
func TestASlowReceiverIsNotLostToASecondTransfer(t *testing.T) {
	const stripes, chunk = 4, 256 / 4 / 4
	for _, test := range []struct {
		each uint64 // grants per stripe in a tenth of the timeout
		lost bool
	}{{chunk, false}, {chunk / 8, false}, {chunk / 16, true}} {
		c := busyWith(stripes, 1<<10, 256, 1000)
		onTheWay(c, stripes)
		handle(c, start, sender.Open{Ticket: &kvtransferv1.Ticket{TransferId: 2, Blocks: 1000}, Lease: lease})
		for i := range stripes {
			handle(c, start, sender.WriterReady{Stripe: i})
		}
		handle(c, start, sender.Received{Message: accept(2)})
		handle(c, start, sender.Offer{ID: 2, Blocks: make([]kvcache.BlockID, 1000)})
		for tenths := time.Duration(1); tenths <= 25 && !c.Lost(); tenths++ {
			at := start.Add(tenths * lease / 10)
			for i := range stripes {
				handle(c, at, sender.Received{Stripe: i, Message: grant(test.each)})
				for len(handle(c, at, sender.WriterReady{Stripe: i})) > 0 { // Renew
				}
			}
			handle(c, at, sender.Tick{})
		}
		if c.Lost() != test.lost {
			t.Errorf("%d bytes granted in each tenth: lost %v", test.each, c.Lost())
		}
	}
}

// What is written into the receiver's pages comes in chunks that halve towards the end of a
// layer, if nothing follows it: the receiver verifies the last one alone.
func TestWrittenChunksHalve(t *testing.T) {
	const slice, maxChunk = 32 << 10, 1<<20 - 4<<10
	for _, test := range []struct {
		name     string
		encoding kvtransferv1.Encoding
		layers   int
		blocks   int
		want     []int // slices of each chunk
	}{
		{"a layer", kvtransferv1.Encoding_ENCODING_SHARED, 1, 64, []int{31, 16, 8, 9}},
		{"a small one", kvtransferv1.Encoding_ENCODING_SHARED, 1, 11, []int{11}},
		{"one that is larger than two of the last", kvtransferv1.Encoding_ENCODING_SHARED, 1, 18, []int{9, 9}},
		{"two layers", kvtransferv1.Encoding_ENCODING_SHARED, 2, 31, []int{31, 15, 8, 8}},
		{"sent in messages", kvtransferv1.Encoding_ENCODING_NATIVE, 1, 64, []int{31, 31, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := sender.New(sender.Config{
				LayoutDigest: 9, Layers: test.layers, SliceBytes: slice, MaxChunkBytes: maxChunk, CreditBytes: []int{4 << 20},
				AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
			}, start)
			c.Handle(start, sender.Open{Ticket: &kvtransferv1.Ticket{TransferId: 1, Blocks: uint32(test.blocks)}, Lease: lease, Encoding: test.encoding})
			c.Handle(start, sender.WriterReady{})
			accepted := &kvtransferv1.Accept{TransferId: 1}
			if test.encoding == kvtransferv1.Encoding_ENCODING_SHARED {
				accepted.Pages = make([]uint32, test.blocks)
				accepted.Crc32C = wire.AcceptChecksum(accepted)
			}
			c.Handle(start, sender.Received{Message: &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Accept{Accept: accepted}}})
			for layer := range test.layers {
				c.Handle(start, sender.Offer{ID: 1, Layer: layer, Blocks: make([]kvcache.BlockID, test.blocks)})
			}
			var got []int
			for {
				_, bytes, ok := take(c, 0)
				if !ok {
					break
				}
				got = append(got, bytes/slice)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("chunks of %d slices, want %d", got, test.want)
			}
		})
	}
}
