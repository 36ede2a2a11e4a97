package kvtransfer_test

import (
	"context"
	"log/slog"
	"math"
	"math/bits"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// A chunk in which no two blocks adjoin fits the announced maximum message, in either
// encoding.
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

// runsApart returns runs of one block each, with block numbers of the longest encoding.
func runsApart(n int) []wire.Run {
	runs := make([]wire.Run, n)
	for i := range runs {
		runs[i] = wire.Run{First: math.MaxUint32 - uint32(2*(n-i)), Blocks: 1}
	}
	return runs
}

// No single bit flip turns one transfer's id into another's.
func TestTransferIDsAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		var ids []uint64
		for range 200 {
			ticket, _ := g.reserve(nil, 0, 0)
			ids = append(ids, ticket.GetTransferId())
			g.receiver.Cancel(ticket.GetTransferId())
		}
		for i, id := range ids {
			for _, other := range ids[:i] {
				if bits.OnesCount64(id^other) < 2 {
					t.Fatalf("%#x is next to %#x", id, other)
				}
			}
		}
	})
}

// Every issued ticket is accepted by a sender.
func TestTicketsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		o := &outcome{t: t}
		most := make([]kvcache.BlockID, 1<<20+1)
		if _, err := g.receiver.Reserve(o.reservation(most, 0, len(most))); err == nil {
			t.Error("a ticket for more blocks than a sender takes")
		}
	})
}

// Malformed messages and overlong names end the stream with an explanation.
func TestMalformedMessages(t *testing.T) {
	long := strings.Repeat("x", 257)
	open := func(o *kvtransferv1.Open) *kvtransferv1.SenderMessage {
		return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{Open: o}}
	}
	hello := &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{Hello: &kvtransferv1.SenderHello{
		Sender: long, Epoch: 1, Version: 2}}}
	for name, c := range map[string]struct {
		message *kvtransferv1.SenderMessage
		detail  string
	}{
		"a long sender":       {hello, "257 bytes"},
		"a long request id":   {open(&kvtransferv1.Open{RequestId: long}), "257 bytes"},
		"a long trace parent": {open(&kvtransferv1.Open{Traceparent: long}), "257 bytes"},
		"a huge message":      {open(&kvtransferv1.Open{RequestId: strings.Repeat("x", 1<<20)}), "not a chunk"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t)
				stream, leave := g.join(t, 7)
				defer leave()
				say(t, stream, c.message)
				if m, err := stream.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.detail) {
					t.Errorf("the stream goes on with %v, %v", m, err)
				}
			})
		})
	}
}

// asksBack is a log handler that calls the receiver.
type asksBack struct {
	slog.Handler
	g     *rig
	lines chan string
}

func (a asksBack) Enabled(context.Context, slog.Level) bool { return true }
func (a asksBack) Handle(_ context.Context, line slog.Record) error {
	_ = a.g.receiver.Stats()
	a.lines <- line.Message
	return nil
}

// Logs are written without a lock held, so log lines cannot block a receiver.
func TestLogsAreWrittenUnlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := asksBack{Handler: slog.DiscardHandler, lines: make(chan string, 10)}
		g := newRig(t, func(c *rigConfig) { c.receiver.Logger = slog.New(&log) })
		log.g = g
		ticket, o := g.reserve(kvcache.BlockRange(0, 1), 0, 1)
		stream, leave := g.join(t, 7)
		defer leave()
		say(t, stream, openMessage(ticket))
		hear(t, stream)
		say(t, stream, chunkMessage(ticket, 2001, 0))
		if got := <-log.lines + ", " + <-log.lines; got != "kv stream broke off, kv transfer ended without commit" {
			t.Errorf("the log has %s", got)
		}
		wait(t, "drained", o.over)
	})
}

// A receiver that shuts down sends its last messages before its streams end.
func TestLastWord(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			layout := kvtransfertest.Layout(layers, sliceBytes)
			g := &rig{t: t, to: kvtransfertest.NewPages(layout, poolBlocks), listener: newListener()}
			var err error
			if g.receiver, err = kvtransfer.NewReceiver(kvtransfer.ReceiverConfig{
				WorkerID: "decode-0", Epoch: 7, Addresses: []string{"passthrough:///memory"}, Layout: layout,
			}, g.to); err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec()))
			g.receiver.Register(server)
			go func() { _ = server.Serve(g.listener) }()
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- g.receiver.Run(ctx) }()

			ticket, _ := g.reserve(kvcache.BlockRange(0, 1), 0, 1)
			stream, leave := g.join(t, 7)
			defer leave()
			say(t, stream, openMessage(ticket))
			hear(t, stream)
			end()
			if m := hear(t, stream); m.GetFailed().GetReason() != kvtransferv1.FailReason_FAIL_REASON_SHUTDOWN {
				t.Errorf("its end is told by %v", m)
			}
			say(t, stream, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Abort{Abort: &kvtransferv1.Abort{
				TransferId: ticket.GetTransferId(), Reason: kvtransferv1.AbortReason_ABORT_REASON_ACKNOWLEDGED}}})
			if m, err := stream.Recv(); m.GetDrained().GetTransferId() != ticket.GetTransferId() {
				t.Errorf("the last word is %v, %v", m, err)
			}
			if m, err := stream.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("and then come %v, %v", m, err)
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			server.Stop()
		})
	}
}

// An undecodable payload with a valid checksum is blamed on its sender, not on the pages.
func TestUndecodablePayload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, asBF16(encodingInt8))
		ticket, o := g.reserve(kvcache.BlockRange(0, 1), 0, 1)
		stream, leave := g.join(t, 7)
		open := openMessage(ticket)
		open.GetOpen().Encoding = encodingInt8
		say(t, stream, open)
		hear(t, stream)
		const slice = 2 * 2 * (4 + 8*4)
		pages := kvtransfertest.NewHostPages(kvtransfertest.Layout(1, slice), 1)
		view := pages.View(0, 0)
		for i := range view {
			view[i] = 0xff // every scale is NaN
		}
		encoded, err := wire.Codec().Marshal(&wire.Outbound{
			Pages: pages, Blocks: kvcache.BlockRange(0, 1), Chunk: wire.Chunk{TransferID: ticket.GetTransferId(), Runs: []wire.Run{{Blocks: 1}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		chunk := new(kvtransferv1.SenderMessage)
		if err := proto.Unmarshal(encoded.Materialize(), chunk); err != nil {
			t.Fatal(err)
		}
		encoded.Free()
		say(t, stream, chunk)
		if m := hear(t, stream); m.GetGrant() == nil && m.GetFailed() == nil {
			t.Errorf("a chunk is answered by %v", m)
		}
		leave()
		wait(t, "drained", o.over)
		if failReason(o.err) != kvtransferv1.FailReason_FAIL_REASON_PROTOCOL {
			t.Errorf("ended with %v", o.err)
		}
	})
}
