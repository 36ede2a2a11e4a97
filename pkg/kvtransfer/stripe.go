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
		message := c.next(stripe)
		switch out := message.(type) {
		case *wire.Outbound:
			// What cannot be read must not end the stream, as it would inside of SendMsg.
			data, err := codec.Marshal(out)
			if err != nil {
				continue // the core knows
			}
			encoded.data, message = data, encoded
		case nil:
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

// next asks the core what a stripe's writer has to write: a message, a chunk as the codec
// takes it, or nil. What a chunk lends it lends at once, so that no Recall comes between.
func (c *connection) next(stripe int) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch a := c.apply(c.core.HandleWriterReady(time.Now(), sender.WriterReady{Stripe: stripe})).(type) {
		case sender.Write:
			return a.Message
		case *sender.WriteChunk:
			if out := c.ship(a); out != nil {
				return out
			}
		default:
			return nil
		}
	}
}
