package router

import (
	"sync"
	"sync/atomic"
	"time"
)

// board is where workers note when they sent what, for the client of the same request. It
// is safe for concurrent use.
type board struct {
	start  time.Time
	tracks sync.Map // by request id
}

func newBoard() *board { return &board{start: time.Now()} }

// now is the time since the board was made, nanoseconds, never 0.
func (b *board) now() int64 { return int64(time.Since(b.start)) + 1 }

// begin adds a request with an answer of so many tokens.
func (b *board) begin(id string, tokens int) *track {
	t := &track{sent: make([]atomic.Int64, tokens)}
	b.tracks.Store(id, t)
	return t
}

func (b *board) end(id string) { b.tracks.Delete(id) }

// of is the request with an id; nil if nobody waits for it.
func (b *board) of(id string) *track {
	t, _ := b.tracks.Load(id)
	found, _ := t.(*track)
	return found
}

// track is one request. A nil one takes notes of nobody.
type track struct {
	held atomic.Int64   // how long workers had it before its first token went out, nanoseconds
	sent []atomic.Int64 // when each token went out, by offset; 0: it did not
}

// keeps adds the time that a worker had the request for.
func (t *track) keeps(nanoseconds int64) {
	if t != nil {
		t.held.Add(nanoseconds)
	}
}

func (t *track) sends(offset int, at int64) {
	if t != nil && offset < len(t.sent) {
		t.sent[offset].Store(at)
	}
}
