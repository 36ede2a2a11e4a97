package routing

import (
	"slices"
	"time"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// BlockKey is what the hashes of a prompt's blocks depend on beside its tokens and salt.
type BlockKey struct {
	Version     Version
	BlockTokens int
}

// maxBlockKeys bounds for how many a prompt is hashed: a mesh has one or two.
const maxBlockKeys = 16

// BlockKeys is what a request for a model has to have Hashes for: those of the workers that
// it may go to. Version is Request.Version.
func (rt *Router) BlockKeys(model string, version Version) (keys []BlockKey) {
	served := []Version{version}
	if version == (Version{}) {
		served = rt.Served(model)
	}
	of := rt.model(model)
	for _, w := range rt.kinds() {
		key := w.blockKey()
		if key.BlockTokens == 0 || !w.of(of) || len(served) > 0 && !slices.Contains(served, key.Version) {
			continue
		}
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
		if len(keys) == maxBlockKeys {
			break
		}
	}
	return keys
}

// Prefixes are the blocks that the prefix index holds for a worker, in no order, and whether
// it is in sync with the worker's events.
func (rt *Router) Prefixes(id string) (blocks []kvcache.Hash, inSync bool) {
	return rt.index.Blocks(id), rt.index.InSync(id)
}

func (w *worker) blockKey() BlockKey {
	return BlockKey{w.version(), w.blockTokens}
}

// prefix is how many of a request's blocks each worker held at one search.
type prefix struct {
	held   map[string]int
	search uint64 // its number
}

// prefix is the request's block hashes as w has them, and who holds how many of
// them; nil if none are known.
func (rt *Router) prefix(s *search, w *worker) *prefix {
	key := w.blockKey()
	if key == s.key {
		return s.prefix
	}
	s.key = key
	s.prefix = rt.prefixOf(s, key)
	return s.prefix
}

func (rt *Router) prefixOf(s *search, key BlockKey) *prefix {
	if key.Version != s.version || key.BlockTokens == 0 {
		return nil
	}
	hashes, known := s.request.Hashes[key]
	if !known && s.request.Hash != nil {
		// It came while the request waited.
		hashes = s.request.Hash(key)
		if s.request.Hashes == nil {
			s.request.Hashes = make(map[BlockKey][]kvcache.Hash)
		}
		s.request.Hashes[key] = hashes
	}
	if len(hashes) == 0 {
		return nil
	}
	p := s.entry.prefixes[key]
	if p == nil {
		p = &prefix{held: make(map[string]int)}
		s.entry.prefixes[key] = p
	}
	if p.search != s.number {
		rt.index.MatchInto(p.held, hashes)
		p.search = s.number
	}
	return p
}

// cached is how many tokens of the prompt w holds. The last token is always
// computed: the first sampled one comes from it.
func (rt *Router) cached(s *search, w *worker) int {
	p := rt.prefix(s, w)
	if p == nil || len(p.held) == 0 {
		return 0
	}
	return min(p.held[w.ref.ID]*w.blockTokens, max(s.request.Tokens-1, 0))
}

// blocks takes in a KV event.
func (rt *Router) blocks(now time.Time, event *controlv1.KvEvent) {
	origin := event.GetOrigin()
	w := rt.worker(Ref{origin.GetId(), origin.GetEpoch()})
	if w == nil {
		return
	}
	if !rt.index.Apply(w.ref.ID, w.ref.Epoch, origin.GetSequence(), hashes(event.GetStored()), hashes(event.GetRemoved())) {
		// Forged events make gaps too, so a gap is followed by a pause.
		w.unlisted, w.gap = true, true
		rt.workersDue.known = false
		if w.gapNext.After(w.listNext) {
			w.listNext = w.gapNext
		}
		rt.list(now, w)
	}
}

// list asks for a worker's prefix cache if it is wanted.
func (rt *Router) list(now time.Time, w *worker) {
	if w.unlisted && w.connected && !w.listing && !now.Before(w.listNext) {
		w.listing = true
		if w.gap {
			w.gap, w.gapNext = false, now.Add(listRetry)
		}
		rt.out = append(rt.out, ListBlocks{w.ref})
	}
}

// listRetry is how long after a ListBlocks that failed or did not suffice the
// next one is sent; each that fails doubles it, up to listRetryMost.
const (
	listRetry     = time.Second
	listRetryMost = time.Minute
)

// listed takes in the answer to ListBlocks. It says whether the worker turned out
// to be another one.
func (rt *Router) listed(now time.Time, e BlocksListed) (lost bool) {
	w := rt.worker(e.Worker)
	if w == nil {
		return false
	}
	w.listing = false
	switch {
	case e.Response == nil:
		w.listNext = now.Add(doubling(listRetry, w.listFailures, listRetryMost))
		w.listFailures++
	case e.Response.GetEpoch() != w.ref.Epoch:
		rt.disconnect(now, w)
		return true
	default:
		rt.snapshot(now, w, e.Response)
	}
	return false
}

// snapshot takes in a worker's prefix cache.
func (rt *Router) snapshot(now time.Time, w *worker, blocks *workerv1.ListBlocksResponse) {
	w.listFailures = 0
	w.unlisted = !rt.index.Snapshot(w.ref.ID, w.ref.Epoch, blocks.GetSequence(), hashes(blocks.GetBlockHashes()))
	if w.unlisted {
		w.listNext = now.Add(listRetry)
	}
}

func hashes(words []uint64) []kvcache.Hash {
	out := make([]kvcache.Hash, len(words))
	for i, w := range words {
		out[i] = kvcache.Hash(w)
	}
	return out
}
