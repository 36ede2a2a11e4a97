package measure

import (
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// OfRequest is a latency of one request, as Summarize takes it; record.Unset if the
// request does not have it, or if it is none that a request has one of, as ITL is.
func OfRequest(l Latency, r *record.Record) time.Duration {
	for i := range requestLatencies {
		if of := &requestLatencies[i]; of.name == l {
			if of.whole && r.Outcome != record.Completed {
				return unset
			}
			return of.value(r)
		}
	}
	if l == DispatchDelay {
		return between(r.Due, r.Dispatched)
	}
	return unset
}
