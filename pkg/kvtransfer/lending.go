package kvtransfer

import (
	"fmt"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// lendingOf is pages that can lend their slices; nil: they cannot.
func lendingOf(pages engine.Pages) engine.Lending {
	if lending, can := pages.(engine.Lending); can && lending.Memory() != 0 {
		return lending
	}
	return nil
}

// encoding is how a ticket's slices go, and the size of one of them, 0 for that of the
// pages: lent, where the receiver's pages are in the same memory.
func (s *Sender) encoding(ticket *kvtransferv1.Ticket) (e kvtransferv1.Encoding, sliceBytes int) {
	if s.lending != nil && ticket.GetMemory() == s.lending.Memory() {
		return kvtransferv1.Encoding_ENCODING_LENT, 0
	}
	return s.codings.choose(ticket.GetEncoding())
}

// shipment is a chunk as the codec takes it. It is used again once its pages were
// read.
type shipment struct {
	wire.Outbound
	conn  *connection
	chunk *sender.WriteChunk
	loan  uint64 // 0: its slices are not lent
	// holds are those who still need it: the codec, and the loan.
	holds int
}

// ship makes of a chunk what the codec takes; nil: it cannot be lent, and the core knows.
// c.mu is held.
func (c *connection) ship(w *sender.WriteChunk) *wire.Outbound {
	var s *shipment
	if last := len(c.idle) - 1; last >= 0 {
		s, c.idle = c.idle[last], c.idle[:last]
	} else {
		s = &shipment{conn: c}
		s.Pages, s.Released = c.sender.pages, s.encoded
	}
	s.chunk, s.holds = w, 1
	s.Chunk, s.Blocks, s.Coding = w.Chunk, w.Blocks, c.sender.codings.of(w.Encoding)
	if w.Encoding == kvtransferv1.Encoding_ENCODING_LENT {
		if err := c.lend(s); err != nil {
			s.drop(err)
			return nil
		}
	}
	return &s.Outbound
}

// lend lends the slices of a shipment. c.mu is held.
func (c *connection) lend(s *shipment) error {
	loan, err := c.sender.lending.Lend(int(s.Chunk.Layer), s.Blocks, s.returned)
	if err != nil {
		return fmt.Errorf("lend: %w", err)
	}
	s.loan, s.Chunk.Loan = loan, loan
	s.holds++
	c.loans[loan] = s
	return nil
}

// recall has what a transfer has lent be recalled by the goroutine that keeps the time: a
// loan's end takes c.mu, which is held here.
func (c *connection) recall(id uint64) {
	for loan, s := range c.loans {
		if s.chunk.ID == id {
			c.recalls = append(c.recalls, loan)
		}
	}
	poke(c.alarm.wake)
}

// recallDue recalls. It must be called without c.mu.
func (c *connection) recallDue() {
	c.mu.Lock()
	due := c.recalls
	c.recalls = nil
	c.mu.Unlock()
	for _, loan := range due {
		c.sender.lending.Recall(loan)
	}
}

// awaitLoans waits for those that are being taken, which is for copies of the device.
func (c *connection) awaitLoans() {
	c.recallDue()
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.loans) > 0 {
		c.returned.Wait()
	}
}

// encoded says that the codec does not need the shipment any more.
func (s *shipment) encoded(err error) {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.drop(err)
}

// returned says that what was lent was taken or recalled.
func (s *shipment) returned() {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.loans, s.loan)
	if len(c.loans) == 0 {
		c.returned.Broadcast()
	}
	s.drop(nil)
}

// drop ends one of the holds. After the last it tells the core that the chunk's pages are
// not read any more. c.mu is held.
func (s *shipment) drop(err error) {
	if s.holds--; s.holds > 0 {
		return
	}
	c := s.conn
	if t := c.transfers[s.chunk.ID]; t != nil && err == nil {
		t.stats.Chunks++
		t.stats.Bytes += uint64(s.chunk.Chunk.PayloadBytes)
	}
	c.apply(c.core.HandlePagesRead(time.Now(), sender.PagesRead{Chunk: s.chunk, Err: err}))
	s.chunk, s.loan = nil, 0
	c.idle = append(c.idle, s)
}
