package protocolmodeltest_test

import (
	"errors"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
)

// loan is a chunk of lent slices, until they are taken or recalled.
type loan struct {
	from  *source
	chunk *sender.WriteChunk
}

// shipLent lends a chunk's slices and puts it on its stream, like the sender's driver.
func (w *world) shipLent(s *session, st *stripe, chunk *sender.WriteChunk, fail bool) {
	if o := s.transfers[chunk.ID]; fail || o.recalled {
		w.toSender(s, sender.PagesRead{Chunk: chunk, Err: errors.New("not lent")})
		return
	}
	// As far apart as random ids.
	w.lastLoan++
	number := w.lastLoan * 0x9e3779b97f4a7c15
	w.loans[number] = &loan{from: &source{w: w, s: s}, chunk: chunk}
	out := &wire.Outbound{Chunk: chunk.Chunk}
	out.Chunk.Loan = number
	w.putUp(s, st, out)
	st.unread = append(st.unread, chunk)
}

// readable is the index of the first chunk of a stripe whose reading may end, -1 if none:
// lent slices must be taken or recalled first.
func (w *world) readable(st *stripe) int {
	for i, chunk := range st.unread {
		if !w.isLent(chunk) {
			return i
		}
	}
	return -1
}

func (w *world) isLent(chunk *sender.WriteChunk) bool {
	for _, l := range w.loans {
		if l.chunk == chunk {
			return true
		}
	}
	return false
}

// recall ends a transfer's loans.
func (w *world) recall(s *session, id uint64) {
	o := s.transfers[id]
	if o == nil || o.ended {
		w.fatalf("transfer %d: recalled after %+v", id, o)
	}
	o.recalled = true
	for number, l := range w.loans {
		if l.from.s == s && l.chunk.ID == id {
			if w.healthy {
				w.fatalf("transfer %d: what nobody took is recalled", id)
			}
			delete(w.loans, number)
		}
	}
}

// forgetLoans drops the loans of a dead process.
func (w *world) forgetLoans(s *session) {
	for number, l := range w.loans {
		if l.from.s == s {
			delete(w.loans, number)
		}
	}
}

// Memory implements engine.Lending.
func (p *target) Memory() uint64 { return 1 }

// Lend implements engine.Lending.
func (p *target) Lend(int, []kvcache.BlockID, func()) (uint64, error) {
	return 0, errors.New("nothing to lend")
}

// Recall implements engine.Lending.
func (p *target) Recall(uint64) {}

// Take implements engine.Lending. It fails the test if it reads released pages or writes
// blocks of another owner.
func (p *target) Take(number uint64, layer int, blocks []kvcache.BlockID) error {
	l := p.w.loans[number]
	if l == nil {
		return engine.ErrNotLent
	}
	defer delete(p.w.loans, number)
	if layer != int(l.chunk.Chunk.Layer) || len(blocks) != len(l.chunk.Blocks) {
		return errors.New("other slices than were lent")
	}
	for i, b := range blocks {
		copy(p.slice(layer, b), l.from.slice(layer, l.chunk.Blocks[i]))
	}
	return nil
}
