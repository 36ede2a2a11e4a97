package cuda

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// halfBytes is half of a copier's pinned buffer, or a slice if that is more: what is copied
// between pinned and other memory of the host while the device copies the other half. A
// chunk of a transfer is two of them. What is in a staging buffer needs neither.
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

// add appends the copies of some slices of one layer, which lie one behind another in pinned
// memory.
type add func(p *driver.Program, slices driver.Address, host *driver.Host, at int, rows driver.Rows)

func copyOut(p *driver.Program, slices driver.Address, host *driver.Host, at int, rows driver.Rows) {
	p.CopyRowsOut(host, at, slices, rows)
}

func copyIn(p *driver.Program, slices driver.Address, host *driver.Host, at int, rows driver.Rows) {
	p.CopyRowsIn(slices, host, at, rows)
}

// add appends copies, as few as there can be.
func (p *pages) add(to *driver.Program, one add, layer int, blocks []kvcache.BlockID, host *driver.Host, at int) {
	for len(blocks) > 0 {
		n := p.neighbours(blocks)
		one(to, p.slice(layer, blocks[0]), host, at, p.rows(n))
		blocks, at = blocks[n:], at+n*p.at.Layout.SliceBytes
	}
}

// Read implements engine.Pages.
func (p *pages) Read(layer int, blocks []kvcache.BlockID, dst []byte) error {
	err := p.copy(layer, blocks, len(dst), func(c *copier) error {
		if at, staged := p.staging.offset(dst); staged {
			return p.direct(c, copyOut, layer, blocks, at)
		}
		return p.each(c, blocks, func(i int, part []kvcache.BlockID, _ int) error {
			p.add(c.program, copyOut, layer, part, c.buffer, i%2*c.half)
			return c.submit(i)
		}, func(i, at, bytes int) error {
			if err := c.done[i%2].Synchronize(); err != nil {
				return err
			}
			p.split.copy(dst[at:], c.part(i, bytes))
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read KV pages: %w", err)
	}
	return nil
}

// Write implements engine.Pages.
func (p *pages) Write(layer int, blocks []kvcache.BlockID, src []byte) error {
	err := p.copy(layer, blocks, len(src), func(c *copier) error {
		if at, staged := p.staging.offset(src); staged {
			return p.direct(c, copyIn, layer, blocks, at)
		}
		return p.each(c, blocks, func(i int, part []kvcache.BlockID, at int) error {
			bytes := len(part) * p.at.Layout.SliceBytes
			p.split.copy(c.part(i, bytes), src[at:at+bytes])
			p.add(c.program, copyIn, layer, part, c.buffer, i%2*c.half)
			return c.submit(i)
		}, func(i, _, _ int) error { return c.done[i%2].Synchronize() })
	})
	if err != nil {
		return fmt.Errorf("write KV pages: %w", err)
	}
	return nil
}

// copy checks all, and then copies with a copier. When it returns, the device is done, also
// after an error.
func (p *pages) copy(layer int, blocks []kvcache.BlockID, bytes int, do func(c *copier) error) error {
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
	if err := do(c); err != nil {
		return p.loss.after(err, c.stream)
	}
	return nil
}

// direct copies slices to or from a staging buffer, at an offset of the memory of all: no
// more than a buffer holds, so that it is one part.
func (p *pages) direct(c *copier, one add, layer int, blocks []kvcache.BlockID, at int) error {
	if err := p.pace.wait(len(blocks)*p.at.Layout.SliceBytes, p.closing); err != nil {
		return err
	}
	p.add(c.program, one, layer, blocks, p.staging.host, at)
	return c.stream.Run(c.program)
}

// each copies slices, in parts of half a copier's buffer: begin gives one to the device,
// end waits for it. At most two parts are begun and not ended, and a part is ended before
// the one after the next, which has its half, is begun.
func (p *pages) each(c *copier, blocks []kvcache.BlockID,
	begin func(i int, part []kvcache.BlockID, at int) error, end func(i, at, bytes int) error,
) error {
	slice := p.at.Layout.SliceBytes
	most := c.half / slice
	ended := 0 // parts
	for i, first := 0, 0; first < len(blocks); i, first = i+1, first+most {
		part := blocks[first:min(first+most, len(blocks))]
		if err := p.pace.wait(len(part)*slice, p.closing); err != nil {
			return err
		}
		if i >= 2 {
			if err := end(ended, ended*most*slice, most*slice); err != nil {
				return err
			}
			ended++
		}
		if err := begin(i, part, first*slice); err != nil {
			return err
		}
	}
	for ; ended*most < len(blocks); ended++ {
		n := min(most, len(blocks)-ended*most)
		if err := end(ended, ended*most*slice, n*slice); err != nil {
			return err
		}
	}
	return nil
}
