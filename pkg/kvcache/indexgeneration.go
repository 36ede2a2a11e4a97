package kvcache

import "slices"

// generation is a set of blocks that a worker holds.
type generation struct {
	slot  int
	first place // head of its list; noPlace if that is empty
	// retired means that it no longer counts.
	retired bool
}

// generation makes a generation that is not yet the current one of a worker.
func (x *Index) generation() *generation {
	g := &generation{slot: len(x.names), first: noPlace}
	if n := len(x.freeSlots); n > 0 {
		g.slot, x.freeSlots = x.freeSlots[n-1], x.freeSlots[:n-1]
		x.bySlot[g.slot] = g
	} else {
		x.names, x.bySlot = append(x.names, ""), append(x.bySlot, g)
	}
	return g
}

// unknow drops all knowledge of a worker.
func (x *Index) unknow(w *indexWorker) {
	w.synced = false
	x.retire(&w.current)
}

// retire ends a generation. sweep clears its blocks later.
func (x *Index) retire(of **generation) {
	if g := *of; g != nil {
		x.names[g.slot], g.retired = "", true
		x.retired = append(x.retired, g)
		*of = nil
	}
}

// sweep clears up to the given number of blocks in the lists of retired generations, and looks at up
// to as many sets: each once for all generations whose lists were empty when it began with the first.
func (x *Index) sweep(blocks int) {
	for left := blocks; left > 0 && len(x.retired) > 0; left-- {
		if g := x.retired[0]; g.first != noPlace {
			x.clear(g, int32(g.first/2))
		} else {
			x.unlisted = append(x.unlisted, g)
			x.retired = slices.Delete(x.retired, 0, 1)
		}
	}
	for left := blocks; left > 0 && len(x.unlisted)+len(x.swept) > 0; left-- {
		switch {
		case len(x.swept) == 0:
			x.swept, x.unlisted, x.sweptSets = append(x.swept, x.unlisted...), x.unlisted[:0], 0
			clear(x.sweptSlots)
			for _, g := range x.swept {
				x.sweptSlots.set(g.slot)
			}
		case x.sweptSets < x.sharingTaken:
			s := x.sharer(x.sweptSets)
			if x.sweptSets++; s.holders.unsetAll(x.sweptSlots) && s.holders.empty() {
				x.forget(s.entry)
			}
		default:
			for _, g := range x.swept {
				x.bySlot[g.slot] = nil
				x.freeSlots = append(x.freeSlots, g.slot)
			}
			x.swept = x.swept[:0]
		}
	}
}
