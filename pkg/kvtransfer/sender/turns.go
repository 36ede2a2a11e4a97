package sender

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// next emits the next thing for a stripe's writer, if any: other messages first, then a
// chunk if the stripe's credit allows.
func (c *Core) next(of int) {
	s := &c.stripes[of]
	c.deadlines.Clear(timer{what: writerTimer, stripe: of})
	if c.gone {
		return
	}
	s.asleep = false
	action := c.nextNote(of)
	if action == nil {
		action = c.nextChunk(of)
	}
	if action == nil {
		s.asleep = true
		return
	}
	c.deadlines.Set(timer{what: writerTimer, stripe: of}, c.now.Add(c.patience))
	c.emit(action)
}

// wake wakes the writers that have something to send: messages of their own, or the next
// chunk, one writer per chunk.
func (c *Core) wake() {
	called, need := false, 0 // need: computed on demand
	for i := range c.stripes {
		s := &c.stripes[i]
		if !s.asleep {
			continue
		}
		due := len(s.control) > 0
		if !due && len(c.ring) > 0 {
			if need == 0 {
				need = c.need()
			}
			if c.sendable(i) < need {
				c.awaitCredit(i)
			} else if !called {
				due, called = true, true
			}
		}
		if due {
			s.asleep = false
			c.emit(s.wake)
		}
	}
}

// awaitCredit starts the receiver's time to grant credit for the next chunk, unless it is
// running. The receiver can: everything in flight will be granted again, at least a chunk.
// If more must come back, because the stripe has begun to share, the time is per chunk's
// worth.
func (c *Core) awaitCredit(of int) {
	if t := (timer{what: creditTimer, stripe: of}); !c.deadlines.Has(t) {
		c.deadlines.Set(t, c.now.Add(c.patience))
		c.stripes[of].granted = 0
	}
}

// pick returns the ring index of the next transfer: alternately the one with the fewest
// slices left, so that short transfers do not wait behind long ones, and the one that has
// waited longest, so that none starves. Each policy gets half of the bytes.
func (c *Core) pick() int {
	if c.favour <= 0 {
		return 0
	}
	shortest := 0
	for i, t := range c.ring {
		if t.unsent < c.ring[shortest].unsent {
			shortest = i
		}
	}
	return shortest
}

// need is the payload size of the next chunk.
func (c *Core) need() int { return c.size(c.ring[c.pick()]) }

func (c *Core) size(t *transfer) int { return min(c.limit(t), t.backlog.next()) * t.sliceBytes }

// chunkShare divides the maximum chunk size among the stripes while several transfers have
// something to send: a short one waits for the chunk in progress on every stripe.
const chunkShare = 4

// lastWrittenBytes is about how much the last chunk written into the receiver's pages has. The
// receiver verifies a chunk while the next is written, and the last alone. Each chunk before it
// has half of what is left: many small ones take longer to announce than to verify.
const lastWrittenBytes = 256 << 10

func (c *Core) contended() bool { return len(c.ring) > 1 }

// limit is the maximum number of slices in a chunk.
func (c *Core) limit(t *transfer) int {
	most := c.cfg.MaxChunkBytes
	if c.contended() {
		most = min(most, c.cfg.MaxChunkBytes/chunkShare/len(c.stripes))
	}
	slices := max(most/t.sliceBytes, 1)
	if t.encoding == kvtransferv1.Encoding_ENCODING_SHARED && t.backlog.inOneLayer() {
		left, last := t.backlog.next(), max(lastWrittenBytes/t.sliceBytes, 1)
		if left >= last+(last+1)/2 {
			slices = min(slices, max(left/2, last))
		}
	}
	return slices
}

// sendable is the payload that a stripe may send now. While several transfers have
// something to send, all stripes together have no more in flight than one stripe's credit,
// since it delays whatever comes next. One stripe's full credit is used, since with less
// the two sides wait for each other. With nothing in flight a chunk of any size may go.
func (c *Core) sendable(of int) int {
	s := &c.stripes[of]
	if !c.contended() || s.credit == s.most {
		return s.credit
	}
	return s.credit - (s.most - s.most/len(c.stripes))
}

func (c *Core) nextChunk(of int) Action {
	if len(c.ring) == 0 {
		return nil
	}
	i := c.pick()
	t := c.ring[i]
	if c.sendable(of) < c.size(t) {
		c.awaitCredit(of)
		return nil
	}
	w := c.chunk(t, of)
	if c.favour > 0 {
		c.favour -= w.Chunk.PayloadBytes
		if t.backlog.empty() {
			c.leave(t)
		}
	} else {
		c.favour += w.Chunk.PayloadBytes
		c.leave(t)
		c.enqueue(t)
	}
	c.commitIfDone(t)
	return w
}

// chunk takes the next chunk of a transfer.
func (c *Core) chunk(t *transfer, of int) *WriteChunk {
	var w *WriteChunk
	if last := len(c.chunks) - 1; last >= 0 {
		w, c.chunks = c.chunks[last], c.chunks[:last]
	} else {
		w = new(WriteChunk)
	}
	layer, runs, blocks := t.backlog.take(&c.segments, c.limit(t), w.Chunk.Runs[:0], w.Blocks[:0])
	l := &t.lanes[of]
	w.ID, w.Stripe, w.Blocks, w.Encoding, w.of = t.id(), of, blocks, t.encoding, t
	w.Chunk = wire.Chunk{
		TransferID: t.id(), Sequence: l.sequence, Layer: uint32(layer), Runs: runs, PayloadBytes: len(blocks) * t.sliceBytes,
	}
	l.sequence++
	c.deadlines.Clear(timer{what: creditTimer, stripe: of})
	t.reading++
	t.unsent -= len(blocks)
	c.pace.Bytes += int64(len(blocks) * c.cfg.SliceBytes)
	c.stripes[of].credit -= w.Chunk.PayloadBytes
	c.keep(t)
	return w
}

// enqueue adds a transfer to the end of the ring.
func (c *Core) enqueue(t *transfer) {
	if !t.inRing && !t.backlog.empty() {
		t.inRing = true
		c.ring = append(c.ring, t)
	}
}

// leave removes a transfer from the ring.
func (c *Core) leave(t *transfer) {
	if i := slices.Index(c.ring, t); i >= 0 {
		c.ring = slices.Delete(c.ring, i, i+1)
	}
	t.inRing = false
}
