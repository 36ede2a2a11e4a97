package prefill

import (
	"sync"
	"time"
)

const (
	// speedWeight is what a measurement weighs after the next one.
	speedWeight = 0.8
	// speedForget is how long a measurement stands. After it the store is believed to
	// be as fast as assumed, so that one that was slow once is tried again.
	speedForget = time.Minute
	// storeRest is how long a store that failed is left alone, twice as long with each
	// failure in a row, up to storeRestMost.
	storeRest     = time.Second
	storeRestMost = 30 * time.Second
	// maxStores bounds the stores that are remembered.
	maxStores = 64
)

// speeds remembers how fast stores were and which of them failed. Its methods are
// safe for concurrent use.
type speeds struct {
	assumed float64 // bytes a second, of a store that was not measured

	mu     sync.Mutex
	stores map[string]*speed // by worker id
}

type speed struct {
	bytes, seconds float64 // weighted sums over what was moved
	measured       time.Time
	failures       int       // in a row
	rests          time.Time // until when the store is left alone
	used           time.Time
}

func newSpeeds(assumed float64) *speeds {
	return &speeds{assumed: assumed, stores: make(map[string]*speed)}
}

// bytesPerSecond is how fast a store is believed to be.
func (s *speeds) bytesPerSecond(store string, now time.Time) float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.stores[store]
	if known == nil || known.seconds == 0 || now.Sub(known.measured) > speedForget {
		return s.assumed
	}
	return known.bytes / known.seconds
}

// rests is until when a store is left alone; zero or past: it is not.
func (s *speeds) rests(store string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.stores[store]; known != nil {
		return known.rests
	}
	return time.Time{}
}

// moved takes in that so many bytes took so long.
func (s *speeds) moved(store string, bytes uint64, took time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.get(store, now)
	known.failures, known.rests = 0, time.Time{}
	known.measure(bytes, took, now)
}

// tooSlow takes in that so many bytes would have taken longer than they were
// waited for, and lets the store rest.
func (s *speeds) tooSlow(store string, bytes uint64, waited time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.get(store, now)
	known.measure(bytes, waited, now)
	known.fail(now)
}

// failed lets a store rest, at least for so long.
func (s *speeds) failed(store string, atLeast time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.get(store, now)
	known.fail(now)
	if until := now.Add(atLeast); until.After(known.rests) {
		known.rests = until
	}
}

func (k *speed) measure(bytes uint64, took time.Duration, now time.Time) {
	if bytes == 0 || took <= 0 {
		return
	}
	if now.Sub(k.measured) > speedForget {
		k.bytes, k.seconds = 0, 0
	}
	// Sums, not a mean of rates: what took long says more of the link, what was small
	// more of the round trips.
	k.bytes = speedWeight*k.bytes + float64(bytes)
	k.seconds = speedWeight*k.seconds + took.Seconds()
	k.measured = now
}

func (k *speed) fail(now time.Time) {
	rest := storeRestMost
	if k.failures < 5 {
		rest = min(storeRest<<k.failures, storeRestMost)
	}
	k.failures++
	k.rests = now.Add(rest)
}

// get is what is known of a store. s.mu is held.
func (s *speeds) get(store string, now time.Time) *speed {
	known := s.stores[store]
	if known == nil {
		if len(s.stores) >= maxStores {
			s.forget()
		}
		known = new(speed)
		s.stores[store] = known
	}
	known.used = now
	return known
}

// forget drops the store that was not used for longest. s.mu is held.
func (s *speeds) forget() {
	oldest := ""
	for id, known := range s.stores {
		if oldest == "" || known.used.Before(s.stores[oldest].used) {
			oldest = id
		}
	}
	delete(s.stores, oldest)
}
