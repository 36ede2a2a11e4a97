package inventory_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/pkg/inventory"
	"github.com/tandem-serving/tandem/pkg/kvcache"
)

const (
	poolBlocks  = 12
	blockTokens = 2
	mostAtATime = 4
)

var layout = kvcache.Layout{ModelDigest: "m", ArithmeticClass: "c", BlockTokens: blockTokens}

// model drives a stock and knows what each page holds: what was last written into
// it, under which salt and behind which tokens.
type model struct {
	stock    *inventory.Stock
	content  map[kvcache.BlockID]string
	arrivals map[inventory.ArrivalID]*bringing
	readings map[inventory.ReadingID]*openReading
	known    map[kvcache.Hash]bool // what events add up to
}

// bringing is an arrival. Its writer writes as long as it has not ended, even
// after it failed.
type bringing struct {
	salt   string
	tokens []int32
	inventory.Arrival
	failed bool
}

type openReading struct {
	salt   string
	tokens []int32
	inventory.Reading
}

func newModel() *model {
	return &model{
		stock:    inventory.New(poolBlocks, layout, inventory.Limits{Arrivals: mostAtATime, Readings: mostAtATime}),
		content:  map[kvcache.BlockID]string{},
		arrivals: map[inventory.ArrivalID]*bringing{},
		readings: map[inventory.ReadingID]*openReading{},
		known:    map[kvcache.Hash]bool{},
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
	before := m.stock.Stats()
	a, verdict := m.stock.Offer(prefix(salt, tokens))
	if verdict != inventory.Taken {
		after := m.stock.Stats()
		if before.Pool != after.Pool || before.Arrivals != after.Arrivals {
			t.Fatalf("%v changed %+v to %+v", verdict, before, after)
		}
		return
	}
	if len(a.Blocks)*blockTokens != len(tokens) || a.Held >= len(a.Blocks) {
		t.Fatalf("%d blocks with %d held for %d tokens", len(a.Blocks), a.Held, len(tokens))
	}
	for i, id := range a.Blocks[:a.Held] {
		if m.content[id] != name(salt, tokens, i) {
			t.Fatalf("block %d is said to be held, but is %q", i, m.content[id])
		}
	}
	m.arrivals[a.ID] = &bringing{salt: salt, tokens: tokens, Arrival: a}
	m.write(t, m.arrivals[a.ID])
}

// write writes what the arrival brings, block after block, half of it wrong.
func (m *model) write(t *rapid.T, b *bringing) {
	for i, id := range b.Blocks[b.Held:] {
		m.content[id] = "half of " + name(b.salt, b.tokens, b.Held+i)
	}
}

func (m *model) some(t *rapid.T) *bringing {
	if len(m.arrivals) == 0 {
		t.Skip("nothing arrives")
	}
	ids := slices.Sorted(maps.Keys(m.arrivals))
	return m.arrivals[rapid.SampledFrom(ids).Draw(t, "arrival")]
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
	m.stock.Committed(b.ID)
	delete(m.arrivals, b.ID)
	// Nothing took room since, so it is found.
	r, held, verdict := m.stock.Read(prefix(b.salt, b.tokens))
	if verdict == inventory.Busy {
		return
	}
	if verdict != inventory.Taken {
		t.Fatalf("committed, but only %d of %d blocks are found", held, len(b.Blocks))
	}
	m.stock.Done(r.ID)
}

func (m *model) Fail(t *rapid.T) {
	b := m.some(t)
	m.stock.Failed(b.ID)
	b.failed = true
}

func (m *model) Drain(t *rapid.T) {
	b := m.some(t)
	m.stock.Drained(b.ID)
	delete(m.arrivals, b.ID)
}

func (m *model) Read(t *rapid.T) {
	salt, tokens := salt(t), prompt(t)
	r, held, verdict := m.stock.Read(prefix(salt, tokens))
	switch verdict {
	case inventory.Taken:
		m.readings[r.ID] = &openReading{salt, tokens, r}
	case inventory.Missing:
		if held*blockTokens >= len(tokens) {
			t.Fatalf("missing, but %d of %d tokens are held", held*blockTokens, len(tokens))
		}
	case inventory.Busy:
		if len(m.readings) < mostAtATime {
			t.Fatalf("busy with %d readings", len(m.readings))
		}
	default:
		t.Fatalf("a read is %v", verdict)
	}
}

func (m *model) Done(t *rapid.T) {
	if len(m.readings) == 0 {
		t.Skip("nobody reads")
	}
	id := rapid.SampledFrom(slices.Sorted(maps.Keys(m.readings))).Draw(t, "reading")
	m.stock.Done(id)
	delete(m.readings, id)
}

// Check is what holds after every step.
func (m *model) Check(t *rapid.T) {
	stats := m.stock.Stats()
	p := stats.Pool
	if p.Misuses != 0 || p.Free+p.Cached+p.Held+p.Quarantined != poolBlocks {
		t.Fatalf("blocks: %+v", p)
	}
	// What is written belongs to one arrival alone, and to no reader.
	writers := map[kvcache.BlockID]inventory.ArrivalID{}
	reserved, quarantined := 0, 0
	for id, b := range m.arrivals {
		for _, block := range b.Blocks[b.Held:] {
			if other, twice := writers[block]; twice {
				t.Fatalf("arrivals %d and %d both write block %d", id, other, block)
			}
			writers[block] = id
		}
		if n := len(b.Blocks) - b.Held; b.failed {
			quarantined += n
		} else {
			reserved += n
		}
	}
	if p.Reserved != reserved || p.Quarantined != quarantined || stats.Arrivals != len(m.arrivals) || stats.Readings != len(m.readings) {
		t.Fatalf("%+v, but %d blocks arrive and %d are in quarantine", stats, reserved, quarantined)
	}
	// What is read is what was asked for, until the end.
	for id, r := range m.readings {
		for i, block := range r.Blocks {
			if m.content[block] != name(r.salt, r.tokens, i) {
				t.Fatalf("block %d of reading %d became %q", i, id, m.content[block])
			}
		}
	}
	// Nothing is lost: without arrivals and readings all blocks can be had.
	if len(m.arrivals) == 0 && len(m.readings) == 0 && p.Free+p.Cached != poolBlocks {
		t.Fatalf("nobody has anything, but: %+v", p)
	}
	// Events add up.
	stored, removed := m.stock.Changes()
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
	hashes := m.stock.Hashes()
	if len(hashes) != len(m.known) || slices.ContainsFunc(hashes, func(h kvcache.Hash) bool { return !m.known[h] }) {
		t.Fatalf("events give %d hashes, the stock %d", len(m.known), len(hashes))
	}
}

func TestStockAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		t.Repeat(rapid.StateMachineActions(newModel()))
	})
}
