package kvcache

import "unique"

// Invalidate takes held blocks whose KV is wrong out of the cache, and with them all that is
// published behind them, which was computed from it. Nobody finds them any more; who holds
// them goes on with them, and once nobody does they are quarantined until Drained: see
// Invalidated.
func (p *Pool) Invalidate(blocks []BlockID) {
	for _, id := range blocks {
		if !p.isHeld(id) {
			p.stats.Misuses++
			continue
		}
		p.invalidate(id)
	}
}

func (p *Pool) invalidate(id BlockID) {
	for p.blocks[id].generation != 0 {
		leaf := id
		for p.blocks[leaf].child != none {
			leaf = p.blocks[leaf].child
		}
		p.unpublish(leaf)
		p.blocks[leaf].invalid = true
		if p.blocks[leaf].refs == 0 {
			p.vacate(leaf)
		}
	}
	p.blocks[id].invalid = true
}

// vacate frees a block that nobody holds and that is not published, or quarantines it if
// what it holds must not be read.
func (p *Pool) vacate(id BlockID) {
	if !p.blocks[id].invalid {
		p.free = append(p.free, id)
		return
	}
	p.blocks[id].quarantined = true
	p.stats.Quarantined++
	p.invalid = append(p.invalid, id)
}

// Invalidated gives the invalid blocks that nobody holds any more and that it did not give
// before, for their owner to overwrite and then say Drained. The slice is the caller's.
func (p *Pool) Invalidated() []BlockID {
	blocks := p.invalid
	p.invalid = nil
	return blocks
}

// SetOrigin notes who computed what held blocks hold: the pool only keeps it, for as long
// as they hold that.
func (p *Pool) SetOrigin(blocks []BlockID, origin string) {
	var handle unique.Handle[string]
	if origin != "" {
		handle = unique.Make(origin)
	}
	for _, id := range blocks {
		if !p.isHeld(id) {
			p.stats.Misuses++
			continue
		}
		p.blocks[id].origin = handle
	}
}

// Origin is what SetOrigin noted of a block since it was allocated; "": nothing.
func (p *Pool) Origin(id BlockID) string {
	if !p.valid(id) || p.blocks[id].origin == (unique.Handle[string]{}) {
		return ""
	}
	return p.blocks[id].origin.Value()
}
