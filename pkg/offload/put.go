package offload

import (
	"hash/fnv"
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// known says which stores there are. Those that hold blocks of another layout are of use only
// if there are no others: one of them may take this one.
func (c *Core) known(stores []Store) {
	for id, had := range c.has {
		if i := slices.IndexFunc(stores, func(s Store) bool { return c.keeps(s, had) }); i >= 0 {
			c.has[id] = stores[i]
			continue
		}
		delete(c.has, id)
		c.lost = true
	}
	fit := slices.DeleteFunc(slices.Clone(stores), func(s Store) bool { return !c.fits(s) })
	if len(fit) == 0 {
		fit = slices.Clone(stores)
	}
	c.stores = fit
}

// fits reports whether a store holds blocks of this worker's layout, or of none.
func (c *Core) fits(s Store) bool {
	return s.LayoutDigest == 0 || s.LayoutDigest == c.config.LayoutDigest
}

// keeps reports whether a store is one that was there before, and still has the blocks that it had then.
// Until it says that it took this worker's layout, it has the one of before.
func (c *Core) keeps(s, before Store) bool {
	return s.ID == before.ID && s.Epoch == before.Epoch && (c.fits(s) || s.LayoutDigest == before.LayoutDigest)
}

func (c *Core) save(e Save) {
	to, ok := c.choose(e.First)
	if !ok || c.closed {
		result := PutNoStore
		if c.closed {
			result = PutStopped
		}
		c.act(CountPut{Result: result})
		c.act(Saved{ID: e.ID})
		return
	}
	c.puts = append(c.puts, &put{id: e.ID, store: to, began: c.now})
	c.act(StartPut{ID: e.ID, Store: to})
}

// choose is the store of a prefix that begins with a block: always the same while the same
// stores are there, so that a chain of blocks is on one.
func (c *Core) choose(first kvcache.Hash) (to Store, ok bool) {
	var best uint64
	for _, s := range c.stores {
		if c.now.Before(c.speeds.avoidedUntil(s.ID, putting)) {
			continue
		}
		if weight := rendezvous(s.ID, first); !ok || weight > best {
			to, best, ok = s, weight, true
		}
	}
	return to, ok
}

// rendezvous is a store's weight for a block: highest random weight hashing, after Thaler and
// Ravishankar.
func rendezvous(store string, block kvcache.Hash) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(store)) // it never fails
	x := h.Sum64() ^ uint64(block)
	// The finalizer of SplitMix64: without it, stores would be ordered alike for most blocks.
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (c *Core) stopSave(id scheduler.SaveID) {
	for _, p := range c.puts {
		switch {
		case p.id != id || p.stopped:
		case !p.again.IsZero(): // it waits for its second try
			c.endPut(p, PutEnded{ID: id, Outcome: Outcome{Result: PutStopped}}, false)
			return
		default:
			p.stopped = true
			c.act(StopPut{id})
		}
	}
}

func (c *Core) putEnded(e PutEnded) {
	i := slices.IndexFunc(c.puts, func(p *put) bool { return p.id == e.ID })
	if i < 0 {
		return
	}
	p := c.puts[i]
	switch {
	case e.Outcome.Result == PutNotFinite:
		c.endPut(p, e, false)
	case e.Outcome.Err == nil || e.Outcome.Result == PutHeld:
		c.speeds.note(p.store.ID, putting, e.Outcome, c.now)
		c.endPut(p, e, true)
	case p.stopped:
		e.Outcome.Result = PutStopped
		c.endPut(p, e, false)
	case e.Outcome.Again > 0 && !p.retried && c.now.Add(e.Outcome.Again).Before(p.began.Add(PutTimeout)):
		p.retried, p.again = true, c.now.Add(e.Outcome.Again)
	default:
		c.speeds.note(p.store.ID, putting, e.Outcome, c.now)
		c.endPut(p, e, false)
	}
}

func (c *Core) endPut(p *put, e PutEnded, saved bool) {
	c.puts = slices.DeleteFunc(c.puts, func(o *put) bool { return o == p })
	saved = saved && c.holds(p.store) // one that has restarted meanwhile has lost it
	c.act(CountPut{Result: e.Outcome.Result, Bytes: e.Bytes})
	c.act(Saved{ID: p.id, Saved: saved, NotFinite: e.Outcome.Result == PutNotFinite})
}

// holds notes that a store has blocks of this worker, and reports whether it is still there and keeps them.
func (c *Core) holds(store Store) bool {
	i := slices.IndexFunc(c.stores, func(s Store) bool { return c.keeps(s, store) })
	if i >= 0 {
		c.has[store.ID] = c.stores[i]
	}
	return i >= 0
}

// limit tells the scheduler how many puts there may be, if that has changed or a store is gone: none
// while every store is to be left alone.
func (c *Core) limit() {
	puts := 0
	for _, s := range c.stores {
		if !c.closed && !c.now.Before(c.speeds.avoidedUntil(s.ID, putting)) {
			puts = c.config.Puts
		}
	}
	if puts != c.limited || c.lost {
		c.act(Limit{Saves: puts, Anew: c.lost})
		c.limited, c.lost = puts, false
	}
}
