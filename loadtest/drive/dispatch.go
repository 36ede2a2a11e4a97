package drive

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// forever is a time that never comes.
const forever = time.Duration(math.MaxInt64)

// dispatcher is the state of the dispatch loop.
type dispatcher struct {
	*run
	// limit is when sending stops.
	limit time.Duration
	// head is the source's next request, if known; ended: there are no more.
	head  *workload.Request
	ended bool
	// starved: the source had no request ready.
	starved bool
	// turns are later turns of conversations, by due time.
	turns []*workload.Request
	// free are the times at which places became free in closed loop, in order; fresh
	// counts the initial places.
	free  []time.Duration
	fresh int
}

// dispatch sends requests when they are due, until none are left.
func (r *run) dispatch() {
	d := &dispatcher{run: r, limit: forever, fresh: r.Concurrency}
	if r.Duration > 0 {
		d.limit = r.Warmup + r.Duration
	}
	for !r.stop.Load() {
		d.collect()
		now := r.clock.Now()
		q, due := d.first(now)
		switch {
		case now >= d.limit && (q == nil || due >= d.limit):
			d.close(d.limit)
			return
		case due >= d.limit && d.over() && !d.silent():
			d.sourceEnded = d.Concurrency == 0 && d.head == nil
			d.close(min(now, d.limit))
			return
		case q == nil || due > now:
			r.timer.Wait(r.clock.Start().Add(min(due, d.limit, now+time.Hour)))
			continue
		}
		if r.Concurrency == 0 && now-due > behindLimit {
			r.stopped = fmt.Sprintf("the client fell %.0f s behind the requests that were due and stopped sending", (now - due).Seconds())
			d.close(now)
			return
		}
		if r.full() {
			r.stopped = fmt.Sprintf("the records of %d requests and %d tokens reached the memory limit of %d MiB, so the client stopped sending",
				len(r.records), r.counts.Tokens(), r.MemoryLimit>>20)
			d.close(now)
			return
		}
		d.take(q)
		r.dispatchOne(q)
	}
	d.close(min(r.clock.Now(), d.limit))
}

// collect takes follow-up turns and freed places from ended requests, and the source's
// next request.
func (d *dispatcher) collect() {
	d.mu.Lock()
	turns, free := d.run.turns, d.run.free
	d.run.turns, d.run.free = nil, nil
	d.mu.Unlock()
	for _, q := range turns {
		i, _ := slices.BinarySearchFunc(d.turns, q, byDue)
		d.turns = slices.Insert(d.turns, i, q)
	}
	if len(free) > 0 {
		d.free = append(d.free, free...)
		slices.Sort(d.free) // a failed request frees its place later
	}
	if d.head == nil && !d.ended {
		d.head, d.ended = d.source.next()
		late := d.head != nil && d.starved && d.Concurrency == 0 && d.clock.Now()-d.head.Due > lateFromSource
		if late {
			d.sourceLate++
		}
		d.starved = d.head == nil && !d.ended
	}
}

// first is the next request and its due time; nil and forever if none is known.
func (d *dispatcher) first(now time.Duration) (*workload.Request, time.Duration) {
	var q *workload.Request
	due := forever
	if len(d.turns) > 0 {
		q, due = d.turns[0], d.turns[0].Due
	}
	if d.head == nil {
		return q, due
	}
	if d.Concurrency > 0 {
		switch {
		case d.fresh > 0:
			d.head.Due = now
		case len(d.free) > 0:
			d.head.Due = d.free[0]
		default:
			return q, due
		}
	}
	if d.head.Due < due {
		q, due = d.head, d.head.Due
	}
	return q, due
}

// take removes a request returned by first.
func (d *dispatcher) take(q *workload.Request) {
	switch {
	case q != d.head:
		d.turns = d.turns[1:]
		return
	case d.Concurrency == 0:
	case d.fresh > 0:
		d.fresh--
	default:
		d.free = d.free[1:]
	}
	d.head = nil
}

// over reports that nothing more can become due: the source has ended or is past the
// limit, and no request in flight can have a next turn.
func (d *dispatcher) over() bool {
	d.onlyFollowUps.Store(true)
	if d.head == nil && !d.ended {
		return false
	}
	inFlight := d.sessions.Load() > 0
	if d.Concurrency > 0 {
		// A freed place is useful only if the source has more.
		inFlight = d.running.Load() > 0 && (d.head != nil || inFlight)
	}
	if inFlight {
		return false
	}
	// Requests in flight add their follow-ups before they are counted out.
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.run.turns) == 0 && (len(d.run.free) == 0 || d.head == nil)
}

// silent reports that waiting without further requests is part of the measurement: the
// source's next request is past the limit, or it has none until then.
func (d *dispatcher) silent() bool {
	return d.Concurrency == 0 && d.Duration > 0 && (d.head != nil || d.Lasts && d.source.err == nil)
}

// close ends sending. Due requests that were not sent are recorded, unless the run was
// interrupted.
func (d *dispatcher) close(at time.Duration) {
	d.sendingEnded = at
	if d.Concurrency > 0 || d.stop.Load() {
		return
	}
	why := "the run ended before it was sent"
	if d.stopped != "" {
		why = d.stopped
	}
	for {
		d.collect()
		q, due := d.first(at)
		if q == nil || due >= at || d.full() {
			return
		}
		d.take(q)
		d.drop(q, why)
	}
}

// full reports that the records have used up their memory.
func (r *run) full() bool {
	tokens := max(r.counts.Tokens(), r.tokens.Load())
	return int64(len(r.records))*recordBytes+tokens*arrivalBytes > r.MemoryLimit
}

// Size is approximately the memory of a run's records, bytes, as MemoryLimit counts it.
func Size(run *record.Run) int64 {
	size := int64(len(run.Records)) * recordBytes
	for _, r := range run.Records {
		size += int64(len(r.Arrivals)) * arrivalBytes
	}
	return size
}

// byDue orders requests by due time.
func byDue(a, b *workload.Request) int {
	return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Session, b.Session))
}
