package routing

import (
	"slices"

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

// IndexedBlocks is how many different blocks the prefix index holds.
func (rt *Router) IndexedBlocks() int { return rt.index.Len() }

// ForgottenBlocks is how many blocks the prefix index has forgotten so far because they were too
// many: workers hold them, and no prompt is drawn to them.
func (rt *Router) ForgottenBlocks() uint64 { return rt.index.Forgotten() }

func (w *worker) blockKey() BlockKey {
	return BlockKey{w.version, w.blockTokens}
}

// prefix is how many of a request's blocks each worker had cached at one search.
type prefix struct {
	hashes   []kvcache.Hash
	cached   map[string]int
	expected []expectedMatch // what is expected of them
	search   uint64          // its number
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
		p = &prefix{cached: make(map[string]int)}
		s.entry.prefixes[key] = p
	}
	if p.search != s.number {
		rt.index.MatchInto(p.cached, hashes)
		if h := s.request.Holder; h != (Ref{}) {
			if w := rt.worker(h); w != nil && w.blockKey() == key {
				p.cached[h.ID] = len(hashes)
			}
		}
		p.expected = rt.expected.meet(p.expected[:0], s.now, hashes)
		p.hashes, p.search = hashes, s.number
	}
	return p
}

// cached is how many tokens of the prompt w holds. The last token is always
// computed: the first sampled one comes from it.
func (rt *Router) cached(s *search, w *worker) int {
	p := rt.prefix(s, w)
	if p == nil || len(p.cached) == 0 {
		return 0
	}
	return min(rt.reportedBlocks(s.now, w, p.cached[w.ref.ID])*w.blockTokens, max(s.request.Tokens-1, 0))
}
