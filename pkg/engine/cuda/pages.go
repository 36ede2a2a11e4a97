package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/pageloans"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// copiers is how many copies between the host and pages run at once, and how many within
// the device: the rest of them wait their turn.
const copiers = 4

// pages is an engine.Pages in device memory, an engine.Lending among those of the same
// weights, and an engine.Staging. Copies are on streams of their own, which yield to the
// engine's. Those of the host never keep one within the device waiting. They go straight to
// and from staging buffers, and to and from other memory by way of a copier's buffer.
type pages struct {
	at     kvcache.PageMap
	device *driver.Device
	memory driver.Address
	idle   chan *copier // those that nobody uses
	movers chan *mover  // likewise
	book   *pageloans.Book[*pages]
	pace   *pace
	loss   *loss

	staging *staging // nil: the driver pins no memory that is not its own
	split   splitter

	closing chan struct{} // closed by free, so that nobody keeps it waiting
	once    sync.Once
	mu      sync.RWMutex // held to copy; held exclusively to free
	closed  bool
}

func newPages(w *Weights, layout kvcache.Layout, blocks int, loss *loss) (_ *pages, err error) {
	p := &pages{
		at: kvcache.PageMap{Layout: layout, Blocks: blocks}, device: w.device, idle: make(chan *copier, copiers), movers: make(chan *mover, copiers),
		book: w.book, pace: w.pace, loss: loss, split: newSplitter(), closing: make(chan struct{}),
	}
	bytes := int64(p.at.Bytes())
	if err := w.checkFree(bytes, fmt.Sprintf("%d KV blocks", blocks)); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%d KV blocks: %w", blocks, err), p.free())
		}
	}()
	if p.memory, err = w.device.Allocate(bytes); err != nil {
		return nil, err
	}
	for range copiers {
		c := newCopier(w.device)
		p.idle <- c
		if err := c.open(w.device, layout.SliceBytes); err != nil {
			return nil, err
		}
		m := newMover(w.device)
		p.movers <- m
		if err := m.open(w.device); err != nil {
			return nil, err
		}
	}
	if p.staging, err = newStaging(w.device, layout.SliceBytes); lost(err) {
		return nil, err
	}
	return p, nil // without staging buffers, copies only take longer
}

// Layout implements engine.Pages.
func (p *pages) Layout() kvcache.Layout { return p.at.Layout }

// View implements engine.Pages: pages are not host memory.
func (p *pages) View(int, kvcache.BlockID) []byte { return nil }

func (p *pages) slice(layer int, block kvcache.BlockID) driver.Address {
	l := p.at.Layout
	return p.memory + driver.Address(int64(block)*int64(l.PageBytes())+int64(layer)*int64(l.SliceBytes))
}

// rows are the slices of one layer of neighbouring blocks.
func (p *pages) rows(count int) driver.Rows {
	l := p.at.Layout
	if count == 1 { // pages may be larger than a pitch can be
		return driver.Rows{Count: 1, Bytes: l.SliceBytes, Pitch: l.SliceBytes}
	}
	return driver.Rows{Count: count, Bytes: l.SliceBytes, Pitch: l.PageBytes()}
}

// neighbours is how many of the first blocks lie one behind another, as rows of one copy.
func (p *pages) neighbours(blocks []kvcache.BlockID) int {
	n := 1
	for p.at.Layout.PageBytes() <= driver.MostPitch && n < len(blocks) && blocks[n] == blocks[n-1]+1 {
		n++
	}
	return n
}

// free gives the memory back; the second time it does nothing. Copies that run are waited
// for, those that wait for their pace give up.
func (p *pages) free() error {
	p.once.Do(func() { close(p.closing) })
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	if p.staging != nil {
		errs = append(errs, p.staging.close())
	}
	for range len(p.idle) {
		errs = append(errs, (<-p.idle).free())
	}
	for range len(p.movers) {
		errs = append(errs, (<-p.movers).free())
	}
	if p.memory != 0 {
		errs = append(errs, p.device.Free(p.memory))
	}
	return errors.Join(errs...)
}
