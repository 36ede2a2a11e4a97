package hostpages

// TakePiece is takePiece.
func (p *Pages) TakePiece(end int64) bool { return p.takePiece(end) }

// Taken is how many bytes are taken.
func (p *Pages) Taken() int64 { return p.taken.Load() }

// Taking says whether a thread takes memory.
func (p *Pages) Taking() bool { return p.taking.Load() }
