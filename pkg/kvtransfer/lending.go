package kvtransfer

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/coreloop"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/receiver"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/sender"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// lendingOf returns pages as engine.Lending, or nil if they cannot lend.
func lendingOf(pages engine.Pages) engine.Lending {
	if lending, can := pages.(engine.Lending); can && lending.Memory() != 0 {
		return lending
	}
	return nil
}

// encoding returns the encoding of a ticket's slices and the bytes of one, 0 for those of
// the pages. Slices are lent if the receiver's pages are in the same memory, and written into
// them if they are mapped and the receiver does not ask for fewer bits.
func (c *connection) encoding(ticket *kvtransferv1.Ticket) (e kvtransferv1.Encoding, sliceBytes int) {
	s := c.sender
	if s.lending != nil && ticket.GetMemory() == s.lending.Memory() {
		return kvtransferv1.Encoding_ENCODING_LENT, 0
	}
	e, sliceBytes = s.codings.choose(ticket.GetEncoding())
	if c.mapping != nil && c.mapAgain.IsZero() && e == kvtransferv1.Encoding_ENCODING_NATIVE && ticket.GetBlocks() <= receiver.MaxSharedBlocks {
		e = kvtransferv1.Encoding_ENCODING_SHARED
	}
	return e, sliceBytes
}

// chunkInFlight is a chunk prepared for the codec. It is reused once its pages have been read.
type chunkInFlight struct {
	wire.Outbound
	conn  *connection
	chunk *sender.WriteChunk
	loan  uint64  // 0: not lent
	into  *window // nil: not written into mapped pages
	// holds counts its users: the codec and the loan.
	holds int
}

// ship prepares a chunk for the codec. If its slices cannot be lent, it tells the core and
// returns nil. Requires c.loop.
func (c *connection) ship(w *sender.WriteChunk) *wire.Outbound {
	var s *chunkInFlight
	if last := len(c.idle) - 1; last >= 0 {
		s, c.idle = c.idle[last], c.idle[:last]
	} else {
		s = &chunkInFlight{conn: c}
		s.Pages, s.Released = c.sender.pages, s.encoded
	}
	s.chunk, s.holds = w, 1
	s.Chunk, s.Blocks, s.Coding = w.Chunk, w.Blocks, c.sender.codings[w.Encoding]
	s.Into, s.Targets, s.Stored = nil, s.Targets[:0], s.Stored[:0]
	switch w.Encoding {
	case kvtransferv1.Encoding_ENCODING_LENT:
		if err := c.lend(s); err != nil {
			s.drop(err)
			return nil
		}
	case kvtransferv1.Encoding_ENCODING_SHARED:
		s.into = c.windows[w.ID]
		s.into.writing++
		s.Into = s.into.mapping
		s.Targets, s.Stored = s.into.targets(s.Targets, s.Stored, int(w.Chunk.Layer), w.Chunk.Runs)
	}
	return &s.Outbound
}

// lend lends the slices of a chunkInFlight. Requires c.loop.
func (c *connection) lend(s *chunkInFlight) error {
	loan, err := c.sender.lending.Lend(int(s.Chunk.Layer), s.Blocks, s.returned)
	if err != nil {
		return fmt.Errorf("lend: %w", err)
	}
	s.loan, s.Chunk.Loan = loan, loan
	s.holds++
	c.loans[loan] = s
	return nil
}

// recall schedules the recall of a transfer's loans after the caller's unlock of c.loop,
// which the end of a loan locks. Requires c.loop.
func (c *connection) recall(id uint64) {
	for loan, s := range c.loans {
		if s.chunk.ID == id {
			c.loop.After(func() { c.sender.lending.Recall(loan) })
		}
	}
}

// awaitLoans waits until the receiver's copies out of lent pages have ended.
func (c *connection) awaitLoans() {
	c.loop.Lock()
	defer c.loop.Unlock()
	for len(c.loans) > 0 {
		c.returned.Wait()
	}
}

// encoded is called when the codec is done with the chunkInFlight.
func (s *chunkInFlight) encoded(err error) {
	s.conn.loop.Lock()
	defer s.conn.loop.Unlock()
	s.drop(err)
}

// returned is called when the loan was taken or recalled.
func (s *chunkInFlight) returned() {
	c := s.conn
	c.loop.Lock()
	defer c.loop.Unlock()
	delete(c.loans, s.loan)
	if len(c.loans) == 0 {
		c.returned.Broadcast()
	}
	s.drop(nil)
}

// drop releases one hold. After the last it tells the core that the chunk's pages are no
// longer read. Requires c.loop.
func (s *chunkInFlight) drop(err error) {
	if s.holds--; s.holds > 0 {
		return
	}
	c := s.conn
	if s.into != nil {
		s.into.writing--
		s.into = nil
	}
	if t := c.transfers[s.chunk.ID]; t != nil && err == nil {
		t.stats.Chunks++
		t.stats.Bytes += uint64(s.chunk.Chunk.PayloadBytes)
		for _, stored := range s.Stored {
			if stored {
				t.stats.Stored += uint64(c.sender.cfg.Layout.SliceBytes)
			}
		}
	}
	coreloop.Step(c.loop, (*sender.Core).HandlePagesRead, sender.PagesRead{Chunk: s.chunk, Err: err})
	s.chunk, s.loan = nil, 0
	c.idle = append(c.idle, s)
}
