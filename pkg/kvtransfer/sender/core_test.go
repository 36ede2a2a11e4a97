package sender_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	sliceBytes    = 4
	answerTimeout = 10 * time.Second
	lease         = 9 * time.Second
)

var start = time.Unix(1000, 0)

func newCore() *sender.Core {
	return sender.New(sender.Config{
		LayoutDigest: 9, Layers: 3, SliceBytes: sliceBytes, CreditBytes: []int{64}, MaxChunkBytes: 16,
		AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
	}, start)
}

func ticket(id uint64) *kvtransferv1.Ticket {
	return &kvtransferv1.Ticket{TransferId: id, Epoch: 7, Secret: 8, Blocks: 20, HeldBlocks: 2}
}

func accept(id uint64) *kvtransferv1.ReceiverMessage {
	return &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Accept{Accept: &kvtransferv1.Accept{TransferId: id}}}
}

func failed(id uint64) *kvtransferv1.ReceiverMessage {
	return &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Failed{Failed: &kvtransferv1.Failed{
		TransferId: id, Reason: kvtransferv1.FailReason_FAIL_REASON_CANCELLED}}}
}

func committed(id uint64) *kvtransferv1.ReceiverMessage {
	return &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Committed{Committed: &kvtransferv1.Committed{TransferId: id}}}
}

func drained(id uint64) *kvtransferv1.ReceiverMessage {
	return &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Drained{Drained: &kvtransferv1.Drained{TransferId: id}}}
}

func grant(bytes uint64) *kvtransferv1.ReceiverMessage {
	return &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Grant{Grant: &kvtransferv1.Grant{CreditBytes: bytes}}}
}

// handle gives the core one event and returns a copy of the actions.
func handle(c *sender.Core, now time.Time, ev sender.Event) []sender.Action {
	return slices.Clone(c.Handle(now, ev))
}

// write writes everything that is due, ending page reads at once.
func write(c *sender.Core) (out []sender.Action) {
	for {
		actions := handle(c, start, sender.WriterReady{})
		if len(actions) == 0 {
			return out
		}
		for _, a := range actions {
			w, ok := a.(*sender.WriteChunk)
			if !ok {
				out = append(out, a)
				continue
			}
			kept := *w
			kept.Blocks, kept.Chunk.Runs = slices.Clone(w.Blocks), slices.Clone(w.Chunk.Runs)
			out = append(out, &kept)
			out = append(out, handle(c, start, sender.PagesRead{Chunk: w})...)
		}
	}
}

// opened returns a core with accepted transfers.
func opened(t *testing.T, ids ...uint64) *sender.Core {
	t.Helper()
	c := newCore()
	for _, id := range ids {
		handle(c, start, sender.Open{Ticket: ticket(id), Lease: lease})
	}
	write(c)
	for _, id := range ids {
		actions := handle(c, start, sender.Received{Message: accept(id)})
		if len(actions) == 0 {
			t.Fatalf("accept gives nothing")
		}
		if a, is := actions[0].(sender.Accepted); !is || a.ID != id {
			t.Fatalf("accept gives %v", actions)
		}
	}
	return c
}

func offer(c *sender.Core, id uint64, layer, first, count int) {
	handle(c, start, sender.Offer{ID: id, Layer: layer, First: first, Blocks: make([]kvcache.BlockID, count)})
}

func chunks(actions []sender.Action) (all []*sender.WriteChunk) {
	for _, a := range actions {
		if w, ok := a.(*sender.WriteChunk); ok {
			all = append(all, w)
		}
	}
	return all
}

func TestNeighboursShareAChunk(t *testing.T) {
	c := opened(t, 1)
	offer(c, 1, 0, 2, 1)
	offer(c, 1, 1, 2, 1)
	offer(c, 1, 0, 3, 1) // joins the first run
	offer(c, 1, 0, 7, 1) // another run
	offer(c, 1, 0, 5, 1) // before it: its own chunk
	got := chunks(write(c))
	if len(got) != 3 {
		t.Fatalf("%d chunks", len(got))
	}
	runs := got[0].Chunk.Runs
	if len(runs) != 2 || runs[0].First != 2 || runs[0].Blocks != 2 || runs[1].First != 7 || got[0].Chunk.PayloadBytes != 12 {
		t.Errorf("first chunk %v", got[0])
	}
	if got[1].Chunk.Layer != 1 || got[2].Chunk.Layer != 0 || got[2].Chunk.Sequence != 2 {
		t.Errorf("then %v and %v", got[1], got[2])
	}
}

func TestCommitFollowsTheLastChunk(t *testing.T) {
	c := opened(t, 1)
	offer(c, 1, 0, 2, 18)
	handle(c, start, sender.Commit{ID: 1, Sampled: []int32{5}})
	first := write(c)
	if n := len(chunks(first)); n != 4 {
		t.Fatalf("%d chunks within the credit", n)
	}
	handle(c, start, sender.Received{Message: grant(16)})
	rest := write(c)
	if len(chunks(rest)) != 1 {
		t.Fatalf("after a grant: %v", rest)
	}
	last, ok := rest[len(rest)-1].(sender.Write)
	if m := last.Message.GetCommit(); !ok || m.GetChunks() != 5 || m.GetEpoch() != 7 || m.GetSampledTokenIds()[0] != 5 {
		t.Errorf("last is %v", rest[len(rest)-1])
	}
}

func TestUnreadablePagesGiveTheirCreditBack(t *testing.T) {
	c := opened(t, 1)
	offer(c, 1, 0, 2, 4)
	reading := chunks(handle(c, start, sender.WriterReady{}))
	broken := errors.New("no such page")
	actions := handle(c, start, sender.PagesRead{Chunk: reading[0], Err: broken})
	ended, ok := actions[1].(sender.Ended)
	if !ok || actions[0] != (sender.Released{ID: 1}) || ended.Result.End != sender.EndAborted || !errors.Is(ended.Result.Err, broken) {
		t.Errorf("ended with %v", actions)
	}
	if c.Credit(0) != 64 {
		t.Errorf("credit is %d", c.Credit(0))
	}
}

// An unsolicited message from the receiver ends the session.
func TestWrongReceivers(t *testing.T) {
	for _, test := range []struct {
		name   string
		before func(*sender.Core)
		says   *kvtransferv1.ReceiverMessage
	}{
		{"a second accept", nil, accept(1)},
		{"a transfer that is not", nil, accept(2)},
		{"committed before commit", nil, committed(1)},
		{"drained before abort", nil, drained(1)},
		{"credit that was not used", nil, grant(1)},
		{"nothing", nil, &kvtransferv1.ReceiverMessage{}},
		{"a second greeting", nil, &kvtransferv1.ReceiverMessage{Message: &kvtransferv1.ReceiverMessage_Hello{}}},
		{"committed after failed", func(c *sender.Core) { handle(c, start, sender.Received{Message: failed(1)}) }, committed(1)},
		{"drained before abort was sent", func(c *sender.Core) { handle(c, start, sender.Abort{ID: 1}) }, drained(1)},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := opened(t, 1)
			if test.before != nil {
				test.before(c)
			}
			closes := false
			for _, a := range handle(c, start, sender.Received{Message: test.says}) {
				if closed, ok := a.(sender.CloseStream); ok {
					closes = closed.Err != nil
				}
			}
			if !closes || !c.Lost() || c.Transfers() != 0 {
				t.Errorf("closes %v, lost %v, %d transfers", closes, c.Lost(), c.Transfers())
			}
		})
	}
}

// When Abort crosses the receiver's answer, the true outcome is reported.
func TestCrossingAborts(t *testing.T) {
	for _, test := range []struct {
		name   string
		commit bool
		says   []*kvtransferv1.ReceiverMessage
		want   sender.End
	}{
		{"before commit", false, []*kvtransferv1.ReceiverMessage{drained(1)}, sender.EndAborted},
		{"failed on its way", false, []*kvtransferv1.ReceiverMessage{failed(1), drained(1)}, sender.EndAborted},
		{"after commit", true, []*kvtransferv1.ReceiverMessage{drained(1)}, sender.EndAborted},
		{"after commit, failed on its way", true, []*kvtransferv1.ReceiverMessage{failed(1), drained(1)}, sender.EndAborted},
		{"committed on its way", true, []*kvtransferv1.ReceiverMessage{committed(1), drained(1)}, sender.EndCommitted},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := opened(t, 1)
			if test.commit {
				handle(c, start, sender.Commit{ID: 1})
				write(c)
			}
			ends := handle(c, start, sender.Abort{ID: 1})
			ends = append(ends, write(c)...)
			for _, m := range test.says {
				ends = append(ends, handle(c, start, sender.Received{Message: m})...)
			}
			var got []sender.End
			for _, a := range ends {
				switch a := a.(type) {
				case sender.Ended:
					got = append(got, a.Result.End)
				case sender.CloseStream:
					t.Errorf("the stream closes: %v", a.Err)
				}
			}
			if len(got) != 1 || got[0] != test.want || c.Transfers() != 0 {
				t.Errorf("ends %v, %d transfers left", got, c.Transfers())
			}
		})
	}
}

func TestClocks(t *testing.T) {
	t.Run("a waiting transfer is renewed", func(t *testing.T) {
		c := opened(t, 1, 2)
		handle(c, start.Add(lease/3), sender.Tick{})
		got := write(c)
		if len(got) != 1 {
			t.Fatalf("%v", got)
		}
		if w, ok := got[0].(sender.Write); !ok || len(w.Message.GetRenew().GetTransferIds()) != 2 {
			t.Errorf("%v", got[0])
		}
	})
	t.Run("a writer that is stuck", func(t *testing.T) {
		c := newCore()
		handle(c, start, sender.Open{Ticket: ticket(1), Lease: lease})
		handle(c, start, sender.WriterReady{})
		handle(c, start, sender.Received{Message: accept(1)})
		handle(c, start.Add(lease), sender.Tick{})
		if !c.Lost() {
			t.Error("the stream goes on")
		}
	})
	t.Run("an idle stream", func(t *testing.T) {
		c := newCore()
		actions := handle(c, start.Add(time.Minute), sender.Tick{})
		if len(actions) != 1 || actions[0] != (sender.CloseStream{}) {
			t.Errorf("%v", actions)
		}
		late := handle(c, start.Add(time.Minute), sender.Open{Ticket: ticket(1), Lease: lease})
		if len(late) != 2 || late[1].(sender.Ended).Result.End != sender.EndBroken {
			t.Errorf("open gives %v", late)
		}
	})
}

// FuzzMessages feeds a core arbitrary answers. It must not panic, and every transfer ends
// once.
func FuzzMessages(f *testing.F) {
	var all []byte
	for _, m := range []*kvtransferv1.ReceiverMessage{grant(16), failed(1), committed(1), drained(1), accept(2)} {
		one, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		all = protowire.AppendBytes(all, one)
	}
	f.Add(all, uint8(0))
	f.Add(all, uint8(7))
	f.Fuzz(func(t *testing.T, data []byte, asked uint8) {
		c := opened(t, 1, 2)
		ends := map[uint64]int{}
		count := func(actions []sender.Action) {
			for _, a := range actions {
				if e, ok := a.(sender.Ended); ok {
					ends[e.ID]++
				}
			}
		}
		offer(c, 1, 0, 2, 18)
		if asked&1 != 0 {
			count(handle(c, start, sender.Commit{ID: 2}))
		}
		if asked&2 != 0 {
			count(write(c))
		}
		if asked&4 != 0 {
			count(handle(c, start, sender.Abort{ID: 1}))
			count(handle(c, start, sender.Abort{ID: 2}))
		}
		for len(data) > 0 {
			one, n := protowire.ConsumeBytes(data)
			if n < 0 {
				break
			}
			data = data[n:]
			m := new(kvtransferv1.ReceiverMessage)
			if proto.Unmarshal(one, m) == nil {
				count(handle(c, start, sender.Received{Message: m}))
				count(write(c))
			}
		}
		if c.Credit(0) > 64 {
			t.Fatalf("credit is %d", c.Credit(0))
		}
		count(handle(c, start, sender.StreamLost{Err: errors.New("over")}))
		if ends[1] != 1 || ends[2] != 1 || c.Transfers() != 0 {
			t.Fatalf("ends %v, %d left", ends, c.Transfers())
		}
	})
}
