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

// forever is a moment that does not come.
const forever = time.Duration(math.MaxInt64)

// dispatcher is what the loop of dispatch knows of what comes next.
type dispatcher struct {
	*run
	// limit is when nothing is sent any more.
	limit time.Duration
	// head is the source's next request, if it is known; ended: it has no more.
	head  *workload.Request
	ended bool
	// starved: head was asked for in vain.
	starved bool
	// turns are later turns of conversations, by when they are due.
	turns []*workload.Request
	// free are the places that are free in closed loop, by when they became so; fresh of
	// them, of the beginning, are free whenever they are taken.
	free  []time.Duration
	fresh int
}

// dispatch sends requests when they are due, until there is nothing more to send.
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

// collect takes over what ended requests led to, and the source's next request.
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
		slices.Sort(d.free) // one that failed is free later than it ended
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

// first is the request that is due first and when; nil if none is known, and then
// forever.
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

// take removes a request that first returned.
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

// over reports that nothing more can become due: the source is at its end, or past
// the limit, and no request in flight may lead to another.
func (d *dispatcher) over() bool {
	d.alone.Store(true)
	if d.head == nil && !d.ended {
		return false
	}
	inFlight := d.sessions.Load() > 0
	if d.Concurrency > 0 {
		// A place that becomes free is of use only if the source has more.
		inFlight = d.running.Load() > 0 && (d.head != nil || inFlight)
	}
	if inFlight {
		return false
	}
	// Requests in flight leave what they lead to before they are counted out.
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.run.turns) == 0 && (len(d.run.free) == 0 || d.head == nil)
}

// silent reports that it is part of what is measured that nothing more is due: the
// source has more after the limit, or has told all that is due until then.
func (d *dispatcher) silent() bool {
	return d.Concurrency == 0 && d.Duration > 0 && (d.head != nil || d.Lasts && d.source.err == nil)
}

// close ends the sending. What was due before and is not sent is recorded so, unless
// the run was interrupted: then the last request that was sent is the last.
func (d *dispatcher) close(at time.Duration) {
	d.ended0 = at
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

// full reports that the records have all the memory that they may take.
func (r *run) full() bool {
	tokens := max(r.counts.Tokens(), r.tokens.Load())
	return int64(len(r.records))*recordBytes+tokens*arrivalBytes > r.MemoryLimit
}

// Size is about how much memory the records of a run take, bytes, as MemoryLimit
// counts it.
func Size(run *record.Run) int64 {
	size := int64(len(run.Records)) * recordBytes
	for _, r := range run.Records {
		size += int64(len(r.Arrivals)) * arrivalBytes
	}
	return size
}

// byDue orders requests by when they are due.
func byDue(a, b *workload.Request) int {
	return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.Session, b.Session))
}
