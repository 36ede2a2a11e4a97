package storeclient

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// What a store is left alone for that does not say how long.
const (
	shortPause = time.Second
	longPause  = 30 * time.Second
)

// FetchOutcome says how a fetch ended, and what that says of the store.
func FetchOutcome(err error) offload.Outcome {
	o := offload.Outcome{Err: err, Result: offload.FetchOK}
	if err == nil {
		return o
	}
	o.Result = offload.FetchFailed
	switch {
	case errors.Is(err, ErrNotFinite):
		o.Result, o.State = offload.FetchNotFinite, offload.Failing
	case is[*CheckError](err):
		// This worker is at fault.
	case is[*MissingError](err):
		o.Result = offload.FetchMissing
	case is[*BusyError](err):
		o.Result = offload.FetchBusy
		o.State, o.Pause = busy(err)
	case errors.Is(err, ErrHeld), errors.Is(err, ErrArriving), errors.Is(err, ErrRestarted), is[*LayoutError](err):
		// The hint is old: the store held this worker's blocks when it was made.
	default:
		o.State = offload.Failing
	}
	return o
}

// PutOutcome says how a put ended, and what that says of the store.
func PutOutcome(err error) offload.Outcome {
	o := offload.Outcome{Err: err, Result: offload.PutOK}
	switch {
	case err == nil:
	case errors.Is(err, ErrNotFinite):
		o.Result = offload.PutNotFinite
	case errors.Is(err, ErrHeld):
		o.Result = offload.PutHeld
	case errors.Is(err, ErrArriving):
		// The rest can be put once that put has ended, or all if it fails. Another prefix now is no
		// better: many begin alike.
		after, _ := rpc.RetryAfter(err)
		o.Result, o.Again = offload.PutArriving, cmp.Or(after, shortPause)
	case is[*BusyError](err):
		o.Result = offload.PutBusy
		if o.State, o.Pause = busy(err); o.State == offload.Healthy {
			// Others are writing or reading what has the space.
			known, _ := errors.AsType[*BusyError](err)
			o.Again = known.RetryAfter
		}
	case is[*LayoutError](err):
		o.Result, o.State, o.Pause = offload.PutRefused, offload.Busy, longPause
	case errors.Is(err, ErrRestarted):
		// Until etcd has told of the new one.
		o.Result, o.State, o.Pause = offload.PutFailed, offload.Busy, shortPause
	case is[*MissingError](err):
		o.Result = offload.PutFailed
	default:
		o.Result = offload.PutFailed
		if errors.Is(err, context.DeadlineExceeded) {
			o.Result = offload.PutLate
		}
		if !is[*CheckError](err) { // else this worker is at fault
			o.State = offload.Failing
		}
	}
	return o
}

// busy is what a BusyError says of the store.
func busy(err error) (offload.StoreState, time.Duration) {
	known, _ := errors.AsType[*BusyError](err)
	if rpc.Reason(known.Err) == api.ReasonStoreFull {
		return offload.Healthy, 0
	}
	if known.RetryAfter > 0 {
		return offload.Busy, known.RetryAfter
	}
	return offload.Busy, shortPause
}

func is[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}
