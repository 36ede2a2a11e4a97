package routing

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/tandem-serving/tandem/pkg/api"
)

// Two workers that both answer may still not reach each other: the decode worker's
// address leads nowhere, they have no transport in common, or the decode worker has no
// connection left or answers too late. That speaks against neither, so the router leaves
// the pair alone for a while. Then one request tries it again; the others follow once that
// has gone well. The first failure may be chance, such as a connection that was cut: a
// request without another pair waits and tries again. The second shows that the path is
// broken.

const (
	// pathFirst is how long a pair is left alone after its first failure, pathLeast and
	// pathMost how long after the second and at last; it doubles in between.
	pathFirst = 100 * time.Millisecond
	pathLeast = time.Second
	pathMost  = 30 * time.Second
	// pathKept is after how long without an attempt a pair's failures are forgotten.
	pathKept = 5 * time.Minute
	// maxPaths is the most pairs that are remembered; of more, those that failed the
	// longest ago are forgotten.
	maxPaths = 4096
	// maxWhy bounds what a worker says of a path, bytes.
	maxWhy = 400
)

// path is the way of KV from a prefill worker to a decode worker.
type path struct{ from, to Ref }

func (p path) String() string { return p.from.ID + " to " + p.to.ID }

// outage is what is remembered of a path by which no transfer could begin.
type outage struct {
	failures        int // in a row
	failedAt, until time.Time
	why             string
	probe           string // the last request that was to try it again
}

// closed is the outage of a path that is left alone now; nil if it may be used.
func (rt *Router) closed(now time.Time, p path) *outage {
	if o := rt.paths[p]; o != nil && now.Before(o.until) {
		return o
	}
	return nil
}

// unreached is the path on which r could not be served, if there was one, and why.
func (r *Request) unreached() (p path, why string, ok bool) {
	for _, failure := range r.Failures {
		if failure.Unreached != (Ref{}) {
			return path{failure.Worker, failure.Unreached}, sentence(failure.Why), true
		}
	}
	return path{}, "", false
}

// blocked says why r's KV cannot go from one worker to another, empty if it can; and
// whether it may soon.
func (rt *Router) blocked(now time.Time, r *Request, p path) (why string, soon bool) {
	if o := rt.closed(now, p); o != nil {
		why, soon = o.why, o.failures == 1
	}
	times := 0
	for _, failure := range r.Failures {
		if p == (path{failure.Worker, failure.Unreached}) {
			times++
		}
		if times > 1 { // one request does not run against it for ever
			return sentence(failure.Why), false
		}
	}
	return why, soon
}

// tries notes that request id tries a path: if that failed before, nobody else does
// until it is known what came of it.
func (rt *Router) tries(now time.Time, p path, id string) {
	if o := rt.paths[p]; o != nil {
		o.probe = id
		rt.leaveAlone(now, o)
	}
}

// leaveAlone closes a path from now on.
func (rt *Router) leaveAlone(now time.Time, o *outage) {
	o.until = now.Add(o.wait())
	if o.failures == 1 {
		rt.nextReopening() // which drops those that are over
		rt.reopenings = append(rt.reopenings, reopening{o, o.until})
	}
}

// reopening is when a path may be tried again after its first failure, unless it was tried
// or forgotten meanwhile.
type reopening struct {
	outage *outage
	at     time.Time
}

// nextReopening is the first of those to come; zero if there is none.
func (rt *Router) nextReopening() time.Time {
	// The wait is the same for all, so they are in order.
	for len(rt.reopenings) > 0 {
		first := rt.reopenings[0]
		if first.outage.failures == 1 && first.outage.until.Equal(first.at) && rt.now.Before(first.at) {
			return first.at
		}
		rt.reopenings = rt.reopenings[1:]
	}
	return time.Time{}
}

// forgetPath forgets that a path was broken, if it was.
func (rt *Router) forgetPath(p path) (known bool) {
	o := rt.paths[p]
	if o == nil {
		return false
	}
	o.failures = 0
	delete(rt.paths, p)
	return true
}

func (o *outage) wait() time.Duration {
	if o.failures <= 1 {
		return pathFirst
	}
	return doubling(pathLeast, o.failures-2, pathMost)
}

// pathFailed takes in that no transfer of request id could begin on a path.
func (rt *Router) pathFailed(now time.Time, p path, id, why string) {
	if rt.worker(p.from) == nil || rt.worker(p.to) == nil {
		return // another incarnation of either is another path
	}
	o := rt.paths[p]
	if o == nil {
		if len(rt.paths) >= maxPaths {
			rt.forgetOldest()
		}
		o = new(outage)
		rt.paths[p] = o
	}
	o.why = sentence(why)
	// Those that set out together fail together, which is one failure.
	if now.Before(o.until) && o.probe != id {
		return
	}
	o.failures, o.failedAt, o.probe = o.failures+1, now, ""
	rt.leaveAlone(now, o)
	soonest(&rt.pathsDue, now.Add(pathKept))
	if o.failures > 1 {
		rt.out = append(rt.out, PathLost{Prefill: p.from, Decode: p.to, Why: o.why, Wait: o.wait()})
	}
}

// forgetWorker forgets the paths from and to one.
func (rt *Router) forgetWorker(ref Ref) {
	for p := range rt.paths {
		if p.from == ref || p.to == ref {
			rt.forgetPath(p)
		}
	}
}

// expirePaths forgets those that nobody tried for long.
func (rt *Router) expirePaths(now time.Time) {
	rt.pathsDue = time.Time{}
	for p, o := range rt.paths {
		end := o.failedAt.Add(pathKept)
		if !now.Before(end) {
			rt.forgetPath(p)
		} else {
			soonest(&rt.pathsDue, end)
		}
	}
}

func (rt *Router) forgetOldest() {
	var oldest path
	var at time.Time
	for p, o := range rt.paths {
		// By name where times are equal, so that equal histories give equal actions.
		if at.IsZero() || o.failedAt.Before(at) || o.failedAt.Equal(at) && p.String() < oldest.String() {
			oldest, at = p, o.failedAt
		}
	}
	rt.forgetPath(oldest)
}

// BrokenPaths is how many paths are known on which the last transfer could not begin.
func (rt *Router) BrokenPaths() int { return len(rt.paths) }

// Unreachable is the answer to a request whose KV cannot get from its prefill worker
// to a decode worker, for why.
func Unreachable(prefill, decode, why string, retryAfter time.Duration) Refusal {
	return Refusal{Code: codes.Unavailable, Reason: api.ReasonKVUnreachable, RetryAfter: max(retryAfter, time.Second),
		Message: fmt.Sprintf("KV cannot be sent from %s to %s (%s): check that the --kv-advertise of %s is reachable from the host of %s, that %s answers in time and has free connections (--kv-max-connections; its log says when it refuses some), and that both allow a common --kv-transport; mode auto works without",
			prefill, decode, sentence(why), decode, prefill, decode)}
}

// sentence is what a worker says of a path, as one line of bounded length.
func sentence(why string) string {
	why = strings.Join(strings.FieldsFunc(why, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	return short(why, maxWhy)
}
