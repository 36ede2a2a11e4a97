package hostpages

import (
	"runtime"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// The first write to a page of memory waits until the kernel has found and cleared it: 2 MiB at a
// time take 0.1 ms to 5 ms, on a virtual machine whose host has to find them too, and all that
// decode wait as well. So memory is taken a little ahead of its use, by a thread of low priority.

const (
	// aheadBytes is how much is taken ahead, if at most half of it is left.
	aheadBytes = 32 << 20
	// pieceBytes is what one call takes: it keeps the process from mapping memory meanwhile.
	pieceBytes = 2 << 20
)

// Reached says that a block is used now. Blocks of higher numbers come next: memory for some of them
// is taken in the background. It does not wait.
func (p *Pages) Reached(block kvcache.BlockID) {
	page := int64(p.at.Layout.PageBytes())
	end := (int64(block) + 1) * page
	if min(end+aheadBytes/2, int64(p.at.Blocks)*page) <= p.taken.Load() || !p.taking.CompareAndSwap(false, true) {
		return
	}
	go p.take(end + aheadBytes)
}

// take takes memory up to an end, as far as there is some.
func (p *Pages) take(end int64) {
	// The thread ends with the goroutine, which does not unlock it: nothing else gets its priority.
	runtime.LockOSThread()
	yields()
	for p.takePiece(end) {
	}
	p.taking.Store(false)
}

// takePiece takes the next piece, and reports whether there is more to take.
func (p *Pages) takePiece(end int64) (more bool) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	from := p.taken.Load()
	if end = min(end, int64(len(p.memory))); from >= end {
		return false
	}
	to := min(from+pieceBytes, int64(len(p.memory)))
	if err := populate(p.memory[from:to]); err != nil {
		to = 1 << 62 // the kernel cannot, or has no memory: it is taken at the first write
	}
	p.taken.Store(to)
	return to < end
}
