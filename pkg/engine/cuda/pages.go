package cuda

import (
	"errors"
	"fmt"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// A copier's pinned buffer, and how many copiers there are: so many transfers copy at
// once, and the rest of them wait their turn.
const (
	copierBytes = 4 << 20
	copiers     = 4
)

// pages is an engine.Pages in device memory. Copies go by pinned memory on streams of
// their own, which yield to the engine's.
type pages struct {
	at     kvcache.PageMap
	device *driver.Device
	memory driver.Address
	idle   chan *copier // those that nobody uses
	loss   *loss

	mu     sync.RWMutex // held to copy; held exclusively to free
	closed bool
}

// copier moves slices between the device and the host. One goroutine uses it.
type copier struct {
	stream  *driver.Stream
	buffer  *driver.Host
	program *driver.Program
}

func newPages(w *Weights, layout kvcache.Layout, blocks int, loss *loss) (_ *pages, err error) {
	p := &pages{at: kvcache.PageMap{Layout: layout, Blocks: blocks}, device: w.device, idle: make(chan *copier, copiers), loss: loss}
	bytes := int64(p.at.Bytes())
	if err := w.checkRoom(bytes, fmt.Sprintf("%d KV blocks", blocks)); err != nil {
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
		c := &copier{program: w.device.NewProgram()}
		p.idle <- c
		if c.buffer, err = w.device.AllocateHost(max(copierBytes, layout.SliceBytes)); err != nil {
			return nil, err
		}
		if c.stream, err = w.device.NewStream(driver.Low); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Layout implements engine.Pages.
func (p *pages) Layout() kvcache.Layout { return p.at.Layout }

// View implements engine.Pages: pages are not host memory.
func (p *pages) View(int, kvcache.BlockID) []byte { return nil }

// Read implements engine.Pages.
func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	err := p.each(layer, blocks, len(dst), func(c *copier, blocks []kvcache.BlockID, at int) error {
		slice := p.at.Layout.SliceBytes
		for i, b := range blocks {
			c.program.CopyOut(c.buffer, i*slice, p.slice(layer, b), slice)
		}
		if err := c.stream.Run(c.program); err != nil {
			return err
		}
		copy(dst[at:], c.buffer.Bytes()[:len(blocks)*slice])
		return nil
	})
	if err != nil {
		return fmt.Errorf("read KV pages: %w", err)
	}
	return nil
}

// Write implements engine.Pages.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	err := p.each(layer, blocks, len(src), func(c *copier, blocks []kvcache.BlockID, at int) error {
		slice := p.at.Layout.SliceBytes
		copy(c.buffer.Bytes()[:len(blocks)*slice], src[at:])
		for i, b := range blocks {
			c.program.CopyIn(p.slice(layer, b), c.buffer, i*slice, slice)
		}
		return c.stream.Run(c.program)
	})
	if err != nil {
		return fmt.Errorf("write KV pages: %w", err)
	}
	return nil
}

// each visits slices, as many at once as a copier holds, after it has checked all of
// them.
func (p *pages) each(layer int, blocks []kvcache.BlockID, bytes int, visit func(c *copier, blocks []kvcache.BlockID, at int) error) error {
	if err := p.at.CheckAll(layer, blocks, bytes); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errClosed
	}
	c := <-p.idle
	defer func() { p.idle <- c }()
	most := len(c.buffer.Bytes()) / p.at.Layout.SliceBytes
	for first := 0; first < len(blocks); first += most {
		c.program.Reset()
		if err := visit(c, blocks[first:min(first+most, len(blocks))], first*p.at.Layout.SliceBytes); err != nil {
			return p.loss.after(err, c.stream) // nothing uses the buffer any more
		}
	}
	return nil
}

func (p *pages) slice(layer int, block kvcache.BlockID) driver.Address {
	l := p.at.Layout
	return p.memory + driver.Address(int64(block)*int64(l.PageBytes())+int64(layer)*int64(l.SliceBytes))
}

// free gives the memory back; the second time it does nothing.
func (p *pages) free() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var errs []error
	for range len(p.idle) {
		c := <-p.idle
		if c.stream != nil {
			errs = append(errs, c.stream.Close())
		}
		if c.buffer != nil {
			errs = append(errs, c.buffer.Free())
		}
		c.program.Free()
	}
	if p.memory != 0 {
		errs = append(errs, p.device.Free(p.memory))
	}
	return errors.Join(errs...)
}
