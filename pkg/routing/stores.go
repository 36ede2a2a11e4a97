package routing

import (
	"slices"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"
)

// Block stores are in the view and in the index like workers, and no request goes
// to them. What they hold is a hint: a prefill worker is told where it may find
// blocks, decides by what it measured, and computes if it gets none.

// fetchBaseMs is what a fetch takes beside moving the bytes: the call, the transfer's
// opening and its end.
const fetchBaseMs = 1.0

// fetchLeastTokens is what a fetch has to save at least, for the worker to be told
// of it: under two blocks of the usual size nothing is worth another round trip.
const fetchLeastTokens = 64

// How long a store is left alone from which a worker fetched in vain: it may be
// hung, and every request that is sent there waits in turn.
const (
	unfetchedLeast = 250 * time.Millisecond
	unfetchedMost  = 30 * time.Second
)

// source is a block store that has more of a prompt than a worker.
type source struct {
	store  *worker // nil: none has more
	blocks int     // leading blocks of the prompt that it announced
	tokens int     // of the prompt, those that the worker lacks
	ms     float64 // how long the worker takes to fetch them
}

// How what a worker fetched is remembered.
const (
	// fetchWeight is what a fetch weighs after the next one.
	fetchWeight = 0.8
	// fetchForget is how long what was measured stands: a store that was slow once is
	// predicted anew then.
	fetchForget = time.Minute
	// fetchLeastMs and fetchMostMs bound the time of a token, whatever a worker says.
	fetchLeastMs, fetchMostMs = 1e-6, 1e3
)

// fetchSpeed is how fast a worker fetches: sums over its fetches, so that long ones,
// which say more of the bandwidth, count for more.
type fetchSpeed struct {
	tokens, ms float64
	at         time.Time // of the last one
}

// measure takes in a fetch. One that is mostly its round trips says nothing.
func (s *fetchSpeed) measure(now time.Time, tokens int, took time.Duration) {
	ms := milliseconds(took) - fetchBaseMs
	if tokens < fetchLeastTokens || ms <= 0 {
		return
	}
	if now.Sub(s.at) > fetchForget {
		s.tokens, s.ms = 0, 0
	}
	s.tokens, s.ms, s.at = fetchWeight*s.tokens+float64(tokens), fetchWeight*s.ms+ms, now
}

// perToken is how long a token takes, milliseconds; assumed where nothing was measured.
func (s *fetchSpeed) perToken(now time.Time, assumed float64) float64 {
	if s.tokens == 0 || now.Sub(s.at) > fetchForget {
		return assumed
	}
	return min(max(s.ms/s.tokens, fetchLeastMs), fetchMostMs)
}

// source is the store that has the most for w, which has cached tokens of the
// prompt itself. The last token is always computed, so that a block with nothing
// else in it is of no use.
func (rt *Router) source(s *search, w *worker, cached int) source {
	var best source
	digest := w.layoutDigest
	if len(rt.stores) == 0 || digest == 0 {
		return best
	}
	p := rt.prefix(s, w)
	if p == nil {
		return best
	}
	size := w.blockTokens
	for _, store := range rt.stores {
		blocks := rt.reportedBlocks(s.now, store, p.cached[store.ref.ID])
		if store.layoutDigest != digest || !store.answersFetches(s.now) || blocks <= best.blocks {
			continue
		}
		useful := min(blocks, (s.request.Tokens-1)/size)
		if tokens := useful*size - cached; tokens >= fetchLeastTokens {
			best = source{store: store, blocks: blocks, tokens: tokens}
		}
	}
	best.ms = fetchBaseMs + float64(best.tokens)*w.fetches.perToken(s.now, rt.transferMs(s.now, w, 1))
	return best
}

// answersFetches reports whether a store can be asked for blocks.
func (w *worker) answersFetches(now time.Time) bool {
	return w.connected && serves(w.record) && !now.Before(w.busyUntil)
}

// prefillMs is how long it takes to compute the prompt after cached tokens, and how many
// of its tokens it fetches instead because that is quicker.
func (s steps) prefillMs(tokens, cached int, from source) (ms float64, fetched int) {
	ms = s.ms(tokens-cached, cached)
	if from.store == nil {
		return ms, 0
	}
	have := cached + from.tokens
	if quicker := from.ms + s.ms(tokens-have, have); quicker < ms {
		return quicker, from.tokens
	}
	return ms, 0
}

// hint is what a prefill worker is told of a source; nil if there is none.
func (s source) hint() *workerv1.BlockSource {
	if s.store == nil {
		return nil
	}
	return &workerv1.BlockSource{
		WorkerId: s.store.ref.ID, Epoch: s.store.ref.Epoch,
		Addresses: slices.Clone(s.store.record.GetAddresses()), Blocks: uint32(s.blocks),
	}
}

// fetched takes in what came of a hint. One that was old says nothing of the store:
// its announcements follow.
func (rt *Router) fetched(now time.Time, e Fetched) {
	if w := rt.worker(e.Worker); w != nil && e.Verdict == workerv1.FetchVerdict_FETCH_VERDICT_GIVEN {
		w.fetches.measure(now, e.Tokens, e.Took)
	}
	s := rt.worker(e.Store)
	switch {
	case s == nil || !s.isStore():
	case e.Verdict == workerv1.FetchVerdict_FETCH_VERDICT_GIVEN:
		s.refusals, s.busyUntil = 0, time.Time{}
	case e.Verdict == workerv1.FetchVerdict_FETCH_VERDICT_FAILED:
		s.busyUntil = now.Add(doubling(unfetchedLeast, s.refusals, unfetchedMost))
		rt.waking.leave(s)
		s.refusals++
	}
}
