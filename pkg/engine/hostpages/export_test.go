package hostpages

import "runtime"

// TakePiece is takePiece.
func (p *Pages) TakePiece(start, end int64) bool { return p.takePiece(start, end) }

// Taken is how many bytes are taken.
func (p *Pages) Taken() int64 { return p.taken.Load() }

// Taking reports whether more are being taken.
func (p *Pages) Taking() bool {
	if !p.taking.TryLock() {
		return true
	}
	p.taking.Unlock()
	return false
}

// WaitForTaker waits until none are.
func (p *Pages) WaitForTaker() {
	for p.Taking() {
		runtime.Gosched()
	}
}
