package kvtransfer_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const encodingInt8 = kvtransferv1.Encoding_ENCODING_INT8

// asBF16 gives both sides bf16 pages. The receiver asks for encoding.
func asBF16(encoding kvtransferv1.Encoding) option {
	layout := kvcache.Layout{
		ModelDigest: "kvtransfertest", ArithmeticClass: "test/1", Layers: layers, KVHeads: 2, HeadSize: 8,
		ElementType: "bf16", BlockTokens: 4, Order: "k-d2t2/v-t2d2/1", SliceBytes: 2 * 2 * 8 * 4 * 2,
	}
	return func(c *rigConfig) {
		c.receiver.Layout, c.sender.Layout, c.receiver.Encoding = layout, layout, encoding
	}
}

// A ticket that asks for int8 gets it, at half the bytes, and its owner is told.
func TestEncodings(t *testing.T) {
	for _, encoding := range []kvtransferv1.Encoding{0, kvtransferv1.Encoding_ENCODING_NATIVE, encodingInt8} {
		t.Run(encoding.String(), func(t *testing.T) {
			overStreams(t, func(t *testing.T, streams option) {
				g := newRig(t, streams, asBF16(encoding))
				ticket, o := g.reserve(kvcache.BlockRange(0, 8), 0, 8)
				tr := g.open(ticket)
				sendAll(tr, kvcache.BlockRange(8, 8), 0, 3)
				tr.Commit(nil)
				wait(t, "committed", o.over)
				wait(t, "done", tr.Done())
				if o.approximate != (encoding == encodingInt8) {
					t.Errorf("approximate is %v", o.approximate)
				}
				native := uint64(8 * layers * g.from.Layout().SliceBytes)
				if o.approximate != (o.bytes < native*3/4) || tr.Stats().Bytes != o.bytes {
					t.Errorf("%d bytes arrived, %d were sent, of %d", o.bytes, tr.Stats().Bytes, native)
				}
				if !o.approximate {
					g.checkPages(kvcache.BlockRange(8, 8), kvcache.BlockRange(0, 8))
				}
			})
		})
	}
}

// An encoding that was not asked for is refused.
func TestEncodingIsTheTickets(t *testing.T) {
	overStreams(t, func(t *testing.T, streams option) {
		g := newRig(t, streams)
		ticket, _ := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		stream, leave := g.join(t, 7)
		defer leave()
		open := openMessage(ticket)
		open.GetOpen().Encoding = encodingInt8
		say(t, stream, open)
		if m := hear(t, stream); m.GetRefuse().GetReason() != kvtransferv1.RefuseReason_REFUSE_REASON_ENCODING {
			t.Errorf("open is answered by %v", m)
		}
		g.receiver.Cancel(ticket.GetTransferId())
	})
}

func TestEncodingThatTheLayoutLacks(t *testing.T) {
	layout := kvtransfertest.Layout(layers, sliceBytes)
	if _, err := kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
		WorkerID: "d", Epoch: 1, Addresses: []string{"a:1"}, Layout: layout, Encoding: encodingInt8,
	}, kvtransfertest.NewPages(layout, 1)); err == nil {
		t.Error("int8 of elements that are not bf16: no error")
	}
}
