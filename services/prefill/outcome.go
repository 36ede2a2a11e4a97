package prefill

import (
	"context"
	"errors"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// What a store is left alone for that does not say how long.
const (
	shortPause = time.Second
	longPause  = 30 * time.Second
)

// fetchOutcome says how a fetch ended, and what that says of the store.
func fetchOutcome(err error) offload.Outcome {
	o := offload.Outcome{Err: err, Result: offload.FetchOK}
	if err == nil {
		return o
	}
	o.Result = fetchFailed
	switch {
	case errors.Is(err, errNotFinite):
		o.Result = fetchSpoilt
	case is[*storeclient.MissingError](err):
		o.Result = fetchMissing
	case is[*storeclient.BusyError](err):
		o.Result = fetchBusy
		o.Trouble, o.Pause = busy(err)
	case errors.Is(err, storeclient.ErrHeld), errors.Is(err, storeclient.ErrRestarted), is[*storeclient.LayoutError](err):
		// The hint is old: the store held this worker's blocks when it was made.
	default:
		o.Trouble = offload.Fails
	}
	return o
}

// putOutcome says how a put ended, and what that says of the store.
func putOutcome(err error) offload.Outcome {
	o := offload.Outcome{Err: err, Result: putOK}
	switch {
	case err == nil:
	case errors.Is(err, storeclient.ErrHeld):
		o.Result = putHeld
	case is[*storeclient.BusyError](err):
		o.Result = putBusy
		if o.Trouble, o.Pause = busy(err); o.Trouble == offload.Well {
			// Others are writing or reading what it needs.
			known, _ := errors.AsType[*storeclient.BusyError](err)
			o.Again = known.RetryAfter
		}
	case is[*storeclient.LayoutError](err):
		o.Result, o.Trouble, o.Pause = putRefused, offload.Pauses, longPause
	case errors.Is(err, storeclient.ErrRestarted):
		// Until etcd has told of the new one.
		o.Result, o.Trouble, o.Pause = putFailed, offload.Pauses, shortPause
	case is[*storeclient.MissingError](err):
		o.Result = putFailed
	case errors.Is(err, context.DeadlineExceeded):
		o.Result, o.Trouble = offload.PutLate, offload.Fails
	default:
		o.Result, o.Trouble = putFailed, offload.Fails
	}
	return o
}

// busy is what a BusyError says of the store.
func busy(err error) (offload.Trouble, time.Duration) {
	known, _ := errors.AsType[*storeclient.BusyError](err)
	switch rpc.Reason(known.Err) {
	case api.ReasonBlocksArriving, api.ReasonStoreFull:
		return offload.Well, 0
	}
	if known.RetryAfter > 0 {
		return offload.Pauses, known.RetryAfter
	}
	return offload.Pauses, shortPause
}

func is[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}
