package sender_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

const (
	fuzzStripes = 3
	fuzzLayers  = 2
	fuzzBlocks  = 6 // per ticket; the first is held
	fuzzCredit  = 16
	fuzzChunk   = 12 // bytes
)

// dice reads random choices from bytes, zeros at their end.
type dice struct{ data []byte }

func (d *dice) below(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	b := int(d.data[0])
	d.data = d.data[1:]
	return b % n
}

// fuzzTransfer is a transfer as seen by its owner and its receiver.
type fuzzTransfer struct {
	id                 uint64
	offered, sent      map[[2]int]bool // layer and block
	sequence           [fuzzStripes]uint32
	commits, aborts    [fuzzStripes]bool
	committed, ended   bool
	reading            int
	openSent, answered bool
}

// session is a core with a fuzzed owner and receiver.
type session struct {
	t         *testing.T
	d         *dice
	core      *sender.Core
	now       time.Time
	transfers []*fuzzTransfer // by id, from 1
	credit    [fuzzStripes]int
	used      [fuzzStripes]int // of its credit, not granted again
	reading   []*sender.WriteChunk
	closed    bool
}

func (s *session) transfer(id uint64) *fuzzTransfer {
	if id == 0 || id > uint64(len(s.transfers)) {
		s.t.Fatalf("transfer %d never was", id)
	}
	return s.transfers[id-1]
}

func (s *session) handle(ev sender.Event) {
	for _, a := range handle(s.core, s.now, ev) {
		switch a := a.(type) {
		case *sender.WriteChunk:
			s.chunk(a)
		case sender.Write:
			s.written(a)
		case sender.Accepted:
			if t := s.transfer(a.ID); t.ended {
				s.t.Fatalf("accepted after its end: %+v", t)
			}
		case sender.Ended:
			t := s.transfer(a.ID)
			if t.ended || t.reading > 0 || a.Result.End == 0 {
				s.t.Fatalf("ended with %+v: %+v", a.Result, t)
			}
			t.ended = true
		case sender.CloseStream:
			s.closed = true
		}
	}
}

// chunk checks that a chunk has only offered slices, none twice, within the credit.
func (s *session) chunk(w *sender.WriteChunk) {
	t := s.transfer(w.ID)
	c := w.Chunk
	if t.ended || t.commits[w.Stripe] || t.aborts[w.Stripe] || !t.openSent || c.Sequence != t.sequence[w.Stripe] || c.TransferID != w.ID ||
		c.PayloadBytes != sliceBytes*len(w.Blocks) || c.PayloadBytes == 0 || c.PayloadBytes > fuzzChunk || s.closed {
		s.t.Fatalf("chunk %+v of %+v", w, t)
	}
	t.sequence[w.Stripe]++
	past, at := uint32(0), 0
	for _, run := range c.Runs {
		if run.Blocks == 0 || run.First < past {
			s.t.Fatalf("runs %v", c.Runs)
		}
		past = run.First + run.Blocks
		for b := run.First; b < past; b++ {
			slice := [2]int{int(c.Layer), int(b)}
			if !t.offered[slice] || t.sent[slice] || w.Blocks[at] != kvcache.BlockID(100+b) {
				s.t.Fatalf("chunk %+v has slice %v of %+v", w, slice, t)
			}
			t.sent[slice] = true
			at++
		}
	}
	s.used[w.Stripe] += c.PayloadBytes
	if s.used[w.Stripe] > s.credit[w.Stripe] || at != len(w.Blocks) {
		s.t.Fatalf("%d bytes on their way over stripe %d, of %d", s.used[w.Stripe], w.Stripe, s.credit[w.Stripe])
	}
	t.reading++
	s.reading = append(s.reading, w)
}

func (s *session) written(w sender.Write) {
	m := w.Message
	switch {
	case m.GetOpen() != nil:
		t := s.transfer(m.GetOpen().GetTransferId())
		if t.openSent || w.Stripe != 0 {
			s.t.Fatalf("opened over stripe %d: %+v", w.Stripe, t)
		}
		t.openSent = true
	case m.GetCommit() != nil:
		t := s.transfer(m.GetCommit().GetTransferId())
		if !t.committed || t.commits[w.Stripe] || t.aborts[w.Stripe] || m.GetCommit().GetChunks() != t.sequence[w.Stripe] {
			s.t.Fatalf("%v over stripe %d of %+v", m, w.Stripe, t)
		}
		t.commits[w.Stripe] = true
	case m.GetAbort() != nil:
		t := s.transfer(m.GetAbort().GetTransferId())
		if t.aborts[w.Stripe] || !t.openSent {
			s.t.Fatalf("%v over stripe %d of %+v", m, w.Stripe, t)
		}
		t.aborts[w.Stripe] = true
	case m.GetRenew() != nil:
		if w.Stripe != 0 {
			s.t.Fatalf("%v over stripe %d", m, w.Stripe)
		}
	default:
		s.t.Fatalf("writes %v", m)
	}
}

// read ends a read of pages.
func (s *session) read(i int, err error) {
	w := s.reading[i]
	s.reading = slices.Delete(s.reading, i, i+1)
	s.transfer(w.ID).reading--
	if err != nil { // not sent: its credit is back
		s.used[w.Stripe] -= w.Chunk.PayloadBytes
	}
	s.handle(sender.PagesRead{Chunk: w, Err: err})
}

func (s *session) step() {
	if op := s.d.below(32); op == 0 || len(s.transfers) == 0 {
		id := uint64(len(s.transfers) + 1)
		s.transfers = append(s.transfers, &fuzzTransfer{id: id, offered: map[[2]int]bool{}, sent: map[[2]int]bool{}})
		s.handle(sender.Open{Ticket: &kvtransferv1.Ticket{TransferId: id, Epoch: 7, Blocks: fuzzBlocks, HeldBlocks: 1}, Lease: lease})
	} else {
		t := s.transfers[max(len(s.transfers)-1-s.d.below(3), 0)]
		if op < 16 {
			s.own(op, t)
		} else {
			s.answer(op, t)
		}
	}
}

// own is an action of the owner.
func (s *session) own(op int, t *fuzzTransfer) {
	stripe := s.d.below(fuzzStripes)
	switch {
	case op < 9:
		if !slices.ContainsFunc(s.reading, func(w *sender.WriteChunk) bool { return w.Stripe == stripe }) {
			s.handle(sender.WriterReady{Stripe: stripe})
		}
	case op < 12:
		if len(s.reading) > 0 {
			var err error
			if s.d.below(32) == 31 {
				err = errors.New("no such page")
			}
			s.read(s.d.below(len(s.reading)), err)
		}
	case op < 14:
		layer, first := s.d.below(fuzzLayers), 1+s.d.below(fuzzBlocks-1)
		count := 1 + s.d.below(fuzzBlocks-first)
		offer := sender.Offer{ID: t.id, Layer: layer, First: first}
		for b := first; b < first+count; b++ {
			if t.offered[[2]int{layer, b}] || t.committed {
				return // a misuse, which ends the transfer
			}
			offer.Blocks = append(offer.Blocks, kvcache.BlockID(100+b))
		}
		for b := first; b < first+count; b++ {
			t.offered[[2]int{layer, b}] = true
		}
		s.handle(offer)
	case op == 14 && s.d.below(2) == 0:
		if len(t.offered) == fuzzLayers*(fuzzBlocks-1) || s.d.below(8) == 0 {
			t.committed = true
			s.handle(sender.Commit{ID: t.id, Sampled: []int32{3}})
		}
	default:
		switch s.d.below(32) {
		case 0:
			s.handle(sender.Abort{ID: t.id})
		case 1:
			s.handle(sender.Close{})
		default:
			s.now = s.now.Add(100 * time.Millisecond)
			if next, ok := s.core.Next(); ok && s.d.below(32) == 0 {
				s.now = next
			}
			s.handle(sender.Tick{})
		}
	}
}

// answer is a message of the receiver, mostly a valid one.
func (s *session) answer(op int, t *fuzzTransfer) {
	stripe := 0
	m := new(kvtransferv1.ReceiverMessage)
	all := func(which [fuzzStripes]bool) bool { return !slices.Contains(which[:], false) }
	switch wild := s.d.below(64) == 63; {
	case op < 21:
		stripe = s.d.below(fuzzStripes)
		if n := s.used[stripe]; n > 0 && len(s.reading) == 0 {
			s.used[stripe] = 0
			m = grant(uint64(n))
		}
	case op < 26 && (t.openSent && !t.answered || wild):
		t.answered, m = true, accept(t.id)
	case op == 26 && (t.answered && s.d.below(8) == 0 || wild):
		m = failed(t.id)
	case op < 29 && (all(t.commits) || wild):
		m = committed(t.id)
	case op < 31 && (all(t.aborts) || wild):
		m = drained(t.id)
	case op == 31 && wild:
		n := min(s.d.below(64), len(s.d.data))
		if proto.Unmarshal(s.d.data[:n], m) != nil {
			return
		}
		s.used[0] -= int(min(m.GetGrant().GetCreditBytes(), uint64(s.used[0])))
	}
	if m.GetMessage() != nil || wildEmpty(s.d) {
		s.handle(sender.Received{Stripe: stripe, Message: m})
	}
}

func wildEmpty(d *dice) bool { return d.below(256) == 255 }

// FuzzSessions runs a fuzzed owner and receiver. No chunk has slices that were not offered,
// a slice twice, or more than the credit; nothing follows the last message on a stripe;
// every transfer ends once, with no pages being read.
func FuzzSessions(f *testing.F) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		data := make([]byte, 800)
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		credits := [fuzzStripes]int{fuzzCredit, fuzzCredit, fuzzCredit}
		s := &session{t: t, d: &dice{data}, now: start, credit: credits, core: sender.New(sender.Config{
			LayoutDigest: 9, Layers: fuzzLayers, SliceBytes: sliceBytes, CreditBytes: credits[:], MaxChunkBytes: fuzzChunk,
			AnswerTimeout: answerTimeout, IdleTimeout: time.Minute,
		}, start)}
		for len(s.d.data) > 0 {
			s.step()
		}
		s.handle(sender.StreamLost{Err: errors.New("over")})
		for len(s.reading) > 0 {
			s.read(0, nil)
		}
		for _, transfer := range s.transfers {
			if !transfer.ended {
				t.Errorf("%+v has not ended", transfer)
			}
		}
		if s.core.Transfers() != 0 {
			t.Errorf("%d transfers are left", s.core.Transfers())
		}
	})
}
