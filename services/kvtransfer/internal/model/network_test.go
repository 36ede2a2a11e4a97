package model_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"strings"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/receiver"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

func (w *world) conn(id receiver.StreamID) *conn {
	for _, c := range w.conns {
		if c.id == id {
			return c
		}
	}
	w.t.Fatalf("no stream %d", id)
	return nil
}

func (w *world) toSender(c *conn, ev sender.Event) {
	for _, a := range c.core.Handle(w.now, ev) {
		switch a := a.(type) {
		case sender.Write:
			c.put(a.Message)
		case sender.WriteChunk:
			if c.reading != nil {
				w.t.Fatal("two chunks are read at once")
			}
			c.reading = &a
		case sender.Wake:
			c.asleep = false
		case sender.Accepted:
			o := c.transfers[a.ID]
			if o.accepted || o.ended {
				w.t.Fatalf("transfer %d: accepted after %+v", a.ID, o)
			}
			o.accepted = true
		case sender.Ended:
			o := c.transfers[a.ID]
			if o.ended || a.Result.End == 0 {
				w.t.Fatalf("transfer %d: ended with %+v after %+v", a.ID, a.Result, o)
			}
			if c.reading != nil && c.reading.ID == a.ID {
				w.t.Fatalf("transfer %d: ended while its pages are read", a.ID)
			}
			o.ended, o.result = true, a.Result
			w.checkEnd(c, a)
		case sender.CloseStream:
			if a.Err != nil && strings.Contains(a.Err.Error(), "protocol") {
				w.t.Fatalf("the sender takes a right receiver for a wrong one: %v", a.Err)
			}
			if w.healthy {
				w.t.Fatalf("the sender gives a healthy stream up: %v", a.Err)
			}
			c.senderGone = true
		}
	}
}

// checkEnd: the sender believes in a commit only if there was one.
func (w *world) checkEnd(c *conn, a sender.Ended) {
	if a.Result.End != sender.EndCommitted || c.target != w.receiver {
		return
	}
	if r := w.reservations[a.ID]; r == nil || !r.committed {
		w.t.Fatalf("transfer %d: the sender was told of a commit that was not", a.ID)
	}
}

func (c *conn) put(m *kvtransferv1.SenderMessage) {
	if !c.cut && !c.targetGone && !c.senderGone {
		c.up = append(c.up, m)
	}
}

// writerStep lets the sender's writer take one thing.
func (w *world) writerStep(c *conn) {
	before := len(c.up)
	c.asleep = true
	w.toSender(c, sender.WriterReady{})
	if len(c.up) > before || c.reading != nil {
		c.asleep = false
	}
}

// readPages ends the read of a chunk's pages, and sends it.
func (w *world) readPages(c *conn, fail bool) {
	a := c.reading
	c.reading = nil
	if o := c.transfers[a.ID]; o.ended {
		w.t.Fatalf("transfer %d: pages are read after its end", a.ID)
	}
	if fail {
		w.toSender(c, sender.PagesRead{ID: a.ID, Err: errors.New("unreadable")})
		return
	}
	m := &kvtransferv1.Chunk{TransferId: a.Chunk.TransferID, Sequence: a.Chunk.Sequence, Layer: a.Chunk.Layer}
	for _, run := range a.Chunk.Runs {
		m.Runs = append(m.Runs, &kvtransferv1.Run{FirstBlock: run.First, Blocks: run.Blocks})
		for i := range run.Blocks {
			m.Payload = binary.LittleEndian.AppendUint32(m.Payload, value(a.ID, int(a.Chunk.Layer), int(run.First+i)))
		}
	}
	if len(m.Payload) != a.Chunk.PayloadBytes || a.Chunk.PayloadBytes > maxChunkBytes {
		w.t.Fatalf("a chunk of %d bytes, announced %d", len(m.Payload), a.Chunk.PayloadBytes)
	}
	m.Crc32C = crc32.Checksum(m.Payload, crc32.MakeTable(crc32.Castagnoli))
	w.toSender(c, sender.PagesRead{ID: a.ID})
	c.put(&kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Chunk{Chunk: m}})
}

// deliverUp brings one message to the receiver, spoilt on the way or not.
func (w *world) deliverUp(c *conn, spoil bool) {
	m := c.up[0]
	c.up = c.up[1:]
	if chunk := m.GetChunk(); spoil && chunk != nil {
		chunk.Crc32C++
	}
	if chunk := m.GetChunk(); chunk != nil {
		w.arriving = chunk
		header := &wire.Chunk{TransferID: chunk.GetTransferId(), Sequence: chunk.GetSequence(), Layer: chunk.GetLayer(), PayloadBytes: len(chunk.GetPayload())}
		for _, r := range chunk.GetRuns() {
			header.Runs = append(header.Runs, wire.Run{First: r.GetFirstBlock(), Blocks: r.GetBlocks()})
		}
		w.toReceiver(receiver.Received{Stream: c.id, Chunk: header})
		return
	}
	w.toReceiver(receiver.Received{Stream: c.id, Message: m})
}

// deliverDown brings one message to the sender.
func (w *world) deliverDown(c *conn) {
	m := c.down[0]
	c.down = c.down[1:]
	if c.core != nil {
		w.toSender(c, sender.Received{Message: m})
		return
	}
	h := m.GetHello()
	if h == nil {
		w.t.Fatalf("the first message is %v", m)
	}
	if h.GetEpoch() != c.epoch || h.GetLayoutDigest() != layout {
		w.t.Fatalf("greeting %v", h)
	}
	c.core = sender.New(sender.Config{
		LayoutDigest: layout, Layers: layers, SliceBytes: sliceBytes,
		CreditBytes: int(h.GetCreditBytes()), MaxChunkBytes: int(h.GetMaxChunkBytes()),
		AnswerTimeout: answerTimeout, IdleTimeout: time.Hour,
	}, w.now)
}

// advance moves the clock, and ticks whom it concerns.
func (w *world) advance(by time.Duration) {
	w.now = w.now.Add(by)
	if at, ok := w.receiver.Next(); ok && !at.After(w.now) {
		w.toReceiver(receiver.Tick{})
	}
	for _, c := range w.conns {
		if c.core == nil || c.senderGone {
			continue
		}
		if at, ok := c.core.Next(); ok && !at.After(w.now) {
			w.toSender(c, sender.Tick{})
		}
	}
}

// loseSender tells the sender's end that the stream is over.
func (w *world) loseSender(c *conn) {
	c.senderGone, c.down = true, nil
	if c.core != nil {
		w.toSender(c, sender.StreamLost{Err: errors.New("cut")})
	}
}

// loseTarget tells the receiver's end that the stream is over. Copies may still
// be under way.
func (w *world) loseTarget(c *conn) {
	c.targetGone, c.up = true, nil
	w.toReceiver(receiver.StreamClosed{Stream: c.id})
}
