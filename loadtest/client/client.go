// Package client sends requests to servers and notes what comes back, when. There
// is one for Tandem's gRPC API and one for HTTP servers that follow OpenAI's.
//
// Anything may import it. A client owns its connections; the goroutines that it
// starts end with Close.
package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Client speaks to the server under load. All methods are safe for concurrent use.
type Client interface {
	// Describe says what is measured. It asks the server, so it also finds out early
	// that nobody is there; the error says what to do.
	Describe(ctx context.Context) (Description, error)
	// Do sends a request, waits for the whole answer, and fills r from Sent on:
	// everything that happens is in r, Outcome and Error included. A cancelled ctx
	// ends it soon, with Outcome Cancelled; a deadline of ctx with TimedOut. The
	// answer is kept only if q.Then is set.
	Do(ctx context.Context, q *workload.Request, clock Clock, r *record.Record) workload.Answer
	// Close ends connections. No Do may be running.
	Close() error
}

// Description says what is measured.
type Description struct {
	// Kind is "tandem", "openai" or another protocol.
	Kind string `json:"kind"`
	// Address is what was dialled.
	Address string `json:"address"`
	// Model is the model's name.
	Model string `json:"model"`
	// VocabularySize and ContextTokens are the model's; 0 if the server does not say.
	VocabularySize int `json:"vocabulary_size,omitempty"`
	ContextTokens  int `json:"context_tokens,omitempty"`
	// TextOnly: it takes text, not token ids.
	TextOnly bool `json:"text_only,omitempty"`
	// Server is what it calls itself; empty if it does not say.
	Server string `json:"server,omitempty"`
}

// Clock counts from the start of a run, by the monotonic clock, and takes note of
// what comes.
type Clock struct {
	start  time.Time
	counts *Counts
}

// NewClock is a clock whose 0 is start. It counts nothing.
func NewClock(start time.Time) Clock { return Clock{start: start} }

// Counting is the same clock, with the counts that clients add to.
func (c Clock) Counting(counts *Counts) Clock { return Clock{c.start, counts} }

// Now is the time since the start.
func (c Clock) Now() time.Duration { return time.Since(c.start) }

// Start is the clock's 0.
func (c Clock) Start() time.Time { return c.start }

// CountAdmitted notes, for a run's progress, that the server accepted a request.
func (c Clock) CountAdmitted() {
	if c.counts != nil {
		c.counts.admitted.Add(1)
	}
}

// CountTokens notes, for a run's progress, that n tokens came.
func (c Clock) CountTokens(n int) {
	if c.counts != nil {
		c.counts.tokens.Add(int64(n))
	}
}

// Counts are what has come so far in a run, for its live progress. All methods are
// safe for concurrent use; the zero value is ready.
type Counts struct {
	admitted, tokens atomic.Int64
}

// Admitted is how many requests the server accepted.
func (c *Counts) Admitted() int { return int(c.admitted.Load()) }

// Tokens is how many tokens came.
func (c *Counts) Tokens() int64 { return c.tokens.Load() }
