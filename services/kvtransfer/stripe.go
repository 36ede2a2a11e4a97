package kvtransfer

import (
	"errors"
	"io"
	"time"

	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/sender"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
)

// read takes the receiver's answers from one stripe until it ends.
func (c *connection) read(stream kvtransferv1.KVTransfer_StreamClient, stripe int) {
	defer c.cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			c.handle(sender.StreamLost{Err: err})
			return
		}
		c.handle(sender.Received{Stripe: stripe, Message: m})
	}
}

// write puts on one stripe what the core has for it, one thing after another.
func (c *connection) write(stream kvtransferv1.KVTransfer_StreamClient, stripe int) {
	codec := wire.Codec()
	encoded := new(parcel)
	for {
		var message any
		switch a := c.next(stripe).(type) {
		case sender.Write:
			message = a.Message
		case *sender.WriteChunk:
			// What cannot be read must not end the stream, as it would inside of SendMsg.
			data, err := codec.Marshal(c.ship(a))
			if err != nil {
				continue // the core knows
			}
			encoded.data, message = data, encoded
		default:
			select {
			case <-c.stripes[stripe]:
			case <-c.ctx.Done():
				return
			}
			continue
		}
		err := stream.SendMsg(message)
		encoded.free()
		if err != nil {
			if !errors.Is(err, io.EOF) { // else the reader gets to know why
				c.handle(sender.StreamLost{Err: err})
				c.cancel()
			}
			return
		}
	}
}

// next asks the core what a stripe's writer has to write.
func (c *connection) next(stripe int) sender.Action {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apply(c.core.HandleWriterReady(time.Now(), sender.WriterReady{Stripe: stripe}))
}

// shipment is a chunk as the codec takes it. It is used again once its pages were
// read.
type shipment struct {
	wire.Outbound
	conn  *connection
	chunk *sender.WriteChunk
}

// ship makes of a chunk what the codec takes.
func (c *connection) ship(w *sender.WriteChunk) *wire.Outbound {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s *shipment
	if last := len(c.idle) - 1; last >= 0 {
		s, c.idle = c.idle[last], c.idle[:last]
	} else {
		s = &shipment{conn: c}
		s.Pages, s.Released = c.sender.pages, s.released
	}
	s.chunk = w
	s.Chunk, s.Blocks, s.Coding = w.Chunk, w.Blocks, c.sender.codings.of(w.Encoding)
	return &s.Outbound
}

// released tells the core that the chunk's pages are not read any more.
func (s *shipment) released(err error) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.transfers[s.chunk.ID]; t != nil && err == nil {
		t.stats.Chunks++
		t.stats.Bytes += uint64(s.chunk.Chunk.PayloadBytes)
	}
	c.apply(c.core.HandlePagesRead(time.Now(), sender.PagesRead{Chunk: s.chunk, Err: err}))
	s.chunk = nil
	c.idle = append(c.idle, s)
}
