package router

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// client sends requests over one connection.
type client interface {
	// do sends a request and calls got with the time of each token of the answer, in order. Several
	// goroutines may call it at a time where streams share connections.
	do(ctx context.Context, id string, tokens int, got func(at int64)) error
	close() error
}

// connection is one that its first stream opens.
type connection struct {
	once   sync.Once
	client client
	err    error
}

func (c *connection) open(dial func() (client, error)) (client, error) {
	c.once.Do(func() { c.client, c.err = dial() })
	return c.client, c.err
}

// close closes the connection, unless the end of its stream's context did.
func (c *connection) close() {
	if c.client != nil {
		_ = c.client.close()
	}
}

// load is all streams. Each has one request at a time.
type load struct {
	plan  Plan
	times *sendTimes
	dial  func() (client, error)

	running   atomic.Int64 // streams that have had a token
	measuring atomic.Bool
	tokens    atomic.Int64 // while it was measured, as is all below
	requests  atomic.Int64 // that ended

	// One for all streams: with their own, each token would push the router's memory out of the cache.
	mu    sync.Mutex
	ttft  *stats.Histogram
	delay *stats.Histogram
}

func newLoad(p Plan, b *sendTimes, dial func() (client, error)) *load {
	return &load{plan: p, times: b, dial: dial, ttft: stats.NewHistogram(), delay: stats.NewHistogram()}
}

// rampUp is the time over which the streams begin: 500 a second at most, so that no connection
// waits for long behind the others.
func (p Plan) rampUp() time.Duration {
	return max(min(p.Duration, 2*time.Second), time.Duration(p.Streams)*2*time.Millisecond)
}

// warmup is the time from when all have begun until it is measured.
const warmup = time.Second

// run keeps the streams until ctx ends; then it returns nil, else the first failure.
func (l *load) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	connections := make([]connection, l.plan.connections())
	defer func() {
		for i := range connections {
			connections[i].close()
		}
	}()
	var streams sync.WaitGroup
	for i := range l.plan.Streams {
		streams.Go(func() {
			if err := l.stream(ctx, i, &connections[i%len(connections)]); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("stream %d: %w", i, err))
			}
		})
	}
	<-ctx.Done()
	streams.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// stream sends requests one after another until ctx ends. The first is shorter by chance, so
// that streams do not begin and end together.
func (l *load) stream(ctx context.Context, number int, over *connection) error {
	begin := time.NewTimer(time.Duration(number) * l.plan.rampUp() / time.Duration(l.plan.Streams))
	defer begin.Stop()
	select {
	case <-begin.C:
	case <-ctx.Done():
		return nil
	}
	c, err := over.open(l.dial)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(1, uint64(number)))
	runs := sync.OnceFunc(func() { l.running.Add(1) })
	for n := 0; ctx.Err() == nil; n++ {
		tokens := l.plan.Tokens
		if n == 0 {
			tokens = 2 + random.IntN(tokens-1)
		}
		if err := l.request(ctx, c, fmt.Sprintf("bench-%d-%d", number, n), tokens, runs); err != nil {
			return err
		}
	}
	return nil
}

// request sends one and times its tokens. It calls runs with the first.
func (l *load) request(ctx context.Context, c client, id string, tokens int, runs func()) error {
	t := l.times.begin(id, tokens)
	defer l.times.end(id)
	counted := l.measuring.Load()
	began, offset := l.times.now(), 0
	err := c.do(ctx, id, tokens, func(at int64) {
		if offset >= tokens {
			offset++
			return
		}
		if offset == 0 {
			runs()
		}
		sent := t.at[offset].Load()
		if l.measuring.Load() {
			l.tokens.Add(1)
			switch {
			case offset > 0:
				l.record(l.delay, at-sent)
			case counted:
				l.record(l.ttft, at-began-t.held.Load())
			}
		}
		offset++
	})
	switch {
	case ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case offset != tokens:
		return fmt.Errorf("%d of %d tokens came", offset, tokens)
	}
	if l.measuring.Load() {
		l.requests.Add(1)
	}
	return nil
}

func (l *load) record(into *stats.Histogram, nanoseconds int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	into.Record(time.Duration(nanoseconds))
}
