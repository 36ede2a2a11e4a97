package offload

import (
	"time"

	"github.com/tandem-serving/tandem/pkg/kvcache"
)

// FetchCost is fetchCost.
type FetchCost = fetchCost

// Worth is fetchCost.worth, with the two times that it compares.
func (c fetchCost) Worth(prompt, from, until int) (saved, fetch, limit time.Duration, worth bool) {
	limit, worth = c.worth(prompt, from, until)
	return c.saved(prompt, from, until), c.fetch(until - from), limit, worth
}

// Speeds are speeds.
type Speeds struct{ s *speeds }

// NewSpeeds are speeds of stores that are assumed to be so fast.
func NewSpeeds(assumed float64) Speeds { return Speeds{newSpeeds(assumed)} }

// BytesPerSecond is speeds.bytesPerSecond.
func (s Speeds) BytesPerSecond(id string, now time.Time) float64 { return s.s.bytesPerSecond(id, now) }

// Rests is speeds.avoidedUntil, of fetches and of puts.
func (s Speeds) Rests(id string) (fetches, puts time.Time) {
	return s.s.avoidedUntil(id, fetching), s.s.avoidedUntil(id, putting)
}

// Fetched is speeds.fetched.
func (s Speeds) Fetched(id string, bytes uint64, took time.Duration, now time.Time) {
	s.s.fetched(id, bytes, took, now)
}

// TooSlow is speeds.tooSlow.
func (s Speeds) TooSlow(id string, bytes uint64, waited time.Duration, now time.Time) {
	s.s.tooSlow(id, bytes, waited, now)
}

// FetchEnded is speeds.note of a fetch, PutEnded of a put.
func (s Speeds) FetchEnded(id string, o Outcome, now time.Time) { s.s.note(id, fetching, o, now) }

// PutEnded is speeds.note of a put.
func (s Speeds) PutEnded(id string, o Outcome, now time.Time) { s.s.note(id, putting, o, now) }

// Known is how many stores are remembered.
func (s Speeds) Known() int { return len(s.s.stores) }

// Choose is the store of a prefix among some.
func Choose(ids []string, first kvcache.Hash) string {
	c := New(Config{})
	for _, id := range ids {
		c.stores = append(c.stores, Store{ID: id})
	}
	to, _ := c.choose(first)
	return to.ID
}
