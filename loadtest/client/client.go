// Package client sends requests to servers and records the responses with their times. It
// has clients for Tandem's gRPC API and for OpenAI-compatible HTTP servers.
//
// Anything may import it. A client owns its connections; its goroutines end with Close.
package client

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Client talks to the server under load. Its methods are safe for concurrent use.
type Client interface {
	// Describe asks the server what it is, and so detects early that it is unreachable.
	// The error says what to do.
	Describe(ctx context.Context) (Description, error)
	// Do sends a request, waits for the whole response, and fills r from Sent on,
	// including Outcome and Error. Cancelling ctx gives Outcome Cancelled, its deadline
	// TimedOut. The answer is kept only if q.Then is set.
	Do(ctx context.Context, q *workload.Request, clock Clock, r *record.Record) workload.Answer
	// Close closes connections. No Do may be running.
	Close() error
}

// Description is the server under load.
type Description struct {
	// Kind is the protocol: "tandem", "openai" or another.
	Kind string `json:"kind"`
	// Address dialled.
	Address string `json:"address"`
	// Model is the model's name.
	Model string `json:"model"`
	// VocabularySize and ContextTokens of the model; 0 if the server does not report
	// them.
	VocabularySize int `json:"vocabulary_size,omitempty"`
	ContextTokens  int `json:"context_tokens,omitempty"`
	// TextOnly: accepts text but not token ids.
	TextOnly bool `json:"text_only,omitempty"`
	// Server is its name and version, if reported.
	Server string `json:"server,omitempty"`
}

// Clock is the time since the start of a run, monotonic, with the run's counts.
type Clock struct {
	start  time.Time
	counts *Counts
}

// NewClock returns a clock that starts at start, without counts.
func NewClock(start time.Time) Clock { return Clock{start: start} }

// Counting returns the same clock with counts for clients to add to.
func (c Clock) Counting(counts *Counts) Clock { return Clock{c.start, counts} }

// Now is the time since the start.
func (c Clock) Now() time.Duration { return time.Since(c.start) }

// Start is the clock's time 0.
func (c Clock) Start() time.Time { return c.start }

// CountAdmitted counts an admitted request for live progress.
func (c Clock) CountAdmitted() {
	if c.counts != nil {
		c.counts.admitted.Add(1)
	}
}

// CountTokens counts received tokens for live progress.
func (c Clock) CountTokens(n int) {
	if c.counts != nil {
		c.counts.tokens.Add(int64(n))
	}
}

// Counts are a run's live counts. Methods are safe for concurrent use; the zero value is
// ready.
type Counts struct {
	admitted, tokens atomic.Int64
}

// Admitted is the number of admitted requests.
func (c *Counts) Admitted() int { return int(c.admitted.Load()) }

// Tokens is the number of tokens received.
func (c *Counts) Tokens() int64 { return c.tokens.Load() }
