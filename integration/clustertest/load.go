package clustertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Ask is a request with the answer that it has to get.
type Ask struct {
	Request *inferencev1.GenerateRequest
	Tokens  []uint32
	Text    string
}

// Load is streams of requests, each stream one request after the other, that
// checks every answer.
type Load struct {
	cancel  context.CancelFunc
	streams sync.WaitGroup

	mu       sync.Mutex
	served   int
	moved    int // of those: how often a request went on at another router
	failures []Failure
	used     map[string]time.Time // workers by when an answer last named them
	answers  []int                // by stream, those that failed too
}

// Failure is how a request failed.
type Failure struct {
	Err error
	// Tokens had come before, and After is how long it took.
	Tokens int
	After  time.Duration
}

// String says all of it.
func (f Failure) String() string {
	return fmt.Sprintf("after %v and %d tokens: %v", f.After.Round(time.Millisecond), f.Tokens, f.Err)
}

// loadPause bounds the rate of one stream, also when requests fail at once.
const loadPause = 40 * time.Millisecond

// Generator runs requests: a Client, or Routers.
type Generator interface {
	Generate(ctx context.Context, request *inferencev1.GenerateRequest) (Result, error)
}

// StartLoad begins to send requests through a router, in turn those of asks. A
// request that fails is kept as a failure, a wrong answer fails the test.
func StartLoad(t testing.TB, router Generator, streams int, asks []Ask) *Load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{cancel: cancel, used: make(map[string]time.Time), answers: make([]int, streams)}
	for stream := range streams {
		l.streams.Go(func() { l.stream(ctx, t, router, stream, asks) })
	}
	t.Cleanup(func() {
		cancel()
		l.streams.Wait()
	})
	return l
}

func (l *Load) stream(ctx context.Context, t testing.TB, router Generator, stream int, asks []Ask) {
	tick := time.NewTicker(loadPause)
	defer tick.Stop()
	for i := stream; ctx.Err() == nil; i++ {
		l.request(t, router, stream, asks[i%len(asks)])
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

func (l *Load) request(t testing.TB, router Generator, stream int, ask Ask) {
	// A request that was begun is waited for: the load's end is no reason to fail.
	ctx, cancel := context.WithTimeout(context.Background(), Timeout)
	defer cancel()
	began := time.Now()
	r, err := router.Generate(ctx, ask.Request)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[stream]++
	switch {
	case err != nil:
		if len(r.Tokens) > len(ask.Tokens) || !slices.Equal(r.Tokens, ask.Tokens[:len(r.Tokens)]) {
			t.Errorf("before it failed with %v, a request had the tokens %v, want the first of %v", err, r.Tokens, ask.Tokens)
		}
		l.failures = append(l.failures, Failure{Err: err, Tokens: len(r.Tokens), After: time.Since(began)})
	case !slices.Equal(r.Tokens, ask.Tokens) || r.Text != ask.Text:
		t.Errorf("tokens %v, want %v; text %q, want %q; route %v", r.Tokens, ask.Tokens, r.Text, ask.Text, r.Finished.GetRoute())
	default:
		l.served++
		l.moved += r.Moves
		route := r.Finished.GetRoute()
		l.used[route.GetPrefill()], l.used[route.GetDecode()] = time.Now(), time.Now()
	}
}

// Served is how many requests were answered as they should so far.
func (l *Load) Served() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.served
}

// Moved is how often a request that was answered has gone on at another router.
func (l *Load) Moved() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

// Used reports whether an answer since then named a worker.
func (l *Load) Used(worker string, since time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used[worker].After(since)
}

// Failures are the requests that failed since the last call.
func (l *Load) Failures() []Failure {
	l.mu.Lock()
	defer l.mu.Unlock()
	failures := l.failures
	l.failures = nil
	return failures
}

// Stop ends the load once the requests that run are answered, and fails the test
// for each that failed.
func (l *Load) Stop(t testing.TB) {
	t.Helper()
	l.cancel()
	l.streams.Wait()
	for _, f := range l.Failures() {
		t.Errorf("request failed %v", f)
	}
}

// AwaitServed waits until n more requests were answered.
func (l *Load) AwaitServed(t testing.TB, n int) {
	t.Helper()
	before := l.Served()
	Await(t, func() string {
		if more := l.Served() - before; more < n {
			return fmt.Sprintf("%d of %d requests were served", more, n)
		}
		return ""
	})
}

// AwaitEach waits until every stream has got an answer to what it asks now, and
// one more.
func (l *Load) AwaitEach(t testing.TB) {
	t.Helper()
	l.mu.Lock()
	before := slices.Clone(l.answers)
	l.mu.Unlock()
	Await(t, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		for stream, n := range l.answers {
			if n < before[stream]+2 {
				return fmt.Sprintf("stream %d waits for an answer", stream)
			}
		}
		return ""
	})
}
