package hostpages

import "github.com/tandem-serving/tandem/pkg/kvcache"

// The first write to a page of memory waits until the kernel has found and cleared it. For 2 MiB that
// takes 0.1 ms, or up to 5 ms on a virtual machine whose host has to find the memory too. All
// sequences of the step wait. So memory is taken a little ahead of its use.

const (
	// aheadBytes is how far ahead memory is taken, once no more than half of that is left.
	aheadBytes = 8 << 20
	// pieceBytes is what one call takes: until it returns, the process cannot map memory.
	pieceBytes = 2 << 20
	// allTaken is beyond the end of any pages: nothing is left to take.
	allTaken = 1 << 62
)

// Reached says that n blocks are used now, of which last is the last. Memory for as many up to it, and for
// those of the next higher numbers, is taken in the background. It returns at once.
func (p *Pages) Reached(last kvcache.BlockID, n int) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.memory != nil {
		p.reached(last, n)
	}
}

// reached is Reached for callers that hold mu.
func (p *Pages) reached(last kvcache.BlockID, n int) {
	page := int64(p.at.Layout.PageBytes())
	end := (int64(last) + 1) * page
	if min(end+aheadBytes/2, int64(p.at.Blocks)*page) <= p.taken.Load() || !p.taking.TryLock() {
		return
	}
	go func() {
		defer p.taking.Unlock()
		for p.takePiece(end-int64(n)*page, end+aheadBytes) {
		}
	}()
}

// takePiece takes the next piece of the bytes from start to end, and reports whether there is more to
// take. What lies below start may never be used.
func (p *Pages) takePiece(start, end int64) (more bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	from := max(p.taken.Load(), start)
	if end = min(end, int64(len(p.memory))); from >= end {
		return false
	}
	to := min(from+pieceBytes, int64(len(p.memory)))
	if err := populate(p.memory[from:to]); err != nil {
		to = allTaken // the kernel cannot, or has none: it is taken at the first write
	}
	p.taken.Store(to)
	return to < end
}
