package offload

import (
	"errors"
	"slices"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// wanted has a prefix fetched if that is quicker than computing it.
func (c *Core) wanted(w Wanted) {
	until := len(w.Hashes)
	answer := Answer{ID: w.ID}
	if w.Cached >= until || c.using[w.ID] != nil {
		c.act(answer)
		return
	}
	if c.now.Before(c.speeds.avoidedUntil(w.Store.ID, fetching)) {
		c.act(CountFetch{FetchBackingOff})
		c.act(answer)
		return
	}
	limit, worth := c.cost(w).worth(w.PromptTokens, w.Cached, until)
	if !worth {
		c.act(CountFetch{FetchDeclined})
		c.act(answer)
		return
	}
	key := asked{first: w.Hashes[w.Cached], store: w.Store.ID, epoch: w.Store.Epoch}
	u := &user{wanted: w, began: c.now, until: until, due: c.now.Add(limit)}
	if f := c.joining[key]; f != nil {
		// It is worth what it brings of this prompt.
		u.until = common(w.Prefix.Tokens, f.prefix.Tokens) / c.config.BlockTokens
		if limit, worth = c.cost(w).worth(w.PromptTokens, w.Cached, u.until); !worth {
			c.act(CountFetch{FetchDeclined})
			c.act(answer)
			return
		}
		c.act(CountFetch{FetchJoined})
		u.joined, u.due = true, c.now.Add(limit)
		c.join(u, f)
		return
	}
	if c.closed {
		c.act(CountFetch{FetchDraining})
		c.act(answer)
		return
	}
	// With all blocks of the prompt left to others, the prompt can be computed while a fetch
	// that hangs still has its blocks; with those behind what is fetched only, should the fetch
	// fail then, the prompt waits until nothing of it can land any more, for two leases of the
	// receiver at the most.
	whole := kvcache.BlocksFor(w.PromptTokens, c.config.BlockTokens)
	f := &fetch{id: w.Fetch, asked: key, store: w.Store, prefix: w.Prefix, hashes: w.Hashes, began: c.now, least: whole - until}
	c.fetches[f.id], c.joining[key] = f, f
	c.join(u, f)
	c.act(Restore{Fetch: f.id, Prefix: f.prefix, Hashes: f.hashes, Spare: whole - w.Cached})
}

func (c *Core) cost(w Wanted) fetchCost {
	return fetchCost{
		Model: w.Model, BytesPerSecond: c.speeds.bytesPerSecond(w.Store.ID, c.now),
		PageBytes: c.config.PageBytes, BlockTokens: c.config.BlockTokens, ChunkTokens: c.config.ChunkTokens,
	}
}

// common is how many leading tokens are the same.
func common(a, b []int32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func (c *Core) join(u *user, f *fetch) {
	u.fetch = f
	f.users++
	c.using[u.wanted.ID] = u
	c.waiting = append(c.waiting, u)
}

func (c *Core) restored(e Restored) {
	f := c.fetches[e.Fetch]
	if f == nil {
		return
	}
	held := e.CachedTokens / c.config.BlockTokens
	f.blocks = len(e.Blocks) - held
	f.wanted = uint64(c.config.PageBytes) * uint64(f.blocks)
	c.act(StartFetch{Fetch: f.id, Store: f.store, Prefix: f.prefix, Blocks: e.Blocks, Held: held})
	if f.cause != nil { // meanwhile
		c.act(StopFetch{f.id})
	}
}

func (c *Core) notRestored(e NotRestored) {
	f := c.fetches[e.Fetch]
	if f == nil {
		return
	}
	result := FetchNoBlocks
	if e.Draining {
		result = FetchDraining
	}
	if least := f.least; !e.Draining && least > 0 && f.cause == nil {
		f.least = 0
		c.act(Restore{Fetch: f.id, Prefix: f.prefix, Hashes: f.hashes, Spare: least})
		return
	}
	c.act(CountFetch{result})
	delete(c.fetches, f.id)
	c.forget(f)
	for _, u := range c.usersOf(f) {
		c.drop(u)
		c.act(Answer{ID: u.wanted.ID})
	}
}

func (c *Core) usersOf(f *fetch) (all []*user) {
	for _, u := range c.waiting {
		if u.fetch == f {
			all = append(all, u)
		}
	}
	return all
}

// fetchEnded tells those who wait. If all have left, what was fetched is let go.
func (c *Core) fetchEnded(e FetchEnded) {
	f := c.fetches[e.Fetch]
	if f == nil {
		return
	}
	f.over, f.bytes, f.outcome = true, e.Bytes, e.Outcome
	delete(c.fetches, f.id)
	c.forget(f)
	took, store := c.now.Sub(f.began), f.store.ID
	if e.Outcome.Err == nil {
		f.landed = true
		c.lost = !c.holds(f.store) || c.lost
		c.act(Publish{Fetch: f.id, From: store, Blocks: f.blocks, Bytes: e.Bytes, Took: took})
		c.speeds.fetched(store, e.Bytes, took, c.now)
		if f.users == 0 {
			c.act(Release{f.id})
		}
	} else {
		c.act(Release{f.id})
		switch {
		case f.cause == nil:
			c.speeds.note(store, fetching, e.Outcome, c.now)
		case errors.Is(f.cause, errTooSlow):
			f.outcome = Outcome{Err: f.cause, Result: FetchSlow, State: Failing}
		default:
			f.outcome = Outcome{Err: f.cause, Result: FetchAbandoned}
		}
		c.act(CountFetch{f.outcome.Result})
	}
	for _, u := range c.usersOf(f) {
		c.answer(u, f.outcome.Err)
	}
}

// answer ends the wait of a user: with what was fetched, which it holds until Left, or
// without.
func (c *Core) answer(u *user, err error) {
	f, from := u.fetch, u.wanted.Cached*c.config.BlockTokens
	a := Answer{ID: u.wanted.ID, Tried: true, From: from, Until: from, Took: c.now.Sub(u.began), Err: err}
	if !u.joined {
		a.Verdict = verdict(err, f.outcome)
	}
	c.waiting = slices.DeleteFunc(c.waiting, func(o *user) bool { return o == u })
	if err == nil {
		a.Until = u.until * c.config.BlockTokens
		if !u.joined {
			a.Bytes = f.bytes
		}
	} else {
		delete(c.using, u.wanted.ID)
		f.users--
	}
	c.act(a)
}

// verdict is what the router is told of a store that was asked.
func verdict(err error, outcome Outcome) workerv1.FetchVerdict {
	switch {
	case err == nil:
		return workerv1.FetchVerdict_FETCH_VERDICT_GIVEN
	case errors.Is(err, ErrAbandoned), errors.Is(err, errClosing):
		return workerv1.FetchVerdict_FETCH_VERDICT_UNSPECIFIED
	case !errors.Is(err, errTooSlow) && outcome.State == Healthy:
		return workerv1.FetchVerdict_FETCH_VERDICT_STALE
	}
	return workerv1.FetchVerdict_FETCH_VERDICT_FAILED
}

// giveUp ends the wait of one user. The last one ends the fetch.
func (c *Core) giveUp(u *user, cause error) {
	f := u.fetch
	c.answer(u, cause)
	if f.users == 0 && !f.over {
		c.stop(f, cause)
	}
}

// stop ends a fetch that runs.
func (c *Core) stop(f *fetch, cause error) {
	if f.cause != nil {
		return
	}
	f.cause = cause
	c.forget(f) // nobody joins what is ending
	if errors.Is(cause, errTooSlow) {
		c.speeds.tooSlow(f.store.ID, f.wanted, c.now.Sub(f.began), c.now)
	}
	c.act(StopFetch{f.id})
}

// left takes a user out, whether it waits or holds what was fetched.
func (c *Core) left(id scheduler.SequenceID) {
	u := c.using[id]
	if u == nil {
		return
	}
	c.drop(u)
	switch f := u.fetch; {
	case f.users > 0:
	case !f.over:
		c.stop(f, ErrAbandoned)
	case f.landed:
		c.act(Release{f.id})
	}
}

func (c *Core) drop(u *user) {
	delete(c.using, u.wanted.ID)
	c.waiting = slices.DeleteFunc(c.waiting, func(o *user) bool { return o == u })
	u.fetch.users--
}

// forget lets nobody join a fetch.
func (c *Core) forget(f *fetch) {
	if c.joining[f.asked] == f {
		delete(c.joining, f.asked)
	}
}
