package receiver_test

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	epoch, secret, layout = 7, 8, 9
	sliceBytes            = 4
	lease                 = 10 * time.Second
	transferID            = 1
)

var start = time.Unix(1000, 0)

func newCore() *receiver.Core {
	return receiver.New(receiver.Config{
		WorkerID: "decode", Epoch: epoch, LayoutDigest: layout, Layers: 2, SliceBytes: sliceBytes,
		Lease: lease, CreditBytes: 64, MaxChunkBytes: 16, MaxReservations: 2, MaxStreams: 2,
	})
}

// blocks of the reservation of transfer 1. The first is held.
func blocks() []kvcache.BlockID { return []kvcache.BlockID{10, 11, 12, 13, 14, 15} }

func hello(version uint32) *kvtransferv1.SenderMessage {
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Hello{
		Hello: &kvtransferv1.SenderHello{Version: version, LayoutDigest: layout}}}
}

func open() *kvtransferv1.SenderMessage {
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Open{
		Open: &kvtransferv1.Open{TransferId: transferID, Epoch: epoch, Secret: secret, LayoutDigest: layout}}}
}

func chunk(sequence, layer uint32, size int, runs ...uint32) *kvtransferv1.SenderMessage {
	c := &kvtransferv1.Chunk{TransferId: transferID, Sequence: sequence, Layer: layer, Payload: make([]byte, size)}
	for i := 0; i+1 < len(runs); i += 2 {
		c.Runs = append(c.Runs, &kvtransferv1.Run{FirstBlock: runs[i], Blocks: runs[i+1]})
	}
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Chunk{Chunk: c}}
}

func commit(chunks uint32, commitEpoch uint64, tokens ...uint32) *kvtransferv1.SenderMessage {
	m := &kvtransferv1.Commit{TransferId: transferID, Epoch: commitEpoch, Chunks: chunks, SampledTokenIds: tokens}
	m.Crc32C = wire.CommitChecksum(m)
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Commit{Commit: m}}
}

// received wraps a message like a stream's reader.
func received(stream receiver.StreamID, m *kvtransferv1.SenderMessage) receiver.Received {
	chunk := m.GetChunk()
	if chunk == nil {
		return receiver.Received{Stream: stream, Message: m}
	}
	c := &wire.Chunk{TransferID: chunk.GetTransferId(), Sequence: chunk.GetSequence(), Layer: chunk.GetLayer(), PayloadBytes: len(chunk.GetPayload())}
	for _, r := range chunk.GetRuns() {
		c.Runs = append(c.Runs, wire.Run{First: r.GetFirstBlock(), Blocks: r.GetBlocks()})
	}
	return receiver.Received{Stream: stream, Chunk: c}
}

func abort() *kvtransferv1.SenderMessage {
	return &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Abort{
		Abort: &kvtransferv1.Abort{TransferId: transferID, Reason: kvtransferv1.AbortReason_ABORT_REASON_CANCELLED}}}
}

// opened returns a core with one reservation, opened by one stream.
func opened() *receiver.Core {
	c := newCore()
	handle(c, start, receiver.Reserve{ID: transferID, Secret: secret, Blocks: blocks(), Held: 1})
	handle(c, start, receiver.StreamOpened{Stream: 1})
	handle(c, start, receiver.Received{Stream: 1, Message: hello(2)})
	handle(c, start, receiver.Received{Stream: 1, Message: open()})
	return c
}

// handle gives the core one event and returns a copy of the actions.
func handle(c *receiver.Core, now time.Time, ev receiver.Event) []receiver.Action {
	actions := slices.Clone(c.Handle(now, ev))
	for i, a := range actions {
		switch a := a.(type) {
		case *receiver.Write:
			w := *a
			w.Blocks = slices.Clone(a.Blocks)
			actions[i] = &w
		case *receiver.Grant:
			g := *a
			actions[i] = &g
		}
	}
	return actions
}

// feed gives the core messages, ends every copy at once, and returns all actions.
func feed(c *receiver.Core, messages ...*kvtransferv1.SenderMessage) []receiver.Action {
	var all []receiver.Action
	for _, m := range messages {
		actions := handle(c, start, received(1, m))
		all = append(all, actions...)
		for _, a := range actions {
			if w, ok := a.(*receiver.Write); ok {
				all = append(all, handle(c, start, receiver.Written{Stream: 1, ID: w.ID, Bytes: w.Bytes})...)
			}
		}
	}
	return all
}

func TestWrongSenders(t *testing.T) {
	const (
		protocol   = kvtransferv1.FailReason_FAIL_REASON_PROTOCOL
		incomplete = kvtransferv1.FailReason_FAIL_REASON_INCOMPLETE
	)
	for _, test := range []struct {
		name     string
		messages []*kvtransferv1.SenderMessage
		want     kvtransferv1.FailReason
		closes   bool
	}{
		{"chunks with a gap", []*kvtransferv1.SenderMessage{chunk(1, 0, 4, 1, 1)}, incomplete, false},
		{"a chunk twice", []*kvtransferv1.SenderMessage{chunk(0, 0, 4, 1, 1), chunk(0, 0, 4, 1, 1)}, incomplete, false},
		{"a slice twice", []*kvtransferv1.SenderMessage{chunk(0, 0, 4, 1, 1), chunk(1, 0, 4, 1, 1)}, incomplete, false},
		{"a held block", []*kvtransferv1.SenderMessage{chunk(0, 0, 4, 0, 1)}, incomplete, false},
		{"past the reservation", []*kvtransferv1.SenderMessage{chunk(0, 0, 8, 5, 2)}, incomplete, false},
		{"numbers that overflow", []*kvtransferv1.SenderMessage{chunk(0, 0, 4, 1<<32-1, 1<<32-1)}, incomplete, false},
		{"no such layer", []*kvtransferv1.SenderMessage{chunk(0, 2, 4, 1, 1)}, protocol, false},
		{"an empty payload", []*kvtransferv1.SenderMessage{chunk(0, 0, 0)}, protocol, false},
		{"half a slice", []*kvtransferv1.SenderMessage{chunk(0, 0, 6, 1, 1)}, protocol, false},
		{"too long a payload", []*kvtransferv1.SenderMessage{chunk(0, 0, 20, 1, 5)}, protocol, false},
		{"runs that go back", []*kvtransferv1.SenderMessage{chunk(0, 0, 8, 3, 1, 2, 1)}, protocol, false},
		{"runs that overlap", []*kvtransferv1.SenderMessage{chunk(0, 0, 12, 1, 2, 2, 1)}, protocol, false},
		{"an empty run", []*kvtransferv1.SenderMessage{chunk(0, 0, 4, 1, 0, 1, 1)}, protocol, false},
		{"more runs than payload", []*kvtransferv1.SenderMessage{chunk(0, 0, 4, 1, 2)}, protocol, false},
		{"more payload than runs", []*kvtransferv1.SenderMessage{chunk(0, 0, 8, 1, 1)}, protocol, false},
		{"commit of nothing", []*kvtransferv1.SenderMessage{commit(0, epoch)}, incomplete, false},
		{"commit of more chunks", []*kvtransferv1.SenderMessage{commit(1, epoch)}, incomplete, false},
		{"commit of another epoch", []*kvtransferv1.SenderMessage{commit(0, epoch+1)}, protocol, false},
		{"a second greeting", []*kvtransferv1.SenderMessage{hello(2)}, protocol, true},
		{"an empty message", []*kvtransferv1.SenderMessage{{}}, protocol, true},
		{"an unknown transfer's commit", []*kvtransferv1.SenderMessage{{Message: &kvtransferv1.SenderMessage_Commit{}}}, protocol, true},
		{"an unknown transfer's chunk", []*kvtransferv1.SenderMessage{{Message: &kvtransferv1.SenderMessage_Chunk{}}}, protocol, true},
		{"more than the credit", []*kvtransferv1.SenderMessage{chunk(0, 0, 65, 1, 1)}, protocol, true},
		{"a token that is none", append(everything(), commit(4, epoch, 1<<31)), protocol, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := opened()
			var failed *receiver.Failed
			closes := false
			for _, a := range feed(c, test.messages...) {
				switch a := a.(type) {
				case receiver.Failed:
					if failed != nil {
						t.Error("failed twice")
					}
					failed = &a
				case receiver.CloseStream:
					closes = true
				case receiver.Committed, receiver.Drained:
					t.Errorf("%#v", a)
				}
			}
			if failed == nil || failed.Reason != test.want || closes != test.closes {
				t.Fatalf("failed with %+v, stream closes: %v", failed, closes)
			}
			if s := c.Stats(); s.Ending != 1 {
				t.Errorf("stats %+v", s)
			}
			last := handle(c, start, receiver.StreamClosed{Stream: 1})
			if len(last) != 1 || last[0] != (receiver.Drained{ID: transferID}) {
				t.Errorf("the end of the stream gives %v", last)
			}
		})
	}
}

// everything returns all slices of the reservation in four chunks.
func everything() []*kvtransferv1.SenderMessage {
	return []*kvtransferv1.SenderMessage{
		chunk(0, 0, 12, 1, 1, 3, 2), chunk(1, 1, 16, 1, 4), chunk(2, 0, 8, 2, 1, 5, 1), chunk(3, 1, 4, 5, 1),
	}
}

func TestRightSender(t *testing.T) {
	c := opened()
	var granted int
	var committed *receiver.Committed
	for _, a := range feed(c, append(everything(), commit(4, epoch, 3, 4), abort())...) {
		switch a := a.(type) {
		case *receiver.Grant:
			granted += a.Bytes
		case receiver.Committed:
			committed = &a
		case receiver.Failed, receiver.Aborted, receiver.Drained, receiver.CloseStream:
			t.Errorf("%#v", a)
		}
	}
	if committed == nil || committed.Bytes != 40 || len(committed.Sampled) != 2 || granted != 40 {
		t.Errorf("committed %+v, granted %d", committed, granted)
	}
}

// A sender that exceeds its credit is cut off, whichever transfer the bytes are for.
func TestCreditIsOverAllCopies(t *testing.T) {
	c := opened()
	for i := range 5 {
		actions := handle(c, start, received(1, chunk(uint32(i), 0, 16, uint32(i)*9+1, 4)))
		closes := false
		for _, a := range actions {
			if _, ok := a.(receiver.CloseStream); ok {
				closes = true
			}
			if _, ok := a.(*receiver.Write); ok && i > 0 {
				t.Error("a wrong chunk is written")
			}
		}
		if closes {
			t.Fatalf("chunk %d: the stream closes, though what is dropped is granted again", i)
		}
	}
	for _, a := range handle(c, start, received(1, chunk(9, 0, 64, 1, 1))) {
		if closed, ok := a.(receiver.CloseStream); ok && closed.Cause == receiver.Breach {
			return
		}
	}
	t.Error("16 bytes are being copied and 64 more were taken, of 64")
}

func TestStreamsAreBounded(t *testing.T) {
	c := newCore()
	for i := range receiver.StreamID(3) {
		actions := handle(c, start, receiver.StreamOpened{Stream: i + 1})
		if closes := len(actions) == 1; closes != (i == 2) {
			t.Errorf("stream %d gives %v", i+1, actions)
		}
	}
	at, ok := c.Next()
	if !ok || !at.Equal(start.Add(lease)) {
		t.Fatalf("next is %v, %v", at, ok)
	}
	if actions := handle(c, at, receiver.Tick{}); len(actions) != 2 {
		t.Errorf("silent streams give %v", actions)
	}
	if actions := handle(c, start, receiver.Received{Stream: 1, Message: hello(2)}); len(actions) != 0 {
		t.Errorf("a closing stream gives %v", actions)
	}
}

// FuzzMessages feeds a core arbitrary messages. It must not panic, nor write outside the
// reservation, a slice twice, or after Drained.
func FuzzMessages(f *testing.F) {
	encode := func(messages ...*kvtransferv1.SenderMessage) []byte {
		var all []byte
		for _, m := range messages {
			one, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			all = protowire.AppendBytes(all, one)
		}
		return all
	}
	f.Add(encode(append(everything(), commit(4, epoch, 5))...), uint8(0))
	f.Add(encode(chunk(0, 0, 4, 1, 1), abort(), chunk(1, 0, 4, 2, 1)), uint8(3))
	f.Add(encode(chunk(0, 0, 8, 1<<32-1, 2), commit(1, epoch), open(), hello(0)), uint8(255))
	f.Fuzz(func(t *testing.T, data []byte, late uint8) {
		c := opened()
		written := map[[2]int]bool{}
		var pending []*receiver.Write
		over := false
		do := func(actions []receiver.Action) {
			for _, a := range actions {
				switch a := a.(type) {
				case *receiver.Write:
					if over || a.Bytes != len(a.Blocks)*sliceBytes || a.Layer < 0 || a.Layer > 1 {
						t.Fatalf("write %+v, over: %v", a, over)
					}
					for _, b := range a.Blocks {
						if b < 11 || b > 15 || written[[2]int{a.Layer, int(b)}] {
							t.Fatalf("a write into layer %d of block %d", a.Layer, b)
						}
						written[[2]int{a.Layer, int(b)}] = true
					}
					pending = append(pending, a)
				case receiver.Committed:
					if over || len(pending) > 0 || len(written) != 10 {
						t.Fatalf("committed with %d slices, %d writes under way", len(written), len(pending))
					}
					over = true
				case receiver.Drained:
					if over || len(pending) > 0 {
						t.Fatalf("drained with %d writes under way", len(pending))
					}
					over = true
				}
			}
		}
		finish := func(outcome receiver.Outcome) {
			w := pending[0]
			pending = pending[1:]
			do(handle(c, start, receiver.Written{Stream: 1, ID: w.ID, Bytes: w.Bytes, Outcome: outcome}))
		}
		for i := 0; len(data) > 0; i++ {
			one, n := protowire.ConsumeBytes(data)
			if n < 0 {
				break
			}
			data = data[n:]
			m := new(kvtransferv1.SenderMessage)
			if proto.Unmarshal(one, m) != nil {
				continue
			}
			do(handle(c, start, received(1, m)))
			for len(pending) > int(late%4) {
				finish(receiver.Outcome(int(late>>2) % 7 * i % 3))
			}
		}
		for len(pending) > 0 {
			finish(receiver.Landed)
		}
		do(handle(c, start, receiver.StreamClosed{Stream: 1}))
		do(handle(c, start, receiver.Shutdown{}))
		if !over || !c.Idle() {
			t.Fatalf("something is left: %+v", c.Stats())
		}
	})
}
