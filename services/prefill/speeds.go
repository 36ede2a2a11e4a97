package prefill

import (
	"errors"
	"sync"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

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

// errand is what a store is asked for. One that fails at one may be well at the
// other.
type errand int

const (
	putting errand = iota
	fetching
	errands
)

// speeds remembers how fast stores gave blocks and which of them failed. Its methods
// are safe for concurrent use.
type speeds struct {
	assumed float64 // bytes a second, of a store that was not measured

	mu     sync.Mutex
	stores map[string]*speed // by worker id
}

type speed struct {
	bytes, seconds float64 // weighted sums over what was fetched
	measured       time.Time
	avoided        [errands]avoided
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
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.stores[store]
	if known == nil || known.seconds == 0 || now.Sub(known.measured) > speedForget {
		return s.assumed
	}
	return known.bytes / known.seconds
}

// avoidedUntil is until when a store is left alone; zero or past: it is not.
func (s *speeds) avoidedUntil(store string, with errand) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.stores[store]; known != nil {
		return known.avoided[with].until
	}
	return time.Time{}
}

// fetched takes in that a fetch of so many bytes took so long.
func (s *speeds) fetched(store string, bytes uint64, took time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.get(store, now)
	known.avoided[fetching] = avoided{}
	known.measure(bytes, took, now)
}

// tooSlow takes in that so many bytes would have taken longer than they were
// waited for, and has the store left alone.
func (s *speeds) tooSlow(store string, bytes uint64, waited time.Duration, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// trouble is what a failed put or fetch says of the store.
type trouble int

const (
	// storeWell: it answered, and what failed is about these blocks.
	storeWell trouble = iota
	// storePauses: it asks to be left alone for a while.
	storePauses
	// storeFails: it is ill, or cannot be reached.
	storeFails
)

// storeTrouble tells them apart; without an error the store is well. pause is for how long a store that pauses wants to
// be left alone.
func storeTrouble(err error, with errand) (kind trouble, pause time.Duration) {
	if _, is := errors.AsType[*storeclient.MissingError](err); is || err == nil || errors.Is(err, storeclient.ErrHeld) || errors.Is(err, errNotFinite) {
		return storeWell, 0
	}
	if errors.Is(err, storeclient.ErrRestarted) {
		if with == fetching {
			return storeWell, 0 // the hint is old
		}
		return storePauses, avoidFirst // until etcd has told of the new one
	}
	if busy, is := errors.AsType[*storeclient.BusyError](err); is {
		switch rpc.Reason(busy.Err) {
		case api.ReasonBlocksArriving, api.ReasonStoreFull:
			return storeWell, 0
		}
		if busy.RetryAfter > 0 {
			return storePauses, busy.RetryAfter
		}
		return storePauses, avoidFirst
	}
	if _, is := errors.AsType[*storeclient.LayoutError](err); is {
		if with == fetching {
			return storeWell, 0 // it held this worker's blocks when the hint was made
		}
		return storePauses, avoidMost
	}
	return storeFails, 0
}

// note remembers of a store what a failure says, or that there was none.
func (s *speeds) note(id string, with errand, err error, now time.Time) {
	kind, pause := storeTrouble(err, with)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch of := &s.get(id, now).avoided[with]; kind {
	case storeWell:
		*of = avoided{}
	case storePauses:
		of.until = now.Add(pause)
	case storeFails:
		of.fail(now)
	}
}

// offerAgain is when the same offer may be worth another try: the store is well, and
// others are writing or reading what it needs. 0: not at all.
func offerAgain(err error) time.Duration {
	busy, is := errors.AsType[*storeclient.BusyError](err)
	if !is {
		return 0
	}
	if kind, _ := storeTrouble(err, putting); kind != storeWell {
		return 0
	}
	return busy.RetryAfter
}

// verdict is what the router is told of a store that was asked.
func verdict(err error) workerv1.FetchVerdict {
	switch {
	case err == nil:
		return workerv1.FetchVerdict_FETCH_VERDICT_GIVEN
	case errors.Is(err, errAbandoned), errors.Is(err, errClosing):
		return workerv1.FetchVerdict_FETCH_VERDICT_UNSPECIFIED
	}
	if kind, _ := storeTrouble(err, fetching); kind == storeWell {
		return workerv1.FetchVerdict_FETCH_VERDICT_STALE
	}
	return workerv1.FetchVerdict_FETCH_VERDICT_FAILED
}
