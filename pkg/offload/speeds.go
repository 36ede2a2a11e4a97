package offload

import "time"

const (
	// speedWeight is what a measurement weighs after the next one.
	speedWeight = 0.8
	// speedForget is how long a measurement stands. After it the store is believed to
	// be as fast as assumed, so that one that was slow once is tried again.
	speedForget = time.Minute
	// speedLeast is how many bytes a measurement has at least: what is smaller takes as
	// long as its round trips, whatever the bandwidth.
	speedLeast = 1 << 20
	// avoidFirst is how long a store that failed is left alone, twice as long with each
	// failure in a row, up to avoidMost.
	avoidFirst = time.Second
	avoidMost  = 30 * time.Second
	// maxStores bounds the stores that are remembered.
	maxStores = 64
)

// operation is what a store is asked for. One that fails at one may be well at the
// other.
type operation int

const (
	putting operation = iota
	fetching
	operations
)

// speeds remembers how fast stores gave blocks and which of them failed.
type speeds struct {
	assumed float64 // bytes a second, of a store that was not measured

	stores map[string]*speed // by worker id
}

type speed struct {
	bytes, seconds float64 // weighted sums over what was fetched
	measured       time.Time
	avoided        [operations]avoided
	used           time.Time
}

// avoided is how a store is left alone.
type avoided struct {
	failures int // in a row
	until    time.Time
}

func newSpeeds(assumed float64) *speeds {
	return &speeds{assumed: assumed, stores: make(map[string]*speed)}
}

// bytesPerSecond is how fast a store is believed to be.
func (s *speeds) bytesPerSecond(store string, now time.Time) float64 {
	known := s.stores[store]
	if known == nil || known.seconds == 0 || now.Sub(known.measured) > speedForget {
		return s.assumed
	}
	return known.bytes / known.seconds
}

// avoidedUntil is until when a store is left alone; zero or past: it is not.
func (s *speeds) avoidedUntil(store string, with operation) time.Time {
	if known := s.stores[store]; known != nil {
		return known.avoided[with].until
	}
	return time.Time{}
}

// fetched takes in that a fetch of so many bytes took so long.
func (s *speeds) fetched(store string, bytes uint64, took time.Duration, now time.Time) {
	s.note(store, fetching, Outcome{}, now)
	s.get(store, now).measure(bytes, took, now)
}

// tooSlow takes in that so many bytes would have taken longer than they were
// waited for, and has the store left alone.
func (s *speeds) tooSlow(store string, bytes uint64, waited time.Duration, now time.Time) {
	known := s.get(store, now)
	known.measure(bytes, waited, now)
	known.avoided[fetching].fail(now)
}

func (k *speed) measure(bytes uint64, took time.Duration, now time.Time) {
	took -= fetchOverhead // what bandwidth does not shorten is counted by itself
	if bytes < speedLeast || took <= 0 {
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

// fail has a store left alone, longer with each failure in a row.
func (r *avoided) fail(now time.Time) {
	length := avoidMost
	if r.failures < 5 {
		length = min(avoidFirst<<r.failures, avoidMost)
	}
	r.failures++
	r.until = now.Add(length)
}

// get is what is known of a store.
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

// forget drops the store that was not used for longest.
func (s *speeds) forget() {
	oldest := ""
	for id, known := range s.stores {
		if oldest == "" || known.used.Before(s.stores[oldest].used) {
			oldest = id
		}
	}
	delete(s.stores, oldest)
}

// note remembers of a store what the end of a put or fetch says.
func (s *speeds) note(id string, with operation, o Outcome, now time.Time) {
	switch of := &s.get(id, now).avoided[with]; {
	case o.Err == nil || o.State == Healthy:
		*of = avoided{}
	case o.State == Busy:
		of.until = now.Add(o.Pause)
	default:
		of.fail(now)
	}
}
