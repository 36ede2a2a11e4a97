package drive

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// run is one run of the generator.
type run struct {
	Options
	timer  finetimer.Timer
	source *prefetch
	clock  client.Clock
	counts client.Counts
	// requests is the context of all requests; its end cancels them.
	requests context.Context
	inFlight sync.WaitGroup

	// stop asks the dispatcher to end: the run was interrupted.
	stop atomic.Bool
	// due, sent, ended and failed count for samples; running and sessions are requests
	// in flight, and those of them that may have a next turn.
	due, sent, ended, failed, running, sessions atomic.Int64
	// tokens are those of ended requests.
	tokens atomic.Int64
	// alone: nothing is left to send but what requests in flight bring.
	alone atomic.Bool

	mu sync.Mutex
	// turns became due by the end of a request, free are the moments at which places
	// became free in closed loop.
	turns []*workload.Request
	free  []time.Duration

	// What follows is the dispatcher's, and Run's when that has ended.
	records    []*record.Record
	runningMax int
	sourceLate int
	unsent     int
	ended0     time.Duration // when sending stopped
	// sourceEnded: sending stopped since an open loop's source had no more.
	sourceEnded bool
	stopped     string // why the client stopped by itself
}

// Run sends the requests of a source until the time is over, the source ends or ctx
// does, waits for their ends, and returns what it saw. The end of ctx is no error:
// the Run is then Interrupted. An error is one of the options or of the source; in
// the latter case the Run has what came before.
func Run(ctx context.Context, o Options) (*record.Run, error) {
	o.InFlightLimit = cmp.Or(o.InFlightLimit, DefaultInFlightLimit)
	o.MemoryLimit = cmp.Or(o.MemoryLimit, DefaultMemoryLimit)
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Timer == nil {
		o.Timer = finetimer.NewSpinning()
	}
	requests, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := &run{Options: o, timer: o.Timer, requests: requests}
	defer r.timer.Close()
	r.source = newPrefetch(o.Source, r.timer.Wake)
	defer r.source.close()
	r.source.ahead(ctx)
	runtime.GC() // so that what came before costs this run nothing

	began := time.Now()
	r.clock = client.NewClock(began).Counting(&r.counts)
	meter := newMeter(o.Busy)
	samples := newSampler(r, meter)
	unwatch := context.AfterFunc(ctx, func() {
		r.stop.Store(true)
		r.timer.Wake()
	})
	defer unwatch()
	r.stop.Store(ctx.Err() != nil)

	r.dispatch()
	r.drain(ctx, cancel)

	out := &record.Run{
		Began: began, Offered: o.Offered, Concurrency: o.Concurrency,
		From: o.Warmup, To: r.ended0, Drained: r.clock.Now(),
		Records: r.records, Samples: samples.close(), Interrupted: r.stop.Load(),
	}
	slices.SortStableFunc(out.Records, func(a, b *record.Record) int { return int(a.Due - b.Due) })
	for i, rec := range out.Records {
		rec.Index = i
	}
	if r.sourceEnded && len(out.Records) > 0 {
		out.To = out.Records[len(out.Records)-1].Due
	}
	out.To = max(out.To, out.From) // it may have ended during the warm-up
	recount(out)
	out.Client = meter.client()
	out.Client.InFlightMax, out.Client.InFlightLimit = r.runningMax, o.InFlightLimit
	out.Client.OthersShare = othersShare(out)
	out.Client.Bottleneck = r.bottleneck(out)
	r.source.close()
	return out, r.source.err
}

// drain waits until all requests have ended; those that take too long are
// cancelled.
func (r *run) drain(ctx context.Context, cancel context.CancelFunc) {
	all := make(chan struct{})
	go func() {
		r.inFlight.Wait()
		close(all)
	}()
	drain := time.NewTimer(r.DrainTimeout)
	defer drain.Stop()
	select {
	case <-all:
		return
	case <-drain.C:
	case <-ctx.Done():
		short := time.NewTimer(min(r.DrainTimeout, interruptedDrain))
		defer short.Stop()
		select {
		case <-all:
			return
		case <-short.C:
		}
	}
	cancel()
	<-all // a client ends a request soon after its context
}

// serve runs one request to its end.
func (r *run) serve(q *workload.Request, rec *record.Record) {
	defer r.inFlight.Done()
	rec.Dispatched = r.clock.Now()
	r.sent.Add(1)
	ctx := r.requests
	if r.RequestTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.RequestTimeout)
		defer cancel()
	}
	answer := r.Client.Do(ctx, q, r.clock, rec)
	if cap(rec.Arrivals) > 2*len(rec.Arrivals) {
		rec.Arrivals = slices.Clone(rec.Arrivals)
	}
	tokens := int64(0)
	for _, a := range rec.Arrivals {
		tokens += int64(a.Tokens)
	}
	r.tokens.Add(tokens)
	r.ended.Add(1)
	if failed(rec.Outcome) {
		r.failed.Add(1)
	}
	var next *workload.Request
	if q.Then != nil && rec.Outcome == record.Completed {
		var think time.Duration
		if next, think = q.Then(answer); next != nil {
			next.Due = rec.End + max(think, 0)
		}
	}
	wake := next != nil || r.Concurrency > 0
	// Under one lock: the dispatcher must not find nothing in flight before it finds what
	// this request leads to, nor the free place before the request is counted out.
	r.mu.Lock()
	if next != nil {
		r.turns = append(r.turns, next)
	} else if r.Concurrency > 0 {
		free := rec.End
		if failed(rec.Outcome) {
			free += failedPause
		}
		r.free = append(r.free, free)
	}
	if q.Then != nil {
		r.sessions.Add(-1)
	}
	r.running.Add(-1)
	r.mu.Unlock()
	if wake || r.alone.Load() {
		r.timer.Wake()
	}
}

// failed: it ended, and not well, and not because the run was over.
func failed(o record.Outcome) bool {
	return o == record.Rejected || o == record.Failed || o == record.TimedOut || o == record.Unsent
}

// newRecord begins the record of a request.
func (r *run) newRecord(q *workload.Request) *record.Record {
	rec := &record.Record{
		Class: q.Class, Session: q.Session, Turn: q.Turn, Due: q.Due,
		Dispatched: record.Unset, Sent: record.Unset, Admitted: record.Unset, End: record.Unset,
		PromptTokens: -1, CachedTokens: -1,
	}
	r.records = append(r.records, rec)
	r.due.Add(1)
	return rec
}

// drop records a request that was due and is not sent.
func (r *run) drop(q *workload.Request, why string) {
	rec := r.newRecord(q)
	rec.Outcome, rec.Error = record.Unsent, why
	r.failed.Add(1)
	r.ended.Add(1)
}

// dispatchOne sends a request now, or records that it cannot be.
func (r *run) dispatchOne(q *workload.Request) {
	if running := r.running.Load(); running >= int64(r.InFlightLimit) {
		r.unsent++
		r.drop(q, fmt.Sprintf("the limit of %d requests in flight was reached", r.InFlightLimit))
		return
	}
	rec := r.newRecord(q)
	r.runningMax = max(r.runningMax, int(r.running.Add(1)))
	if q.Then != nil {
		r.sessions.Add(1)
	}
	r.inFlight.Add(1)
	go r.serve(q, rec)
}
