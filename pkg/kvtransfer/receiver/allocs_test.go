package receiver_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

// The steps of every chunk do not allocate: check, copy and grant.
func TestChunksAllocateNothing(t *testing.T) {
	const layers = 2000
	c := receiver.New(receiver.Config{
		WorkerID: "decode", Epoch: epoch, LayoutDigest: layout, Layers: layers, SliceBytes: sliceBytes,
		Lease: lease, CreditBytes: 64, MaxChunkBytes: 16, MaxReservations: 2, MaxStreams: 2,
	})
	c.Handle(start, receiver.Reserve{ID: transferID, Secret: secret, Blocks: []kvcache.BlockID{4, 5, 6, 7}})
	c.Handle(start, receiver.StreamOpened{Stream: 1})
	c.Handle(start, received(1, hello(2)))
	c.Handle(start, received(1, open()))
	chunk := &wire.Chunk{TransferID: transferID, Runs: []wire.Run{{First: 0, Blocks: 4}}, PayloadBytes: 16}
	granted := 0
	count := func(actions []receiver.Action) {
		for _, a := range actions {
			if g, ok := a.(*receiver.Grant); ok {
				granted += g.Bytes
			}
		}
	}
	one := func() {
		for _, a := range c.HandleReceived(start, receiver.Received{Stream: 1, Chunk: chunk}) {
			if w, ok := a.(*receiver.Write); ok {
				count(c.HandleWritten(start, receiver.Written{Stream: 1, ID: w.ID, Bytes: w.Bytes}))
			}
		}
		chunk.Sequence++
		chunk.Layer++
	}
	one()
	if n := testing.AllocsPerRun(layers/2, one); n != 0 {
		t.Errorf("%v allocations a chunk", n)
	}
	if want := int(chunk.Sequence) * 16; granted != want {
		t.Errorf("%d bytes are granted of %d", granted, want)
	}
}
