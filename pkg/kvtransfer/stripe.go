package kvtransfer

import (
	"errors"
	"io"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// read receives the receiver's messages on one stripe until it ends.
func (c *connection) read(stream kvtransferv1.KVTransfer_StreamClient, stripe int) {
	defer c.cancel()
	for {
		m, err := stream.Recv()
		if err != nil {
			c.loop.Handle(sender.StreamLost{Err: err})
			return
		}
		coreloop.Handle(c.loop, (*sender.Core).HandleReceived, sender.Received{Stripe: stripe, Message: m})
	}
}

// write sends the core's messages for one stripe, one after another.
func (c *connection) write(stream kvtransferv1.KVTransfer_StreamClient, stripe int) {
	codec := wire.Codec()
	encoded := new(mem.BufferSlice)
	for {
		message := c.next(stripe)
		switch out := message.(type) {
		case *wire.Outbound:
			// Marshal here, since an error inside SendMsg would end the stream.
			data, err := codec.Marshal(out)
			if err != nil {
				continue // the core knows
			}
			*encoded, message = data, encoded
		case *kvtransferv1.SenderMessage:
			if err := c.shutPages(out); err != nil {
				c.fail(err)
				return
			}
		case nil:
			select {
			case <-c.stripes[stripe]:
			case <-c.ctx.Done():
				return
			}
			continue
		}
		err := stream.SendMsg(message)
		encoded.Free() // not sent
		*encoded = nil
		if err != nil {
			if !errors.Is(err, io.EOF) { // on io.EOF the reader gets the cause
				c.fail(err)
			}
			return
		}
	}
}

// fail ends the session.
func (c *connection) fail(err error) {
	c.loop.Handle(sender.StreamLost{Err: err})
	c.cancel()
}

// next returns the next thing to write to a stripe: a message, a chunk for the codec, or
// nil. It lends a chunk's slices under the same lock, so that no Recall comes between.
func (c *connection) next(stripe int) any {
	c.loop.Lock()
	defer c.loop.Unlock()
	for {
		switch a := c.toWrite(stripe).(type) {
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

// toWrite returns what the core has for a stripe's writer: a sender.Write, a
// *sender.WriteChunk, or nil. Requires c.loop.
func (c *connection) toWrite(stripe int) sender.Action {
	for _, a := range coreloop.Step(c.loop, (*sender.Core).HandleWriterReady, sender.WriterReady{Stripe: stripe}) {
		switch a.(type) {
		case sender.Write, *sender.WriteChunk:
			return a
		}
	}
	return nil
}

// encodedCodec sends an already encoded message, a *mem.BufferSlice, and sets it to nil.
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
