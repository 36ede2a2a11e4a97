package kvtransfer_test

import (
	"math"
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
	"github.com/tandem-serving/tandem/services/kvtransfer"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/wire"
	"github.com/tandem-serving/tandem/services/kvtransfer/kvtransfertest"
)

// A chunk whose slices all lie apart is within what a receiver says that it takes, in
// either encoding.
func TestLargestMessage(t *testing.T) {
	layout := kvcache.Layout{
		ModelDigest: "kvtransfertest", ArithmeticClass: "test/1", Layers: layers, KVHeads: 2, HeadSize: 8,
		ElementType: "bf16", BlockTokens: 4, Order: "k-d2t2/v-t2d2/1", SliceBytes: 2 * 2 * 8 * 4 * 2,
	}
	for encoding, slice := range map[kvtransferv1.Encoding]int{
		kvtransferv1.Encoding_ENCODING_NATIVE: layout.SliceBytes,
		kvtransferv1.Encoding_ENCODING_INT8:   2 * 2 * (4 + 8*4),
	} {
		receiver, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
			WorkerID: "decode-0", Epoch: 7, Addresses: []string{"a:1"}, Layout: layout, Encoding: encoding,
		}, kvtransfertest.NewPages(layout, 1))
		if err != nil {
			t.Fatal(err)
		}
		slices := kvtransfer.DefaultMaxChunkBytes / slice
		message, err := wire.Codec().Marshal(&wire.Outbound{
			Pages: kvtransfertest.NewPages(kvtransfertest.Layout(1, slice), 1), Blocks: make([]kvcache.BlockID, slices),
			Chunk: wire.Chunk{TransferID: math.MaxUint64, Sequence: math.MaxUint32, Runs: runsApart(slices)},
		})
		if err != nil {
			t.Fatal(err)
		}
		if limit := receiver.MaxMessageBytes(); message.Len() > limit {
			t.Errorf("%v: a chunk of %d bytes, more than %d", encoding, message.Len(), limit)
		}
		message.Free()
	}
}

// runsApart are runs of one block each whose numbers take as much as any do.
func runsApart(n int) []wire.Run {
	runs := make([]wire.Run, n)
	for i := range runs {
		runs[i] = wire.Run{First: math.MaxUint32 - uint32(2*(n-i)), Blocks: 1}
	}
	return runs
}
