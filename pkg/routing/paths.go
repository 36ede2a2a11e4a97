package fleet

import (
	"container/list"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
)

// Two workers that both answer may still be out of each other's reach: an address
// that the decode worker gives out leads nowhere, each wants another transport, or the
// decode worker has no connection left there or answers too late. That speaks against
// neither, so it is the pair that is left alone for a while. Then one request tries it
// again, and the others when that has found the way. The first failure may be an
// accident, such as a connection that was cut: who has no other pair waits for it and
// tries again, and only the second shows that the path is broken.

const (
	// pathFirst is how long a pair is left alone after its first failure, pathLeast and
	// pathMost how long after the second and at last; it doubles in between.
	pathFirst = 100 * time.Millisecond
	pathLeast = time.Second
	pathMost  = 30 * time.Second
	// pathKept is after how long without a try a pair's failures are forgotten.
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
	probe           string        // the last request that was to try it again
	place           *list.Element // among Fleet.accidents; nil: it is not there
}

// closed is the outage of a path that is left alone now; nil if it may be used.
func (f *Fleet) closed(now time.Time, p path) *outage {
	if o := f.paths[p]; o != nil && now.Before(o.until) {
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

// severed says why r's KV cannot go from one worker to another, empty if it can; and
// whether it may soon.
func (f *Fleet) severed(now time.Time, r *Request, p path) (why string, soon bool) {
	if o := f.closed(now, p); o != nil {
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

// used notes that request id tries a path: if that failed before, nobody else does
// until it is known what came of it.
func (f *Fleet) used(now time.Time, p path, id string) {
	if o := f.paths[p]; o != nil {
		o.probe = id
		f.rest(now, o)
	}
}

// rest lets a path be left alone from now on.
func (f *Fleet) rest(now time.Time, o *outage) {
	o.until = now.Add(o.wait())
	f.strike(o)
	if o.failures == 1 {
		// The wait is the same for all, so they are in order.
		o.place = f.accidents.PushBack(o)
	}
}

// strike takes an outage out of accidents.
func (f *Fleet) strike(o *outage) {
	if o.place != nil {
		f.accidents.Remove(o.place)
		o.place = nil
	}
}

// accident is the outage of those after a first failure that ends next; nil if there
// is none.
func (f *Fleet) accident() *outage {
	next := f.accidents.Front()
	if next == nil {
		return nil
	}
	o, _ := next.Value.(*outage) // nothing else is in the list
	return o
}

// rested strikes the accidents whose paths may be tried again.
func (f *Fleet) rested(now time.Time) {
	for o := f.accident(); o != nil && !now.Before(o.until); o = f.accident() {
		f.strike(o)
	}
}

// forgetPath forgets that a path was broken, if it was.
func (f *Fleet) forgetPath(p path) (known bool) {
	o := f.paths[p]
	if o == nil {
		return false
	}
	f.strike(o)
	delete(f.paths, p)
	return true
}

func (o *outage) wait() time.Duration {
	if o.failures <= 1 {
		return pathFirst
	}
	return min(pathLeast<<min(o.failures-2, 10), pathMost)
}

// lose takes in that no transfer of request id could begin on a path.
func (f *Fleet) lose(now time.Time, p path, id, why string) {
	if f.worker(p.from) == nil || f.worker(p.to) == nil {
		return // another incarnation of either is another path
	}
	o := f.paths[p]
	if o == nil {
		if len(f.paths) >= maxPaths {
			f.forgetOldest()
		}
		o = new(outage)
		f.paths[p] = o
	}
	o.why = sentence(why)
	// Those that set out together fail together, which is one failure.
	if now.Before(o.until) && o.probe != id {
		return
	}
	o.failures, o.failedAt, o.probe = o.failures+1, now, ""
	f.rest(now, o)
	if f.pathsDue.IsZero() {
		f.pathsDue = now.Add(pathKept)
	}
	if o.failures > 1 {
		f.out = append(f.out, PathLost{Prefill: p.from, Decode: p.to, Why: o.why, Wait: o.wait()})
	}
}

// forgetWorker forgets the paths from and to one.
func (f *Fleet) forgetWorker(ref Ref) {
	for p := range f.paths {
		if p.from == ref || p.to == ref {
			f.forgetPath(p)
		}
	}
}

// expirePaths forgets those that nobody tried for long.
func (f *Fleet) expirePaths(now time.Time) {
	f.pathsDue = time.Time{}
	for p, o := range f.paths {
		end := o.failedAt.Add(pathKept)
		if !now.Before(end) {
			f.forgetPath(p)
		} else if f.pathsDue.IsZero() || end.Before(f.pathsDue) {
			f.pathsDue = end
		}
	}
}

func (f *Fleet) forgetOldest() {
	var oldest path
	var at time.Time
	for p, o := range f.paths {
		// By name where times are equal, so that equal histories give equal actions.
		if at.IsZero() || o.failedAt.Before(at) || o.failedAt.Equal(at) && p.String() < oldest.String() {
			oldest, at = p, o.failedAt
		}
	}
	f.forgetPath(oldest)
}

// BrokenPaths is how many paths are known on which the last transfer could not begin.
func (f *Fleet) BrokenPaths() int { return len(f.paths) }

// Unreachable is the answer to a request whose KV cannot get from its prefill worker
// to a decode worker, for why.
func Unreachable(prefill, decode, why string, retryAfter time.Duration) Refusal {
	return Refusal{Code: codes.Unavailable, Reason: ReasonUnreachable, RetryAfter: max(retryAfter, time.Second),
		Message: fmt.Sprintf("KV does not get from %s to %s (%s): see that the --kv-advertise of %s leads there from the host of %s, that %s answers in time and has connections left (--kv-max-connections; its log says when not), and that their --kv-transport have one in common; mode auto does without",
			prefill, decode, sentence(why), decode, prefill, decode)}
}

// sentence is what a worker says of a path, as one line of bounded length.
func sentence(why string) string {
	why = strings.Join(strings.FieldsFunc(why, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if len(why) <= maxWhy {
		return why
	}
	end := maxWhy - len("…")
	for !utf8.RuneStart(why[end]) {
		end--
	}
	return why[:end] + "…"
}
