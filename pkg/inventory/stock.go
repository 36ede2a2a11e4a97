// Package inventory decides what a shared block store does with its blocks: which are
// held, which arrive, which are being read, and which are evicted. It is plain
// state without goroutines, locks, clocks or I/O, over a kvcache.Pool, and is not
// safe for concurrent use.
//
// services/kvtransfer and simulate drive it; pkg/kvtransfer/storeclient says its verdicts on
// the network.
package inventory

import (
	"slices"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// Limits of a store whose flags nobody changed.
const (
	DefaultArrivals = 256
	DefaultReadings = 64
)

// Limits bound what happens at a time.
type Limits struct {
	// Arrivals are those that have not ended, quarantined ones included.
	Arrivals int
	// Readings are those that have not ended.
	Readings int
}

// ArrivalID names an arrival. No two of a Stock have the same.
type ArrivalID uint64

// ReadingID names a reading. No two of a Stock have the same.
type ReadingID uint64

// Verdict is what becomes of an offer or of a read.
type Verdict int

// The verdicts.
const (
	// Taken: it goes on.
	Taken Verdict = iota
	// Held: all blocks are there already.
	Held
	// Arriving: another arrival brings the first block that lacks.
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

// Arrival is blocks that were offered.
type Arrival struct {
	ID ArrivalID
	// Blocks are the pages of all blocks of the prefix, in order. Whoever brings the
	// others may write those, until Committed or Drained.
	Blocks []kvcache.BlockID
	// Held is how many leading blocks are there already. They are not written.
	Held int
}

// Reading is blocks that are being read.
type Reading struct {
	ID ReadingID
	// Blocks are the pages, in order. They do not change until Done.
	Blocks []kvcache.BlockID
}

// Prefix is the tokens of whole blocks, under a salt, with their hashes.
type Prefix struct {
	salt   string
	tokens []int32
	hashes []kvcache.Hash
}

// NewPrefix hashes the first most blocks, no more of which a Stock has. That takes
// long where they are many, and needs no Stock: callers hold no lock meanwhile.
// tokens are kept.
func NewPrefix(layout kvcache.Layout, most int, salt string, tokens []int32) Prefix {
	first := tokens
	if blocks := len(tokens) / layout.BlockTokens; blocks > most {
		first = tokens[:most*layout.BlockTokens]
	}
	root := kvcache.RootHash(layout.ModelDigest, layout.ArithmeticClass, salt)
	return Prefix{salt, tokens, kvcache.BlockHashes(root, first, layout.BlockTokens)}
}

// Stock is the blocks of one layout.
type Stock struct {
	pool     *kvcache.Pool
	limits   Limits
	arrivals map[ArrivalID]*arrival
	arriving map[kvcache.Hash]struct{} // blocks that arrivals bring
	readings map[ReadingID][]kvcache.BlockID
	last     uint64
	kept     uint64
	layout   kvcache.Layout
}

// arrival is one that has not ended.
type arrival struct {
	prefix Prefix
	brings []kvcache.Hash // the blocks that it brings
	blocks []kvcache.BlockID
	held   int
	failed bool // what it was to bring is in quarantine, and what was held released
}

// New is an empty stock of blocks pages, one at least.
func New(blocks int, layout kvcache.Layout, limits Limits) *Stock {
	return &Stock{
		pool:     kvcache.NewPool(blocks, layout.BlockTokens, layout.ModelDigest, layout.ArithmeticClass),
		limits:   limits,
		arrivals: make(map[ArrivalID]*arrival),
		arriving: make(map[kvcache.Hash]struct{}),
		readings: make(map[ReadingID][]kvcache.BlockID),
		layout:   layout,
	}
}

// Offer reserves pages for the blocks of a prefix that lack, evicting those that were
// not used for longest if it has to. p has one block at least. Unless the verdict is
// Taken nothing has changed but the order of eviction.
//
// What arrives may take half of the blocks, so that offers which come to nothing
// do not empty the store; the only one may take all.
func (s *Stock) Offer(p Prefix) (Arrival, Verdict) {
	total := len(p.tokens) / s.layout.BlockTokens
	if total > s.pool.Total() {
		return Arrival{}, TooLarge
	}
	hashes := p.hashes
	found, _ := s.pool.MatchHashes(nil, p.salt, hashes, p.tokens)
	held := len(found)
	s.pool.Release(found)
	switch {
	case held == total:
		return Arrival{}, Held
	case s.brings(hashes[held]):
		return Arrival{}, Arriving
	case len(s.arrivals) >= s.limits.Arrivals:
		return Arrival{}, Busy
	}
	stats := s.pool.Stats()
	if under := stats.Reserved + stats.Quarantined; under > 0 && under+total-held > stats.Total/2 {
		return Arrival{}, Full
	}
	blocks, held, _, ok := s.pool.Acquire(p.salt, hashes, p.tokens, total)
	if !ok {
		return Arrival{}, Full
	}
	s.pool.Reserve(blocks[held:])
	for _, hash := range hashes[held:] {
		s.arriving[hash] = struct{}{}
	}
	s.last++
	id := ArrivalID(s.last)
	s.arrivals[id] = &arrival{prefix: p, brings: hashes[held:], blocks: blocks, held: held}
	return Arrival{ID: id, Blocks: slices.Clone(blocks), Held: held}, Taken
}

func (s *Stock) brings(hash kvcache.Hash) bool {
	_, is := s.arriving[hash]
	return is
}

// Committed says that all blocks of an arrival came and were right: from now on
// they are found. The arrival has ended.
func (s *Stock) Committed(id ArrivalID) {
	a := s.arrivals[id]
	if a == nil || a.failed {
		return
	}
	s.end(id)
	s.pool.Arrived(a.blocks[a.held:])
	// The place to go on may have moved: what was held can have left the cache
	// meanwhile, without having been given away.
	size := s.layout.BlockTokens
	published := s.pool.Stats().Published
	found, chain := s.pool.MatchHashes(nil, a.prefix.salt, a.prefix.hashes, a.prefix.tokens)
	for i := len(found); i < len(a.blocks); i++ {
		chain = s.pool.Publish(chain, a.blocks[i], a.prefix.tokens[i*size:(i+1)*size])
	}
	s.kept += uint64(s.pool.Stats().Published - published)
	s.pool.Release(found)
	s.pool.Release(a.blocks)
}

// Failed says that an arrival ends without commit. Its blocks may still be
// written: nobody gets them until Drained.
func (s *Stock) Failed(id ArrivalID) {
	a := s.arrivals[id]
	if a == nil || a.failed {
		return
	}
	a.failed = true
	s.forget(a)
	s.pool.Quarantine(a.blocks[a.held:])
	s.pool.Release(a.blocks[:a.held])
}

// Drained says that nothing of an arrival will be written any more, whether or not
// Failed came before. The arrival has ended.
func (s *Stock) Drained(id ArrivalID) {
	a := s.end(id)
	if a == nil {
		return
	}
	if a.failed {
		s.pool.Drained(a.blocks[a.held:])
		return
	}
	s.pool.Release(a.blocks)
}

// end takes an arrival out of the table.
func (s *Stock) end(id ArrivalID) *arrival {
	a := s.arrivals[id]
	if a == nil {
		return nil
	}
	delete(s.arrivals, id)
	s.forget(a)
	return a
}

// forget lets others bring what an arrival was to bring.
func (s *Stock) forget(a *arrival) {
	for _, hash := range a.brings {
		delete(s.arriving, hash)
	}
	a.brings = nil
}

// Read takes all blocks of a prefix to read them, until Done. If the verdict is
// Missing, held is how many leading ones are there; unless it is Taken nothing has
// changed but the order of eviction.
func (s *Stock) Read(p Prefix) (r Reading, held int, v Verdict) {
	if len(s.readings) >= s.limits.Readings {
		return Reading{}, 0, Busy
	}
	found, _ := s.pool.MatchHashes(nil, p.salt, p.hashes, p.tokens)
	if len(found)*s.layout.BlockTokens != len(p.tokens) {
		s.pool.Release(found)
		return Reading{}, len(found), Missing
	}
	s.last++
	id := ReadingID(s.last)
	s.readings[id] = found
	return Reading{ID: id, Blocks: slices.Clone(found)}, len(found), Taken
}

// Done says that a reading has ended.
func (s *Stock) Done(id ReadingID) {
	s.pool.Release(s.readings[id])
	delete(s.readings, id)
}

// Changes is what was stored and removed since the last call, net. The slices are
// used again by the next call.
func (s *Stock) Changes() (stored, removed []kvcache.Hash) { return s.pool.Changes() }

// Hashes is the hash of every block that can be found, each behind its parent.
func (s *Stock) Hashes() []kvcache.Hash { return s.pool.Hashes() }

// Stats is a view of a Stock.
type Stats struct {
	// Pool counts blocks. Its Reserved ones arrive; the others of Held are being
	// read, or were there already for what arrives.
	Pool kvcache.Stats
	// Arrivals and Readings have not ended.
	Arrivals, Readings int
	// Kept counts blocks that came to be found.
	Kept uint64
}

// Stats is the state of the stock, in constant time.
func (s *Stock) Stats() Stats {
	return Stats{Pool: s.pool.Stats(), Arrivals: len(s.arrivals), Readings: len(s.readings), Kept: s.kept}
}
