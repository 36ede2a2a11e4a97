package kvtransfer

import (
	"errors"
	"io"
	"time"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
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
	encoded := new(mem.BufferSlice)
	for {
		message := c.next(stripe)
		switch out := message.(type) {
		case *wire.Outbound:
			// What cannot be read must not end the stream, as it would inside of SendMsg.
			data, err := codec.Marshal(out)
			if err != nil {
				continue // the core knows
			}
			*encoded, message = data, encoded
		case nil:
			select {
			case <-c.stripes[stripe]:
			case <-c.ctx.Done():
				return
			}
			continue
		}
		err := stream.SendMsg(message)
		encoded.Free() // what was not sent
		*encoded = nil
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

// encodedCodec sends a *mem.BufferSlice, which is a message that was encoded before, and
// sets it to nil.
type encodedCodec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c encodedCodec) Marshal(v any) (mem.BufferSlice, error) {
	encoded, is := v.(*mem.BufferSlice)
	if !is {
		return c.CodecV2.Marshal(v)
	}
	data := *encoded
	*encoded = nil
	return data, nil
}
