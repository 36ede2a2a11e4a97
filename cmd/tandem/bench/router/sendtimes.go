package router

import (
	"sync"
	"sync/atomic"
	"time"
)

// sendTimes is where workers note when they sent what, for the client of the same request. It
// is safe for concurrent use.
type sendTimes struct {
	start    time.Time
	requests sync.Map // by request id
}

func newSendTimes() *sendTimes { return &sendTimes{start: time.Now()} }

// now is the time since it was made, nanoseconds, never 0.
func (b *sendTimes) now() int64 { return int64(time.Since(b.start)) + 1 }

// begin adds a request with an answer of so many tokens.
func (b *sendTimes) begin(id string, tokens int) *requestTimes {
	t := &requestTimes{at: make([]atomic.Int64, tokens)}
	b.requests.Store(id, t)
	return t
}

func (b *sendTimes) end(id string) { b.requests.Delete(id) }

// of is the request with an id; nil if nobody waits for it.
func (b *sendTimes) of(id string) *requestTimes {
	t, _ := b.requests.Load(id)
	found, _ := t.(*requestTimes)
	return found
}

// requestTimes are those of one request. A nil one takes no notes.
type requestTimes struct {
	held atomic.Int64   // how long workers had it before its first token went out, nanoseconds
	at   []atomic.Int64 // when each token went out, by offset; 0: it did not
}

// addHeld adds the time that a worker had the request for.
func (t *requestTimes) addHeld(nanoseconds int64) {
	if t != nil {
		t.held.Add(nanoseconds)
	}
}

func (t *requestTimes) sent(offset int, at int64) {
	if t != nil && offset < len(t.at) {
		t.at[offset].Store(at)
	}
}
