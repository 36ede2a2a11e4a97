package kvcache

import "slices"

// generation is a set of blocks that a worker holds.
type generation struct {
	slot  int
	first place // head of its list; noPlace if that is empty
	// retired means that it no longer counts; swept entries of Index.sharing were cleared of it.
	retired bool
	swept   int32
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

// sweep clears up to the given number of blocks of retired generations.
func (x *Index) sweep(blocks int) {
	for ; blocks > 0 && len(x.retired) > 0; blocks-- {
		switch g := x.retired[0]; {
		case g.first != noPlace:
			x.clear(g, int32(g.first/2))
		case g.swept < x.sharingTaken:
			if s := x.sharer(g.swept); s.holders.has(g.slot) {
				x.clear(g, s.entry)
			}
			g.swept++
		default:
			x.bySlot[g.slot] = nil
			x.freeSlots = append(x.freeSlots, g.slot)
			x.retired = slices.Delete(x.retired, 0, 1)
		}
	}
}
