package kvtransfer

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/wire"
	kvtransferv1 "github.com/tandem-serving/tandem/proto/tandem/kvtransfer/v1"
)

// window is the blocks of one transfer in the receiver's pages. It is open from Accept until the
// transfer's last Commit or Abort.
type window struct {
	mapping MappedPages
	pages   []kvcache.BlockID
	held    int // blocks of the reservation before them
	writing int // chunks in progress; guarded by connection.loop

	mu         sync.Mutex // held across a change
	open, shut bool
	storedFrom []int      // of each page: the layer from which on engines write it, so that no chunk has to
	engines    int        // that write
	left       *sync.Cond // on mu: no engine writes any more
}

// notStored is the layer of pages that no engine writes.
const notStored = math.MaxInt

// newWindow takes the pages of an Accept.
func newWindow(mapping MappedPages, held int, pages []uint32) *window {
	w := &window{mapping: mapping, held: held, pages: make([]kvcache.BlockID, len(pages)), storedFrom: slices.Repeat([]int{notStored}, len(pages))}
	w.left = sync.NewCond(&w.mu)
	for i, page := range pages {
		w.pages[i] = kvcache.BlockID(page) // one that is out of range stays so
	}
	return w
}

// targets appends the pages of runs, and in which of them an engine has stored a layer.
func (w *window) targets(targets []kvcache.BlockID, stored []bool, layer int, runs []wire.Run) ([]kvcache.BlockID, []bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range runs {
		first := int(r.First) - w.held
		end := first + int(r.Blocks)
		targets = append(targets, w.pages[first:end]...)
		for _, from := range w.storedFrom[first:end] {
			stored = append(stored, from <= layer)
		}
	}
	return targets, stored
}

// openPages allows that the transfer's blocks are written, unless its end has begun.
func (w *window) openPages() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shut {
		return nil // nothing will be written
	}
	if err := w.mapping.Open(w.pages); err != nil {
		return fmt.Errorf("open the receiver's pages: %w", err)
	}
	w.open = true
	return nil
}

// shutPages ends that, once no engine writes any more: that takes as long as one layer's keys and
// values at most. No chunk may be in progress.
func (w *window) shutPages() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shut = true
	for w.engines > 0 {
		w.left.Wait()
	}
	if !w.open {
		return nil
	}
	w.open = false
	if err := w.mapping.Shut(w.pages); err != nil {
		return fmt.Errorf("shut the receiver's pages: %w", err)
	}
	return nil
}

// shutPages ends the writes of a transfer before its Commit or Abort is sent, once no writer
// writes for it any more. That is so at the latest before the message of the last stripe: each
// writer sends its own after its last chunk.
func (c *connection) shutPages(m *kvtransferv1.SenderMessage) error {
	id := m.GetCommit().GetTransferId()
	if a := m.GetAbort(); a != nil {
		id = a.GetTransferId()
	}
	c.loop.Lock()
	w := c.windows[id]
	if w == nil || w.writing > 0 {
		c.loop.Unlock()
		return nil
	}
	delete(c.windows, id)
	c.loop.Unlock()
	return w.shutPages()
}

// shutAll ends the writes of all transfers, once the session's writers have ended.
func (c *connection) shutAll() {
	c.loop.Lock()
	windows := c.windows
	c.windows = nil
	c.loop.Unlock()
	for _, w := range windows {
		_ = w.shutPages() // the mapping is closed next
	}
}

// Mirror is where an engine can store n blocks from firstBlock on itself, which are an index into the
// reservation and, of the Mirror, into the sequence's table. What it stores there is not copied: Send
// then only announces it. Send must not have offered these blocks before. Nil unless slices are
// written into the receiver's pages.
func (t *Transfer) Mirror(firstBlock, n int) engine.Mirror {
	if t.window == nil || firstBlock < t.window.held || n <= 0 || firstBlock+n > t.window.held+len(t.window.pages) {
		return nil
	}
	return &mirror{window: t.window, first: firstBlock - t.window.held, n: n}
}

// mirror is an engine.Mirror of a window's pages from first on.
type mirror struct {
	*window
	first, n int
}

// Hold implements engine.Mirror.
func (m *mirror) Hold(layer int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shut || !m.open {
		return false
	}
	for i := range m.n {
		m.storedFrom[m.first+i] = min(m.storedFrom[m.first+i], layer)
	}
	m.engines++
	return true
}

// Release implements engine.Mirror.
func (m *mirror) Release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.engines--; m.engines == 0 {
		m.left.Broadcast()
	}
}

// View implements engine.Mirror.
func (m *mirror) View(layer, block int) []byte {
	if i := block - m.held; i >= m.first && i < m.first+m.n {
		return m.mapping.View(layer, m.pages[i])
	}
	return nil
}
