package blockstore_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

const (
	poolBlocks  = 12
	blockTokens = 2
	mostAtATime = 4
)

var layout = kvcache.Layout{ModelDigest: "m", ArithmeticClass: "c", BlockTokens: blockTokens}

// model drives a store and knows what each page holds: what was last written into
// it, under which salt and behind which tokens.
type model struct {
	store   *blockstore.Store
	content map[kvcache.BlockID]string
	puts    map[blockstore.PutID]*bringing
	fetches map[blockstore.FetchID]*openFetch
	known   map[kvcache.Hash]bool // what events add up to
}

// bringing is a put. Its writer writes as long as it has not ended, even
// after it failed.
type bringing struct {
	salt   string
	tokens []int32
	blockstore.Put
	failed bool
}

type openFetch struct {
	salt   string
	tokens []int32
	blockstore.Fetch
}

func newModel() *model {
	return &model{
		store:   blockstore.New(poolBlocks, layout, blockstore.Limits{Puts: mostAtATime, Fetches: mostAtATime}),
		content: map[kvcache.BlockID]string{},
		puts:    map[blockstore.PutID]*bringing{},
		fetches: map[blockstore.FetchID]*openFetch{},
		known:   map[kvcache.Hash]bool{},
	}
}

// name is what a page has to hold to be block i of a prompt.
func name(salt string, tokens []int32, i int) string {
	return fmt.Sprint(salt, tokens[:(i+1)*blockTokens])
}

func prompt(t *rapid.T) []int32 {
	// Few different tokens, so that prompts share beginnings.
	var tokens []int32
	for _, b := range rapid.SliceOfN(rapid.Int32Range(0, 1), 1, 8).Draw(t, "prompt") {
		tokens = append(tokens, b, b)
	}
	return tokens
}

func salt(t *rapid.T) string { return rapid.SampledFrom([]string{"", "s"}).Draw(t, "salt") }

func (m *model) Offer(t *rapid.T) {
	salt, tokens := salt(t), prompt(t)
	before := m.store.Stats()
	p, verdict := m.store.Offer(prefix(salt, tokens))
	if verdict != blockstore.Taken {
		after := m.store.Stats()
		if before.Pool != after.Pool || before.Puts != after.Puts {
			t.Fatalf("%v changed %+v to %+v", verdict, before, after)
		}
		return
	}
	if len(p.Blocks)*blockTokens != len(tokens) || p.Held >= len(p.Blocks) {
		t.Fatalf("%d blocks with %d held for %d tokens", len(p.Blocks), p.Held, len(tokens))
	}
	for i, id := range p.Blocks[:p.Held] {
		if m.content[id] != name(salt, tokens, i) {
			t.Fatalf("block %d is said to be held, but is %q", i, m.content[id])
		}
	}
	m.puts[p.ID] = &bringing{salt: salt, tokens: tokens, Put: p}
	m.write(t, m.puts[p.ID])
}

// write writes what the put brings, block after block, half of it wrong.
func (m *model) write(t *rapid.T, b *bringing) {
	for i, id := range b.Blocks[b.Held:] {
		m.content[id] = "half of " + name(b.salt, b.tokens, b.Held+i)
	}
}

func (m *model) some(t *rapid.T) *bringing {
	if len(m.puts) == 0 {
		t.Skip("nothing arrives")
	}
	ids := slices.Sorted(maps.Keys(m.puts))
	return m.puts[rapid.SampledFrom(ids).Draw(t, "put")]
}

func (m *model) Write(t *rapid.T) { m.write(t, m.some(t)) }

func (m *model) Commit(t *rapid.T) {
	b := m.some(t)
	if b.failed {
		t.Skip("it failed")
	}
	for i, id := range b.Blocks[b.Held:] {
		m.content[id] = name(b.salt, b.tokens, b.Held+i)
	}
	m.store.Committed(b.ID)
	delete(m.puts, b.ID)
	// Nothing took room since, so it is found.
	r, held, verdict := m.store.Read(prefix(b.salt, b.tokens))
	if verdict == blockstore.Busy {
		return
	}
	if verdict != blockstore.Taken {
		t.Fatalf("committed, but only %d of %d blocks are found", held, len(b.Blocks))
	}
	m.store.Done(r.ID)
}

func (m *model) Fail(t *rapid.T) {
	b := m.some(t)
	m.store.Failed(b.ID)
	b.failed = true
}

func (m *model) Drain(t *rapid.T) {
	b := m.some(t)
	m.store.Drained(b.ID)
	delete(m.puts, b.ID)
}

func (m *model) Read(t *rapid.T) {
	salt, tokens := salt(t), prompt(t)
	r, held, verdict := m.store.Read(prefix(salt, tokens))
	switch verdict {
	case blockstore.Taken:
		m.fetches[r.ID] = &openFetch{salt, tokens, r}
	case blockstore.Missing:
		if held*blockTokens >= len(tokens) {
			t.Fatalf("missing, but %d of %d tokens are held", held*blockTokens, len(tokens))
		}
	case blockstore.Busy:
		if len(m.fetches) < mostAtATime {
			t.Fatalf("busy with %d fetches", len(m.fetches))
		}
	default:
		t.Fatalf("a read is %v", verdict)
	}
}

func (m *model) Done(t *rapid.T) {
	if len(m.fetches) == 0 {
		t.Skip("nobody fetches")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.fetches))).Draw(t, "fetch")
	m.store.Done(id)
	delete(m.fetches, id)
}

// Check is what holds after every step.
func (m *model) Check(t *rapid.T) {
	stats := m.store.Stats()
	p := stats.Pool
	if p.Misuses != 0 || p.Free+p.Cached+p.Held+p.Quarantined != poolBlocks {
		t.Fatalf("blocks: %+v", p)
	}
	// What is written belongs to one put alone, and to no reader.
	writers := map[kvcache.BlockID]blockstore.PutID{}
	reserved, quarantined := 0, 0
	for id, b := range m.puts {
		for _, block := range b.Blocks[b.Held:] {
			if other, twice := writers[block]; twice {
				t.Fatalf("puts %d and %d both write block %d", id, other, block)
			}
			writers[block] = id
		}
		if n := len(b.Blocks) - b.Held; b.failed {
			quarantined += n
		} else {
			reserved += n
		}
	}
	if p.Reserved != reserved || p.Quarantined != quarantined || stats.Puts != len(m.puts) || stats.Fetches != len(m.fetches) {
		t.Fatalf("%+v, but %d blocks arrive and %d are in quarantine", stats, reserved, quarantined)
	}
	// What is read is what was asked for, until the end.
	for id, r := range m.fetches {
		for i, block := range r.Blocks {
			if m.content[block] != name(r.salt, r.tokens, i) {
				t.Fatalf("block %d of fetch %d became %q", i, id, m.content[block])
			}
		}
	}
	// Nothing is lost: without puts and fetches all blocks can be had.
	if len(m.puts) == 0 && len(m.fetches) == 0 && p.Free+p.Cached != poolBlocks {
		t.Fatalf("nobody has anything, but: %+v", p)
	}
	// Events add up.
	stored, removed := m.store.Changes()
	for _, h := range removed {
		if !m.known[h] {
			t.Fatalf("removed %#x, which was not there", h)
		}
		delete(m.known, h)
	}
	for _, h := range stored {
		if m.known[h] {
			t.Fatalf("stored %#x twice", h)
		}
		m.known[h] = true
	}
	hashes := m.store.Hashes()
	if len(hashes) != len(m.known) || slices.ContainsFunc(hashes, func(h kvcache.Hash) bool { return !m.known[h] }) {
		t.Fatalf("events give %d hashes, the store %d", len(m.known), len(hashes))
	}
}

func TestStoreAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		t.Repeat(rapid.StateMachineActions(newModel()))
	})
}
