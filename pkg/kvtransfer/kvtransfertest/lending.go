package kvtransfertest

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/pageloans"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// NewDevice returns a constructor of pages of one device (one memory). They lend each other
// slices and otherwise behave like those of NewPages.
func NewDevice() (newPages func(layout kvcache.Layout, blocks int) *Pages) {
	book := pageloans.NewBook[*Pages]()
	return func(layout kvcache.Layout, blocks int) *Pages {
		p := NewPages(layout, blocks)
		p.book = book
		return p
	}
}

// Memory implements engine.Lending.
func (p *Pages) Memory() uint64 {
	if p.book == nil {
		return 0
	}
	return p.book.Memory()
}

// Lend implements engine.Lending.
func (p *Pages) Lend(layer int, blocks []kvcache.BlockID, ended func()) (uint64, error) {
	if fault := p.fault.Load(); fault != nil {
		return 0, *fault
	}
	if err := p.at.CheckAll(layer, blocks, len(blocks)*p.at.Layout.SliceBytes); err != nil {
		return 0, err
	}
	return p.book.Lend(pageloans.Loan[*Pages]{From: p, Layer: layer, Blocks: blocks, Ended: ended}), nil
}

// Recall implements engine.Lending.
func (p *Pages) Recall(loan uint64) { p.book.Recall(loan) }

// Take implements engine.Lending. It reads the lender's pages and writes its own, as Read
// and Write do.
func (p *Pages) Take(loan uint64, layer int, blocks []kvcache.BlockID) error {
	lent, open := p.book.Take(loan)
	if !open {
		return engine.ErrNotLent
	}
	defer lent.Ended()
	if lent.Layer != layer || len(lent.Blocks) != len(blocks) {
		return fmt.Errorf("%d slices of layer %d were lent, but %d of layer %d are requested", len(lent.Blocks), lent.Layer, len(blocks), layer)
	}
	buffer := make([]byte, len(blocks)*p.at.Layout.SliceBytes)
	if err := lent.From.Read(layer, lent.Blocks, buffer); err != nil {
		return err
	}
	return p.Write(layer, blocks, buffer)
}
