// Package fakeserver is a server with known latency: it computes nothing and sends tokens
// at predetermined times, so that a load generator's report can be compared with what was
// injected.
//
// Anything may import it. A Schedule has no goroutine, clock or lock. A Wheel owns one
// goroutine, which Close ends; a Server owns its listener's goroutines, its Wheel, and
// its requests.
package fakeserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-serving/tandem/loadtest/finetimer"
)

// Errors of requests that are not completed.
var (
	// ErrRefused: no slot was free and the queue was full, or RejectShare applied.
	ErrRefused = errors.New("no slot is free: try again later")
	// ErrBroken: the request broke off after its first token because of FailShare.
	ErrBroken = errors.New("broken off on purpose")
	// ErrClosed: the server is closed.
	ErrClosed = errors.New("the server ends")
)

// Sink receives what an Engine sends for one request. Its methods are called one at a
// time, by the wheel's goroutine or that of Serve; blocking delays all requests. An error
// ends the request.
type Sink interface {
	// Accept reports that the request will be served.
	Accept(id string) error
	// Tokens sends n tokens after the first offset.
	Tokens(offset, n int) error
}

// Served is the record of one request. Times are since the engine's start, by its clock.
type Served struct {
	// ID is the request's id, Number its index in order of arrival.
	ID     string
	Number uint64
	// Arrived is when it arrived, Began when service began, after the queue and any
	// freeze.
	Arrived, Began time.Duration
	// Tokens sent, and when the first, second and last were.
	Tokens              int
	First, Second, Last time.Duration
	// Due and Sent are the scheduled and actual times of each message with tokens; nil
	// unless the engine keeps a log.
	Due, Sent []time.Duration
}

// Engine serves requests as a Shape describes, for any protocol. Its methods are safe for
// concurrent use.
type Engine struct {
	shape Shape
	wheel *Wheel
	keep  bool

	mu      sync.Mutex
	closed  bool
	number  uint64
	running int
	queue   []*serving
	live    map[*serving]struct{}
	log     []*Served
}

// NewEngine starts an engine; Close ends it. keep enables the log, 16 bytes per message.
// timer is as in NewWheel.
func NewEngine(shape Shape, keep bool, timer finetimer.Timer) (*Engine, error) {
	if err := shape.Validate(); err != nil {
		return nil, err
	}
	return &Engine{
		shape: shape, keep: keep, wheel: NewWheel(time.Now(), timer, shape.Coalesce), live: make(map[*serving]struct{}),
	}, nil
}

// Start is time 0 of the engine's times.
func (e *Engine) Start() time.Time { return e.wheel.start }

// Log returns the requests served so far in order of their ends. The caller may read it.
func (e *Engine) Log() []*Served {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.log)
}

// Close ends all requests with ErrClosed, and the engine's goroutine.
func (e *Engine) Close() error {
	e.mu.Lock()
	e.closed = true
	all := slices.Collect(maps.Keys(e.live))
	e.mu.Unlock()
	for _, s := range all {
		s.end(ErrClosed)
	}
	return e.wheel.Close()
}

// Thaw waits until the current freeze, if any, is over.
func (e *Engine) Thaw(ctx context.Context) error {
	at := e.wheel.Now()
	end := e.shape.Frozen(at)
	if end == at {
		return nil
	}
	timer := time.NewTimer(end - at)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Serve serves one request of at least one token. It returns when the last token was
// sent, the sink failed, or ctx ended; no method of the sink runs afterwards. If the
// request was accepted, the result is valid even with an error.
func (e *Engine) Serve(ctx context.Context, tokens int, sink Sink) (Served, error) {
	s := &serving{engine: e, sink: sink, left: max(tokens, 1), done: make(chan struct{})}
	s.served.Arrived = e.wheel.Now()
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return s.served, ErrClosed
	}
	s.served.Number = e.number
	s.served.ID = fmt.Sprintf("fake-%d", e.number)
	e.number++
	full := e.shape.Slots > 0 && e.running >= e.shape.Slots
	if full && len(e.queue) >= e.shape.Queue {
		e.mu.Unlock()
		return s.served, errors.Join(e.Thaw(ctx), ErrRefused)
	}
	e.live[s] = struct{}{}
	if full {
		e.queue = append(e.queue, s)
	} else {
		e.running++
	}
	e.mu.Unlock()
	if !full {
		s.begin()
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		s.end(ctx.Err())
	}
	e.release(s)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.served, s.err
}

// release frees a request's slot and starts the next in the queue.
func (e *Engine) release(s *serving) {
	e.mu.Lock()
	delete(e.live, s)
	if e.keep {
		e.log = append(e.log, &s.served)
	}
	var next *serving
	if i := slices.Index(e.queue, s); i >= 0 { // it had no slot
		e.queue = slices.Delete(e.queue, i, i+1)
	} else if len(e.queue) > 0 {
		next, e.queue = e.queue[0], e.queue[1:]
	} else {
		e.running--
	}
	e.mu.Unlock()
	if next != nil {
		next.begin()
	}
}

// serving is a request in progress. Lock order: the locks of engine and serving are never
// held together.
type serving struct {
	engine *Engine
	sink   Sink
	done   chan struct{}

	mu       sync.Mutex
	schedule *Schedule
	served   Served
	accepted bool
	over     bool
	err      error
	left     int // tokens left to send
	at       time.Duration
	tokens   int // tokens of the message due at at
}

// begin schedules its tokens from now on.
func (s *serving) begin() {
	s.mu.Lock()
	now := s.engine.wheel.Now()
	s.schedule = s.engine.shape.Request(s.served.Number, now)
	at, again := s.schedule.Accepted, true
	if at <= now {
		at, again = s.step()
	}
	s.mu.Unlock()
	if again {
		s.engine.wheel.At(at, s)
	}
}

func (s *serving) Fire() (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.step()
}

// step sends what is due and returns when the next message is. Requires the lock.
func (s *serving) step() (next time.Duration, again bool) {
	if s.over {
		return 0, false
	}
	var err error
	switch {
	case !s.accepted && s.schedule.Reject:
		err = ErrRefused
	case !s.accepted:
		s.accepted = true
		s.served.Began = s.engine.wheel.Now()
		err = s.sink.Accept(s.served.ID)
	default:
		if err = s.send(); err == nil && s.left > 0 && s.schedule.Fail {
			err = ErrBroken
		}
	}
	if err != nil || s.left == 0 {
		s.finish(err)
		return 0, false
	}
	s.at, s.tokens = s.schedule.Next(s.left)
	return s.at, true
}

func (s *serving) send() error {
	d := &s.served
	now := s.engine.wheel.Now()
	offset := d.Tokens
	if offset == 0 {
		d.First = now
	}
	if offset < 2 && offset+s.tokens >= 2 {
		d.Second = now
	}
	d.Last = now
	d.Tokens += s.tokens
	s.left -= s.tokens
	if s.engine.keep {
		if d.Due == nil {
			capacity := min(s.left+1, 1024)
			d.Due, d.Sent = make([]time.Duration, 0, capacity), make([]time.Duration, 0, capacity)
		}
		d.Due, d.Sent = append(d.Due, s.at), append(d.Sent, now)
	}
	return s.sink.Tokens(offset, s.tokens)
}

// end ends it from outside.
func (s *serving) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.finish(err)
	}
}

// finish ends it. Requires the lock.
func (s *serving) finish(err error) {
	s.over, s.err = true, err
	close(s.done)
}
