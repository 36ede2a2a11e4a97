package routing

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
)

// A fleet on which most attempts fail is not helped by trying everything again. So retries are a share
// of the requests at most: of those that came lately, or of those that run and wait if they are more. The
// first retry of a request whose worker is lost is free, since a worker that dies, or whose connection
// breaks, leaves as many to be tried again as it had, which may be all. Workers that hang, or whose engine fails, may do so
// because they have too much to do. What a worker refuses before it begins is no retry.

const (
	// retryWindow is how long is lately.
	retryWindow = 10 * time.Second
	// retriesLeast is how many retries there may be in it, however few requests there are.
	retriesLeast = 16
)

// retries counts first tries and retries, by the second, over retryWindow.
type retries struct {
	seconds [retryWindow / time.Second]struct {
		second          int64
		requests, again int
	}
}

// at is the count of the second of a time.
func (r *retries) at(now time.Time) (requests, again *int) {
	second := now.Unix()
	s := &r.seconds[uint64(second)%uint64(len(r.seconds))]
	if s.second != second {
		s.second, s.requests, s.again = second, 0, 0
	}
	return &s.requests, &s.again
}

// sums are those of the window.
func (r *retries) sums(now time.Time) (requests, again int) {
	for _, s := range r.seconds {
		if now.Unix()-s.second < int64(len(r.seconds)) {
			requests += s.requests
			again += s.again
		}
	}
	return requests, again
}

// mayRetry takes in that a request or its next attempt has come, and says whether it may be tried.
func (rt *Router) mayRetry(now time.Time, r *Request) bool {
	requests, again := rt.retries.at(now)
	switch {
	case r.Attempt == 0:
		*requests++
	case r.Retry && rt.config.RetryShare == 0:
		return false
	case r.Retry && !firstLoss(r):
		came, before := rt.retries.sums(now)
		there := len(rt.running) + len(rt.queue.ids) + 1 // with r, which neither runs nor waits now
		if float64(before) >= retriesLeast+rt.config.RetryShare*float64(max(came, there)) {
			return false
		}
		*again++
	}
	return true
}

// firstLoss reports whether all that was tried again in a request for a worker's failure is one worker that
// is lost: one that left had not begun, and where a hedged attempt failed, the other went on.
func firstLoss(r *Request) bool {
	lost := 0
	for _, f := range r.Failures {
		if f.Leaves || f.Beside {
			continue
		}
		if lost++; !f.Lost {
			return false
		}
	}
	return lost == 1
}

// retrySpent is the answer to a request whose worker failed when there were as many retries as may
// be.
func (rt *Router) retrySpent(r *Request) Refusal {
	failed := "a worker"
	if n := len(r.Failures); n > 0 {
		failed = r.Failures[n-1].Worker.ID
	}
	return Refusal{Code: codes.Unavailable, Reason: api.ReasonRetryBudget, RetryAfter: retryWindow / 2,
		Message: fmt.Sprintf("%s failed, and the requests of the last %v are tried again as often as may be (retry-share %v): workers fail too much; retry later", failed, retryWindow, rt.config.RetryShare)}
}
