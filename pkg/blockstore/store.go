// Package blockstore decides what a shared block store does with its blocks: which are
// held, which arrive, which are being read, and which are evicted. It is plain
// state without goroutines, locks, clocks or I/O, over a kvcache.Pool, and is not
// safe for concurrent use.
//
// services/kvtransfer and simulate drive it; pkg/kvtransfer/storeclient says its verdicts on
// the network.
package blockstore

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Limits of a store whose flags nobody changed.
const (
	DefaultPuts    = 256
	DefaultFetches = 64
)

// Limits bound what happens at a time.
type Limits struct {
	// Puts are those that have not ended, quarantined ones included.
	Puts int
	// Fetches are those that have not ended.
	Fetches int
}

// PutID names a put. No two of a Store have the same.
type PutID uint64

// FetchID names a fetch. No two of a Store have the same.
type FetchID uint64

// Verdict is what becomes of an offer or of a read.
type Verdict int

// The verdicts.
const (
	// Taken: it goes on.
	Taken Verdict = iota
	// Held: all blocks are there already.
	Held
	// Arriving: another put brings the first block that lacks.
	Arriving
	// Missing: not all blocks are there.
	Missing
	// Full: not enough free blocks at the moment.
	Full
	// TooLarge: more blocks than there are.
	TooLarge
	// Busy: as many are under way as the limits allow.
	Busy
)

// Put is blocks that were offered.
type Put struct {
	ID PutID
	// Blocks are the pages of all blocks of the prefix, in order. Whoever brings the
	// others may write those, until Committed or Drained.
	Blocks []kvcache.BlockID
	// Held is how many leading blocks are there already. They are not written.
	Held int
}

// Fetch is blocks that are being read.
type Fetch struct {
	ID FetchID
	// Blocks are the pages, in order. They do not change until Done.
	Blocks []kvcache.BlockID
}

// Prefix is the tokens of whole blocks, under a salt, with their hashes.
type Prefix struct {
	salt   string
	tokens []int32
	hashes []kvcache.Hash
}

// NewPrefix hashes the first most blocks, no more of which a Store has. That takes
// long where they are many, and needs no Store: callers hold no lock meanwhile.
// tokens are kept.
func NewPrefix(layout kvcache.Layout, most int, salt string, tokens []int32) Prefix {
	first := tokens
	if blocks := len(tokens) / layout.BlockTokens; blocks > most {
		first = tokens[:most*layout.BlockTokens]
	}
	return Prefix{salt, tokens, kvcache.PromptHashes(layout.ModelDigest, layout.ArithmeticClass, salt, first, layout.BlockTokens)}
}

// Store is the blocks of one layout.
type Store struct {
	pool     *kvcache.Pool
	limits   Limits
	puts     map[PutID]*put
	arriving map[kvcache.Hash]struct{} // blocks that puts bring
	fetches  map[FetchID][]kvcache.BlockID
	last     uint64
	kept     uint64
	layout   kvcache.Layout
}

// put is one that has not ended.
type put struct {
	prefix Prefix
	brings []kvcache.Hash // the blocks that it brings
	blocks []kvcache.BlockID
	held   int
	failed bool // what it was to bring is in quarantine, and what was held released
}

// New is an empty store of blocks pages, one at least.
func New(blocks int, layout kvcache.Layout, limits Limits) *Store {
	return &Store{
		pool:     kvcache.NewPool(blocks, layout.BlockTokens, layout.ModelDigest, layout.ArithmeticClass),
		limits:   limits,
		puts:     make(map[PutID]*put),
		arriving: make(map[kvcache.Hash]struct{}),
		fetches:  make(map[FetchID][]kvcache.BlockID),
		layout:   layout,
	}
}

// Offer reserves pages for the blocks of a prefix that lack, evicting those that were
// not used for longest if it has to. p has one block at least. Unless the verdict is
// Taken nothing has changed but the order of eviction.
//
// What arrives may take half of the blocks, so that offers which come to nothing
// do not empty the store; the only one may take all.
func (s *Store) Offer(p Prefix) (Put, Verdict) {
	total := len(p.tokens) / s.layout.BlockTokens
	if total > s.pool.Total() {
		return Put{}, TooLarge
	}
	hashes := p.hashes
	found, _ := s.pool.MatchHashes(nil, p.salt, hashes, p.tokens)
	held := len(found)
	s.pool.Release(found)
	switch {
	case held == total:
		return Put{}, Held
	case s.brings(hashes[held]):
		return Put{}, Arriving
	case len(s.puts) >= s.limits.Puts:
		return Put{}, Busy
	}
	stats := s.pool.Stats()
	if under := stats.Reserved + stats.Quarantined; under > 0 && under+total-held > stats.Total/2 {
		return Put{}, Full
	}
	blocks, held, _, ok := s.pool.Acquire(p.salt, hashes, p.tokens, total)
	if !ok {
		return Put{}, Full
	}
	s.pool.Reserve(blocks[held:])
	for _, hash := range hashes[held:] {
		s.arriving[hash] = struct{}{}
	}
	s.last++
	id := PutID(s.last)
	s.puts[id] = &put{prefix: p, brings: hashes[held:], blocks: blocks, held: held}
	return Put{ID: id, Blocks: slices.Clone(blocks), Held: held}, Taken
}

func (s *Store) brings(hash kvcache.Hash) bool {
	_, is := s.arriving[hash]
	return is
}

// Committed says that all blocks of a put came and were right: from now on
// they are found. The put has ended.
func (s *Store) Committed(id PutID) {
	p := s.puts[id]
	if p == nil || p.failed {
		return
	}
	s.end(id)
	s.pool.Arrived(p.blocks[p.held:])
	// The place to go on may have moved: what was held can have left the cache
	// meanwhile, without having been given away.
	size := s.layout.BlockTokens
	published := s.pool.Stats().Published
	found, chain := s.pool.MatchHashes(nil, p.prefix.salt, p.prefix.hashes, p.prefix.tokens)
	for i := len(found); i < len(p.blocks); i++ {
		chain = s.pool.PublishHashed(chain, p.blocks[i], p.prefix.tokens[i*size:(i+1)*size], p.prefix.hashes[i])
	}
	s.kept += uint64(s.pool.Stats().Published - published)
	s.pool.Release(found)
	s.pool.Release(p.blocks)
}

// Failed says that a put ends without commit. Its blocks may still be
// written: nobody gets them until Drained.
func (s *Store) Failed(id PutID) {
	p := s.puts[id]
	if p == nil || p.failed {
		return
	}
	p.failed = true
	s.forget(p)
	s.pool.Quarantine(p.blocks[p.held:])
	s.pool.Release(p.blocks[:p.held])
}

// Drained says that nothing of a put will be written any more, whether or not
// Failed came before. The put has ended.
func (s *Store) Drained(id PutID) {
	p := s.end(id)
	if p == nil {
		return
	}
	if p.failed {
		s.pool.Drained(p.blocks[p.held:])
		return
	}
	s.pool.Release(p.blocks)
}

// end takes a put out of the table.
func (s *Store) end(id PutID) *put {
	p := s.puts[id]
	if p == nil {
		return nil
	}
	delete(s.puts, id)
	s.forget(p)
	return p
}

// forget lets others bring what a put was to bring.
func (s *Store) forget(p *put) {
	for _, hash := range p.brings {
		delete(s.arriving, hash)
	}
	p.brings = nil
}

// Read takes all blocks of a prefix to read them, until Done. If the verdict is
// Missing, held is how many leading ones are there; unless it is Taken nothing has
// changed but the order of eviction.
func (s *Store) Read(p Prefix) (r Fetch, held int, v Verdict) {
	if len(s.fetches) >= s.limits.Fetches {
		return Fetch{}, 0, Busy
	}
	found, _ := s.pool.MatchHashes(nil, p.salt, p.hashes, p.tokens)
	if len(found)*s.layout.BlockTokens != len(p.tokens) {
		s.pool.Release(found)
		return Fetch{}, len(found), Missing
	}
	s.last++
	id := FetchID(s.last)
	s.fetches[id] = found
	return Fetch{ID: id, Blocks: slices.Clone(found)}, len(found), Taken
}

// Done says that a fetch has ended.
func (s *Store) Done(id FetchID) {
	s.pool.Release(s.fetches[id])
	delete(s.fetches, id)
}

// Changes is what was stored and removed since the last call, net. The slices are
// used again by the next call.
func (s *Store) Changes() (stored, removed []kvcache.Hash) { return s.pool.Changes() }

// Hashes is the hash of every block that can be found, each behind its parent.
func (s *Store) Hashes() []kvcache.Hash { return s.pool.Hashes() }

// Stats is a view of a Store.
type Stats struct {
	// Pool counts blocks. Its Reserved ones arrive; the others of Held are being
	// read, or were there already for what arrives.
	Pool kvcache.Stats
	// Puts and Fetches have not ended.
	Puts, Fetches int
	// Kept counts blocks that came to be found.
	Kept uint64
}

// Stats is the state of the store, in constant time.
func (s *Store) Stats() Stats {
	return Stats{Pool: s.pool.Stats(), Puts: len(s.puts), Fetches: len(s.fetches), Kept: s.kept}
}
