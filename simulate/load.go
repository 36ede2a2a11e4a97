package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
)

// Load is what clients send.
type Load struct {
	Source workload.Source
	// Tokenize makes a prompt's text into tokens; special adds those that begin a prompt. Nil:
	// every four bytes are a token.
	Tokenize func(text string, special bool) ([]int32, error)
	// Offered is the rate that the source was asked for, requests a second; 0: none.
	Offered float64
	// Concurrency is how many requests are kept in flight; 0: open loop.
	Concurrency int
	// Warmup and Duration follow one another; nothing is sent after both. Duration 0: until
	// the source ends.
	Warmup, Duration time.Duration
	// Lasts: an open loop goes on until both are over even if the source has ended before.
	Lasts bool
	// RequestTimeout ends a request that long after it was sent, DrainTimeout is how long
	// requests may run on when sending has stopped.
	RequestTimeout, DrainTimeout time.Duration
	// InFlightLimit is the most requests at one time; those due above it are Unsent. 0: no
	// limit.
	InFlightLimit int
	// Stop is asked now and then; true ends the run early. Nil: it is not.
	Stop func() bool
	// Enough is asked about each request when it has ended; true ends the run early, with what is
	// there: requests that still run are Cancelled. Nil: it is not.
	Enough func(*record.Record) bool
	// Patience is after how long the client of a request gives up; 0: it does not. Nil: none
	// does.
	Patience func(*workload.Request) time.Duration
	// Ended gets what each client got: tokens, and nil or a gRPC status. Nil: nobody does.
	Ended func(q *workload.Request, tokens []uint32, err error)
	// Progress gets each sample when it is taken; nil: nobody does.
	Progress func(record.Sample)
}

// load is one run.
type load struct {
	Load
	cluster *Cluster
	start   time.Time
	startAt int64     // the same, as the clock has it
	until   time.Time // nothing is sent after it; zero: no end
	err     error     // of the source

	records  []*record.Record
	turn     int // of the routers
	running  map[*request]struct{}
	thinking int  // conversations, before their next turn
	sourced  bool // the source has ended
	enough   bool // Enough said so
	due      int
	sent     int
	unsent   int
	admitted int
	done     int
	failed   int
	tokens   int64
	samples  []record.Sample
}

const (
	// startup is how long a cluster runs before the load: routers connect and agree on the
	// versions that are served.
	startup = 6 * time.Second
	// sampleEvery is the time between two samples.
	sampleEvery = 250 * time.Millisecond
)

// Run sends requests and returns what their clients saw. It can be called once.
func (c *Cluster) Run(o Load) (*record.Run, error) {
	for c.step(int64(startup)) {
	}
	c.set(epoch.Add(startup))
	l := &load{Load: o, cluster: c, start: c.now, running: make(map[*request]struct{})}
	l.startAt = c.at
	end := c.at + int64(365*24*time.Hour)
	if o.Duration > 0 {
		l.until = c.now.Add(o.Warmup + o.Duration)
	}
	for _, e := range c.config.Events {
		c.plan(c.now.Add(e.At), func() { l.err = errors.Join(l.err, e.Do.to(c)) })
	}
	for _, w := range c.config.Workers {
		w.since, w.used = c.now, 0
	}
	if a := c.config.Autoscale; a != nil {
		newAutoscaler(c, *a).begin()
	}
	if c.watch != nil {
		c.watch.start = l.start
	}
	l.sample()
	for range max(o.Concurrency, 1) {
		l.next()
	}
	interrupted := false
	for steps := 0; !l.over() && c.watch.err() == nil && c.step(end); steps++ {
		c.watch.happened()
		if o.Stop != nil && steps%65536 == 65535 && o.Stop() {
			interrupted = true
			break
		}
	}
	if !interrupted && !l.enough {
		c.rested()
	}
	if err := c.watch.err(); err != nil {
		l.err = errors.Join(err, l.err)
	}
	stopped := l.stopped()
	run := &record.Run{
		Began: time.Now(), Offered: o.Offered, Concurrency: o.Concurrency, From: o.Warmup, To: max(stopped, o.Warmup), Drained: l.now(),
		Records: l.records, Samples: l.samples, Interrupted: interrupted,
	}
	for q := range l.running {
		q.record.Arrivals = q.allArrivals()
	}
	l.takeSample()
	run.Samples = l.samples
	slices.SortStableFunc(run.Records, func(a, b *record.Record) int { return cmp.Compare(a.Due, b.Due) })
	for i, r := range run.Records {
		r.Index = i
		if r.Outcome == record.Pending {
			r.Outcome, r.End = record.Cancelled, l.now()
		}
	}
	run.Client.InFlightLimit = o.InFlightLimit
	if l.unsent > 0 {
		run.Client.Bottleneck = fmt.Sprintf("%d requests were due while %d ran, the limit: raise it, or lower the rate", l.unsent, o.InFlightLimit)
	}
	return run, errors.Join(l.err, c.failed)
}

// now is the time since the start of the run.
func (l *load) now() time.Duration { return time.Duration(l.cluster.at - l.startAt) }

// stopped is when sending stopped.
func (l *load) stopped() time.Duration {
	if !l.until.IsZero() && (l.Lasts || !l.sourced) {
		return min(l.now(), l.until.Sub(l.start))
	}
	var last time.Duration
	for _, r := range l.records {
		last = max(last, r.Due)
	}
	return last
}

// over: all that was to be sent has ended, or had its time, or there is enough.
func (l *load) over() bool {
	if l.enough {
		return true
	}
	if l.until.IsZero() || l.cluster.now.Before(l.until) {
		return l.sourced && len(l.running) == 0 && l.thinking == 0 && (!l.Lasts || l.until.IsZero())
	}
	return len(l.running) == 0 || l.cluster.now.After(l.until.Add(l.DrainTimeout))
}

func (l *load) sample() {
	l.takeSample()
	l.cluster.watch.sampled()
	l.cluster.after(sampleEvery, l.sample)
}

func (l *load) takeSample() {
	s := record.Sample{At: l.now(), Due: l.due, Sent: l.sent, Admitted: l.admitted, Ended: l.done, Failed: l.failed, Tokens: l.tokens}
	l.samples = append(l.samples, s)
	if l.Progress != nil {
		l.Progress(s)
	}
}

// next takes the next request of the source.
func (l *load) next() {
	if l.sourced {
		return
	}
	q, err := l.Source.Next()
	if err != nil {
		l.sourced = true
		if !errors.Is(err, io.EOF) {
			l.err = err
		}
		return
	}
	if l.Concurrency > 0 {
		q.Due = l.now()
		l.send(q, said{})
		return
	}
	l.cluster.plan(l.start.Add(q.Due), func() {
		l.next()
		l.send(q, said{})
	})
}

// send sends a request, which goes on with what was said before.
func (l *load) send(from *workload.Request, before said) {
	c := l.cluster
	if !l.until.IsZero() && c.now.After(l.until) {
		return
	}
	tokens, err := l.prompt(from.Prompt, before)
	if err != nil {
		l.err, l.sourced = err, true
		return
	}
	r := c.routers[l.turn%len(c.routers)]
	l.turn++
	rec := &record.Record{
		Class: from.Class, Session: from.Session, Turn: from.Turn, Due: from.Due, Dispatched: l.now(), Sent: l.now(),
		Admitted: record.Unset, End: record.Unset, PromptTokens: -1, CachedTokens: -1, Asked: from.Prompt.Length() + from.MaxTokens,
	}
	l.records = append(l.records, rec)
	l.due++
	if l.InFlightLimit > 0 && len(l.running) >= l.InFlightLimit {
		rec.Outcome, rec.Dispatched, rec.Sent = record.Unsent, record.Unset, record.Unset
		rec.Error = fmt.Sprintf("the limit of %d requests in flight was reached", l.InFlightLimit)
		l.unsent++
		l.failed++
		l.ended(rec)
		return
	}
	l.sent++
	q := &request{
		load: l, router: r, key: fmt.Sprintf("request-%d", l.due), from: from, record: rec, deadline: c.now.Add(c.config.Limits.MaxRequestTime),
		tokens: tokens, keeps: from.Then != nil || l.Ended != nil,
	}
	rec.ID = q.key
	if l.RequestTimeout > 0 && l.RequestTimeout < c.config.Limits.MaxRequestTime {
		q.deadline = c.now.Add(l.RequestTimeout)
	}
	joining.NewIn(&q.join, joining.Params{
		ID: q.key, Arrived: c.now, Tokenized: c.now, PromptTokens: len(q.tokens), MaxTokens: from.MaxTokens, Deadline: q.deadline,
		VocabSize: c.spec.VocabSize, Text: noText{}, MaxAttempts: c.config.Limits.MaxAttempts, MaxRefusals: joining.DefaultMaxRefusals, Linger: joining.DefaultLinger, Silence: c.config.Routing.Silence(),
	})
	q.join.Share(&c.decoded)
	q.until = q.deadline
	if l.Patience != nil {
		if patience := l.Patience(from); patience > 0 {
			q.leaves = c.now.Add(patience)
			if q.leaves.Before(q.until) {
				q.until = q.leaves
			}
		}
	}
	q.timer = timer{clock: &c.clock, of: q}
	l.running[q] = struct{}{}
	c.watch.began(q)
	q.handle(joining.Start{})
}

// ended counts a request that has ended.
func (l *load) ended(r *record.Record) {
	l.done++
	l.enough = l.enough || l.Enough != nil && l.Enough(r)
}

// finish is the end of a request for its client.
func (q *request) finish(f joining.Finish) {
	l, rec := q.load, q.record
	l.cluster.watch.finished(q, f.Err)
	q.ended = true
	rec.End, rec.Arrivals = l.now(), q.allArrivals()
	delete(l.running, q)
	rec.OutputTokens = q.answered
	err := f.Err
	if refusal, is := errors.AsType[*routing.Refusal](err); is {
		err = statusOf(refusal)
	}
	if l.Ended != nil {
		l.Ended(q.from, q.answer, err)
	}
	rec.Reason = rpc.Reason(err)
	switch code := status.Code(err); {
	case err == nil:
		rec.Outcome = record.Completed
		rec.PromptTokens, rec.CachedTokens = int(f.Usage.GetPromptTokens()), int(f.Usage.GetCachedTokens())
		rec.FinishReason, rec.Timings, rec.Route = api.Name(f.Reason), f.Timings, f.Route
	case len(rec.Arrivals) == 0 && (code == codes.ResourceExhausted || code == codes.Unavailable):
		rec.Outcome, rec.Code, rec.Error = record.Rejected, rpc.CodeName(code), status.Convert(err).Message()
	case code == codes.DeadlineExceeded:
		rec.Outcome, rec.Code, rec.Error = record.TimedOut, rpc.CodeName(code), status.Convert(err).Message()
	default:
		rec.Outcome, rec.Code, rec.Error = record.Failed, rpc.CodeName(code), status.Convert(err).Message()
	}
	if rec.Outcome != record.Completed {
		l.failed++
	}
	l.ended(rec)
	from, answer, tokens := q.from, q.answer, q.tokens
	q.from, q.tokens, q.answer = nil, nil, nil // its streams may hold the request for a while
	if from.Then != nil && rec.Outcome == record.Completed {
		if next, think := from.Then(workload.Answer{TokenIDs: answer}); next != nil {
			next.Due = rec.End + max(think, 0)
			for _, id := range answer {
				tokens = append(tokens, int32(id))
			}
			l.thinking++
			l.cluster.plan(l.start.Add(next.Due), func() {
				l.thinking--
				l.send(next, said{from.Prompt.Text, tokens})
			})
			return
		}
	}
	if l.Concurrency > 0 {
		pause := time.Duration(0)
		if rec.Outcome != record.Completed {
			pause = workload.FailedPause
		}
		l.cluster.after(pause, l.next)
	}
}
