package drive

import (
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
	// requests is the parent context of all requests.
	requests context.Context
	inFlight sync.WaitGroup

	// stop tells the dispatcher that the run was interrupted.
	stop atomic.Bool
	// Counts for samples; running are the requests in flight, and sessions those that may
	// have a next turn.
	due, sent, ended, failed, running, sessions atomic.Int64
	// tokens of ended requests.
	tokens atomic.Int64
	// onlyFollowUps: only requests in flight can lead to more.
	onlyFollowUps atomic.Bool

	mu sync.Mutex
	// turns that became due, and times at which places became free in closed loop.
	turns []*workload.Request
	free  []time.Duration

	// Owned by the dispatcher, then by Run.
	records      []*record.Record
	runningMax   int
	sourceLate   int
	unsent       int
	sendingEnded time.Duration
	// sourceEnded: sending stopped because an open loop's source ended.
	sourceEnded bool
	stopped     string // why the client gave up
}

// Run sends a source's requests until the time is over, the source ends or ctx does,
// waits for them to end, and returns the records. If ctx ends, the Run is Interrupted,
// without an error. An error concerns the options or the source; in the latter case the
// Run has what came before.
func Run(ctx context.Context, o Options) (*record.Run, error) {
	if err := o.Complete(); err != nil {
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
	runtime.GC() // keep earlier garbage out of this run

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
		From: o.Warmup, To: r.sendingEnded, Drained: r.clock.Now(),
		Records: r.records, Samples: samples.close(), Interrupted: r.stop.Load(),
	}
	slices.SortStableFunc(out.Records, func(a, b *record.Record) int { return int(a.Due - b.Due) })
	for i, rec := range out.Records {
		rec.Index = i
	}
	if r.sourceEnded && len(out.Records) > 0 {
		out.To = out.Records[len(out.Records)-1].Due
	}
	out.To = max(out.To, out.From) // may have ended during warm-up
	recount(out)
	out.Client = meter.client()
	out.Client.InFlightMax, out.Client.InFlightLimit = r.runningMax, o.InFlightLimit
	out.Client.OthersShare = othersShare(out)
	out.Client.Bottleneck, out.Client.LateAlone = r.bottleneck(out)
	r.source.close()
	return out, r.source.err
}

// drain waits until all requests have ended and cancels those that take too long.
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
	<-all // clients return soon after their context ends
}

// serve runs one request.
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
	// Under one lock: the dispatcher must see follow-up turns before the count of
	// requests in flight drops, and that drop before the freed place.
	r.mu.Lock()
	if next != nil {
		r.turns = append(r.turns, next)
	} else if r.Concurrency > 0 {
		free := rec.End
		if failed(rec.Outcome) {
			free += workload.FailedPause
		}
		r.free = append(r.free, free)
	}
	if q.Then != nil {
		r.sessions.Add(-1)
	}
	r.running.Add(-1)
	r.mu.Unlock()
	if wake || r.onlyFollowUps.Load() {
		r.timer.Wake()
	}
}

// failed reports an outcome that is neither success nor the end of the run.
func failed(o record.Outcome) bool {
	return o == record.Rejected || o == record.Failed || o == record.TimedOut || o == record.Unsent
}

// newRecord starts a request's record.
func (r *run) newRecord(q *workload.Request) *record.Record {
	rec := &record.Record{
		Class: q.Class, Session: q.Session, Turn: q.Turn, Due: q.Due,
		Dispatched: record.Unset, Sent: record.Unset, Admitted: record.Unset, End: record.Unset,
		PromptTokens: -1, CachedTokens: -1, Asked: q.Prompt.Length() + q.MaxTokens,
	}
	r.records = append(r.records, rec)
	r.due.Add(1)
	return rec
}

// drop records a due request that is not sent.
func (r *run) drop(q *workload.Request, why string) {
	rec := r.newRecord(q)
	rec.Outcome, rec.Error = record.Unsent, why
	r.failed.Add(1)
	r.ended.Add(1)
}

// dispatchOne sends a request, or records why it cannot.
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
