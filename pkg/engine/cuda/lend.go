package cuda

import (
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/pageloans"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

var _ engine.Lending = (*pages)(nil)

// Memory implements engine.Lending: it is the device memory of the engines that share
// weights.
func (p *pages) Memory() uint64 { return p.book.Memory() }

// Lend implements engine.Lending.
func (p *pages) Lend(layer int, blocks []kvcache.BlockID, ended func()) (uint64, error) {
	if err := p.at.CheckAll(layer, blocks, len(blocks)*p.at.Layout.SliceBytes); err != nil {
		return 0, fmt.Errorf("lend KV pages: %w", err)
	}
	return p.book.Lend(pageloans.Loan[*pages]{From: p, Layer: layer, Blocks: blocks, Ended: ended}), nil
}

// Recall implements engine.Lending.
func (p *pages) Recall(loan uint64) { p.book.Recall(loan) }

// Take implements engine.Lending. The copy is within the device.
func (p *pages) Take(loan uint64, layer int, blocks []kvcache.BlockID) error {
	lent, open := p.book.Take(loan)
	if !open {
		return fmt.Errorf("take KV pages: %w", engine.ErrNotLent)
	}
	defer lent.Ended()
	if err := p.take(lent, layer, blocks); err != nil {
		return fmt.Errorf("take KV pages: %w", err)
	}
	return nil
}

func (p *pages) take(lent *pageloans.Loan[*pages], layer int, blocks []kvcache.BlockID) error {
	from := lent.From
	if err := p.at.CheckAll(layer, blocks, len(blocks)*p.at.Layout.SliceBytes); err != nil {
		return err
	}
	if from.at.Layout != p.at.Layout || lent.Layer != layer || len(lent.Blocks) != len(blocks) {
		return fmt.Errorf("%d slices of layer %d were lent, but %d of layer %d are requested", len(lent.Blocks), lent.Layer, len(blocks), layer)
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errClosed
	}
	if from != p {
		// Without waiting: two that take from each other while both are freed would wait
		// for ever.
		if !from.mu.TryRLock() {
			return fmt.Errorf("the lender is %w", errClosed)
		}
		defer from.mu.RUnlock()
		if from.closed {
			return fmt.Errorf("the lender is %w", errClosed)
		}
	}
	m := <-p.movers
	defer func() { p.movers <- m }()
	m.program.Reset()
	for source := lent.Blocks; len(blocks) > 0; {
		n := min(p.neighbours(blocks), from.neighbours(source))
		m.program.CopyRows(p.slice(layer, blocks[0]), from.slice(layer, source[0]), p.rows(n))
		blocks, source = blocks[n:], source[n:]
	}
	if err := m.stream.Run(m.program); err != nil {
		return p.loss.after(err, m.stream)
	}
	return nil
}
