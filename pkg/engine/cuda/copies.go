package cuda

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// halfBytes is half of a copier's pinned buffer, or a slice if that is more: what is copied
// between pinned and other memory of the host while the device copies the other half. A
// chunk of a transfer is two of them.
const halfBytes = 512 << 10

// mover is a queue for copies. One goroutine uses it.
type mover struct {
	stream  *driver.Stream
	program *driver.Program
}

func newMover(v *driver.Device) *mover { return &mover{program: v.NewProgram()} }

func (m *mover) open(v *driver.Device) (err error) {
	m.stream, err = v.NewStream(driver.Low)
	return err
}

// free gives back what there is.
func (m *mover) free() (err error) {
	if m.stream != nil {
		err = m.stream.Close()
	}
	m.program.Free()
	return err
}

// copier moves slices between the device and the host.
type copier struct {
	mover
	half   int // bytes of the buffer's first half, and of its second
	buffer *driver.Host
	done   [2]*driver.Event // behind the copies of each half
}

func newCopier(v *driver.Device) *copier { return &copier{mover: *newMover(v)} }

// bufferBytes is a copier's buffer, for slices of this size.
func bufferBytes(slice int) int { return 2 * max(halfBytes, slice) }

func (c *copier) open(v *driver.Device, slice int) (err error) {
	c.half = bufferBytes(slice) / 2
	if c.buffer, err = v.AllocateHost(2 * c.half); err != nil {
		return err
	}
	for i := range c.done {
		if c.done[i], err = v.NewEvent(); err != nil {
			return err
		}
	}
	return c.mover.open(v)
}

// free gives back what there is.
func (c *copier) free() error {
	errs := []error{c.mover.free()}
	for _, e := range c.done {
		errs = append(errs, closeMade(e))
	}
	if c.buffer != nil {
		errs = append(errs, c.buffer.Free())
	}
	return errors.Join(errs...)
}

// part is a copier's half with slices in it: the i-th of a copy.
func (c *copier) part(i, bytes int) []byte { return c.buffer.Bytes()[i%2*c.half:][:bytes] }

// submit has the device copy the i-th part.
func (c *copier) submit(i int) error {
	c.program.Record(c.done[i%2])
	err := c.stream.Submit(c.program)
	c.program.Reset()
	return err
}

// Read implements engine.Pages.
func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	err := p.each(layer, blocks, len(dst), func(c *copier, i int, part []kvcache.BlockID, at int) error {
		slice := p.at.Layout.SliceBytes
		to := i % 2 * c.half
		for len(part) > 0 {
			n := p.neighbours(part)
			c.program.CopyRowsOut(c.buffer, to, p.slice(layer, part[0]), p.rows(n))
			part, to = part[n:], to+n*slice
		}
		return c.submit(i)
	}, func(c *copier, i, at, bytes int) error {
		if err := c.done[i%2].Synchronize(); err != nil {
			return err
		}
		copy(dst[at:], c.part(i, bytes))
		return nil
	})
	if err != nil {
		return fmt.Errorf("read KV pages: %w", err)
	}
	return nil
}

// Write implements engine.Pages.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	err := p.each(layer, blocks, len(src), func(c *copier, i int, part []kvcache.BlockID, at int) error {
		slice := p.at.Layout.SliceBytes
		copy(c.part(i, len(part)*slice), src[at:])
		from := i % 2 * c.half
		for len(part) > 0 {
			n := p.neighbours(part)
			c.program.CopyRowsIn(p.slice(layer, part[0]), c.buffer, from, p.rows(n))
			part, from = part[n:], from+n*slice
		}
		return c.submit(i)
	}, func(c *copier, i, _, _ int) error { return c.done[i%2].Synchronize() })
	if err != nil {
		return fmt.Errorf("write KV pages: %w", err)
	}
	return nil
}

// each copies slices, in parts of half a copier's buffer: begin gives one to the device,
// end waits for it. At most two parts are begun and not ended, and a part is ended before
// the one after the next, which has its half, is begun. All is checked before.
func (p *pages) each(layer int, blocks []kvcache.BlockID, bytes int,
	begin func(c *copier, i int, part []kvcache.BlockID, at int) error, end func(c *copier, i, at, bytes int) error,
) error {
	if err := p.at.CheckAll(layer, blocks, bytes); err != nil {
		return err
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return errClosed
	}
	if err := p.loss.err(); err != nil {
		return err
	}
	c := <-p.idle
	defer func() { p.idle <- c }()
	c.program.Reset()
	slice := p.at.Layout.SliceBytes
	most := c.half / slice
	copyAll := func() error {
		ended := 0 // parts
		for i, first := 0, 0; first < len(blocks); i, first = i+1, first+most {
			part := blocks[first:min(first+most, len(blocks))]
			if err := p.pace.wait(len(part)*slice, p.closing); err != nil {
				return err
			}
			if i >= 2 {
				if err := end(c, ended, ended*most*slice, most*slice); err != nil {
					return err
				}
				ended++
			}
			if err := begin(c, i, part, first*slice); err != nil {
				return err
			}
		}
		for ; ended*most < len(blocks); ended++ {
			n := min(most, len(blocks)-ended*most)
			if err := end(c, ended, ended*most*slice, n*slice); err != nil {
				return err
			}
		}
		return nil
	}
	if err := copyAll(); err != nil {
		return p.loss.after(err, c.stream) // nothing uses the buffer any more
	}
	return nil
}
