package prefill

import (
	"errors"
	"time"

	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

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
