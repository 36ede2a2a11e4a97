package kvtransfer_test

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/kvtransfertest"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const encodingLent = kvtransferv1.Encoding_ENCODING_LENT

// lending gives both sides pages of one device.
func lending(t *testing.T) option {
	newPages := sharedPages(t)
	return func(c *rigConfig) { c.pages = newPages }
}

// bubbles runs a test in a synctest bubble, with sessions of one stream and of several.
func bubbles(t *testing.T, test func(t *testing.T, streams option)) {
	for name, streams := range map[string]int{"1 stream": 1, "3 streams": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, func(c *rigConfig) { c.sender.Streams = streams }) })
		})
	}
}

// Slices are lent only to a receiver in the same memory that allows it, and are counted
// like payloads.
func TestWhoLends(t *testing.T) {
	for name, c := range map[string]struct {
		options func(t *testing.T) []option
		want    string
	}{
		"one device": {func(t *testing.T) []option { return []option{lending(t)} }, "device"},
		"two devices": {func(t *testing.T) []option {
			makers := []func(kvcache.Layout, int) *kvtransfertest.Pages{sharedPages(t), sharedPages(t)}
			return []option{func(c *rigConfig) {
				c.pages = func(layout kvcache.Layout, blocks int) *kvtransfertest.Pages {
					next := makers[0]
					makers = makers[1:]
					return next(layout, blocks)
				}
			}}
		}, "tcp"},
		"no loans": {func(t *testing.T) []option {
			return []option{lending(t), func(c *rigConfig) { c.receiver.NoLoans = true }}
		}, "tcp"},
		"fewer bits": {func(t *testing.T) []option { return []option{lending(t), asBF16(encodingInt8)} }, "tcp"},
		"bf16":       {func(t *testing.T) []option { return []option{lending(t), asBF16(0)} }, "device"},
	} {
		t.Run(name, func(t *testing.T) {
			bubbles(t, func(t *testing.T, streams option) {
				g := newRig(t, append(c.options(t), streams)...)
				ticket, o := g.reserve(kvcache.BlockRange(0, 8), 2, 8)
				if names := ticket.GetMemory() != 0; names != (c.want == "device" || name == "two devices") {
					t.Errorf("the ticket names memory %#x", ticket.GetMemory())
				}
				tr := g.open(ticket)
				sendAll(tr, kvcache.BlockRange(8, 8), 2, 3)
				tr.Commit([]int32{4})
				wait(t, "committed", o.over)
				wait(t, "done", tr.Done())
				stats := tr.Stats()
				if stats.Transport != c.want {
					t.Errorf("it went over %q, want %q", stats.Transport, c.want)
				}
				if bytes := uint64(6 * layers * g.from.Layout().SliceBytes); name != "fewer bits" && (o.bytes != bytes || stats.Bytes != bytes || o.approximate) {
					t.Errorf("%d bytes arrived, %d were sent, of %d; approximate: %v", o.bytes, stats.Bytes, bytes, o.approximate)
				}
				if name != "fewer bits" {
					g.checkPages(kvcache.BlockRange(10, 6), kvcache.BlockRange(2, 6))
				}
				if got := g.receiver.Stats().PayloadBytes; got != o.bytes {
					t.Errorf("the receiver counts %d bytes of %d", got, o.bytes)
				}
			})
		})
	}
}

// held blocks the receiver's copies until let is called.
func held(pages *kvtransfertest.Pages) (let func()) {
	gate := make(chan struct{})
	pages.Before(func() { <-gate })
	return func() { pages.Before(nil); close(gate) }
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// Lent slices are not released before they are taken.
func TestLentIsReleasedWhenTaken(t *testing.T) {
	bubbles(t, func(t *testing.T, streams option) {
		g := newRig(t, lending(t), streams)
		let := held(g.to)
		ticket, o := g.reserve(kvcache.BlockRange(0, 2), 0, 2)
		tr := g.open(ticket)
		sendAll(tr, kvcache.BlockRange(8, 2), 0, 2)
		tr.Commit(nil)
		synctest.Wait()
		if isClosed(tr.Released()) {
			t.Error("released while nothing was taken")
		}
		let()
		wait(t, "released", tr.Released())
		wait(t, "committed", o.over)
		wait(t, "done", tr.Done())
	})
}

// A sender that aborts gets its pages back at once, even if the receiver is busy with
// another transfer, and the receiver learns the reason.
func TestAbortRecalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t, lending(t))
		let := held(g.to)
		busyTicket, busyOutcome := g.reserve(kvcache.BlockRange(0, 1), 0, 1)
		busy := g.open(busyTicket)
		ticket, o := g.reserve(kvcache.BlockRange(4, 4), 0, 4)
		tr := g.open(ticket)
		sendAll(busy, kvcache.BlockRange(0, 1), 0, 1) // being taken
		synctest.Wait()
		sendAll(tr, kvcache.BlockRange(8, 4), 0, 4) // queued behind it
		synctest.Wait()
		if isClosed(tr.Released()) || tr.Stats().Transport != "device" {
			t.Fatalf("released before its end, over %q", tr.Stats().Transport)
		}
		tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
		busy.Abort(kvtransferv1.AbortReason_ABORT_REASON_FINISHED)
		synctest.Wait()
		if !isClosed(tr.Released()) {
			t.Error("its pages wait for the receiver")
		}
		if isClosed(busy.Released()) {
			t.Error("pages were released while they were read")
		}
		let()
		for of, end := range map[*kvtransfer.Transfer]struct {
			o      *outcome
			reason kvtransferv1.AbortReason
		}{
			tr:   {o, kvtransferv1.AbortReason_ABORT_REASON_CANCELLED},
			busy: {busyOutcome, kvtransferv1.AbortReason_ABORT_REASON_FINISHED},
		} {
			wait(t, "done", of.Done())
			wait(t, "drained", end.o.over)
			if abortReason(end.o.err) != end.reason {
				t.Errorf("the receiver was told %v, want %v", end.o.err, end.reason)
			}
		}
	})
}

// A broken session recalls its loans and waits for copies in progress; only then has the
// sender ended.
func TestLossRecalls(t *testing.T) {
	bubbles(t, func(t *testing.T, streams option) {
		g := newRig(t, lending(t), streams)
		let := held(g.to)
		ticket, o := g.reserve(kvcache.BlockRange(0, 8), 0, 8)
		tr := g.open(ticket)
		sendAll(tr, kvcache.BlockRange(8, 8), 0, 2)
		synctest.Wait()
		stopped := make(chan struct{})
		go func() { g.stop(); close(stopped) }()
		synctest.Wait()
		if isClosed(tr.Released()) {
			t.Error("released while pages are taken")
		}
		let()
		wait(t, "released", tr.Released())
		wait(t, "done", tr.Done())
		wait(t, "drained", o.over)
		wait(t, "the server's end", stopped)
		if !isBroken(tr.Err()) || !isBroken(o.err) {
			t.Errorf("ended with %v, and %v", tr.Err(), o.err)
		}
	})
}

// lentChunk lends the slice of block 0 in a layer, as chunk number layer.
func lentChunk(ticket *kvtransferv1.Ticket, layer uint32, loan uint64, size uint32) *kvtransferv1.SenderMessage {
	m := chunkMessage(ticket, 0, 0)
	c := m.GetChunk()
	c.Sequence, c.Layer, c.Payload, c.Loan, c.LentBytes = layer, layer, nil, loan, size
	text := binary.LittleEndian.AppendUint64(nil, c.GetTransferId())
	for _, number := range []uint32{layer, layer, 1, 0, 1} {
		text = binary.LittleEndian.AppendUint32(text, number)
	}
	text = binary.LittleEndian.AppendUint64(text, loan)
	c.Crc32C = castagnoli(binary.LittleEndian.AppendUint32(text, size))
	return m
}

// A sender with invalid loans fails its transfer, and the pages stay unchanged.
func TestWrongLoans(t *testing.T) {
	const protocol = kvtransferv1.FailReason_FAIL_REASON_PROTOCOL
	for name, c := range map[string]struct {
		encoding kvtransferv1.Encoding
		chunk    func(g *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage
		commits  bool
		want     kvtransferv1.FailReason
	}{
		"a number of nothing, committed": {encodingLent, func(_ *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
			return lentChunk(ticket, 0, 77, sliceBytes)
		}, true, protocol},
		"a payload": {encodingLent, func(_ *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
			return chunkMessage(ticket, sliceBytes, 1)
		}, false, protocol},
		"a loan, though native": {0, func(_ *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
			return lentChunk(ticket, 0, 77, sliceBytes)
		}, false, protocol},
		"half a slice": {encodingLent, func(_ *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
			return lentChunk(ticket, 0, 77, sliceBytes/2)
		}, false, protocol},
		"another checksum": {encodingLent, func(_ *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
			m := lentChunk(ticket, 0, 77, sliceBytes)
			m.GetChunk().Crc32C++
			return m
		}, false, kvtransferv1.FailReason_FAIL_REASON_CHECKSUM},
		"slices of another layer": {encodingLent, func(g *rig, ticket *kvtransferv1.Ticket) *kvtransferv1.SenderMessage {
			loan, err := g.from.Lend(1, kvcache.BlockRange(0, 1), func() {})
			if err != nil {
				g.t.Fatal(err)
			}
			return lentChunk(ticket, 0, loan, sliceBytes)
		}, false, kvtransferv1.FailReason_FAIL_REASON_DEVICE},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newRig(t, lending(t))
				ticket, o := g.reserve(kvcache.BlockRange(0, 1), 0, 1)
				stream, leave := g.join(t, 7)
				defer leave()
				open := openMessage(ticket)
				open.GetOpen().Encoding = c.encoding
				say(t, stream, open)
				if m := hear(t, stream); m.GetAccept() == nil {
					t.Fatalf("open is answered by %v", m)
				}
				say(t, stream, c.chunk(g, ticket))
				if c.commits {
					for layer := uint32(1); layer < layers; layer++ {
						say(t, stream, lentChunk(ticket, layer, 77, sliceBytes))
					}
					commit := &kvtransferv1.Commit{TransferId: ticket.GetTransferId(), Epoch: ticket.GetEpoch(), Chunks: layers}
					text := binary.LittleEndian.AppendUint64(nil, commit.GetTransferId())
					text = binary.LittleEndian.AppendUint64(text, commit.GetEpoch())
					text = binary.LittleEndian.AppendUint32(text, layers)
					commit.Crc32C = castagnoli(binary.LittleEndian.AppendUint32(text, 0))
					say(t, stream, &kvtransferv1.SenderMessage{Message: &kvtransferv1.SenderMessage_Commit{Commit: commit}})
				}
				for {
					if m := hear(t, stream); m.GetFailed() != nil {
						if m.GetFailed().GetReason() != c.want {
							t.Errorf("it failed with %v, want %v", m.GetFailed(), c.want)
						}
						break
					}
				}
				leave()
				wait(t, "drained", o.over)
				g.checkEmpty(kvcache.BlockRange(0, 1))
			})
		})
	}
}

// Open must not ask for loans unless the ticket allows them.
func TestLoansAreTheTickets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t) // pages that cannot lend
		ticket, _ := g.reserve(kvcache.BlockRange(0, 1), 0, 1)
		stream, leave := g.join(t, 7)
		defer leave()
		open := openMessage(ticket)
		open.GetOpen().Encoding = encodingLent
		say(t, stream, open)
		if m := hear(t, stream); m.GetRefuse().GetReason() != kvtransferv1.RefuseReason_REFUSE_REASON_ENCODING {
			t.Errorf("open is answered by %v", m)
		}
		g.receiver.Cancel(ticket.GetTransferId())
	})
}

// Aborts at any moment return the pages and end the transfer.
func TestAbortsAtAnyTime(t *testing.T) {
	g := newRig(t, lending(t), func(c *rigConfig) { c.sender.Streams = 2 })
	var all sync.WaitGroup
	for worker := range 4 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 100 {
				blocks := kvcache.BlockRange(8*worker, 8)
				ticket, o := g.reserve(blocks, 0, 8)
				tr := g.open(ticket)
				sendAll(tr, blocks, 0, 1+random.IntN(8))
				if random.IntN(2) == 0 {
					tr.Commit(nil)
				}
				for range random.IntN(200) {
					runtime.Gosched()
				}
				if random.IntN(8) == 0 {
					g.receiver.Cancel(ticket.GetTransferId())
				}
				tr.Abort(kvtransferv1.AbortReason_ABORT_REASON_CANCELLED)
				wait(t, "released", tr.Released())
				wait(t, "done", tr.Done())
				wait(t, "over", o.over)
			}
		})
	}
	all.Wait()
}
