// Package record is what a load generator sees of each request: when it was due,
// when it was sent, when each message came, how it ended. Everything that a report
// says is computed from it.
//
// Anything may import it. It starts no goroutines, reads no clock and does no I/O.
package record

import (
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Unset is a moment that did not come.
const Unset time.Duration = -1

// Record is one request as its client saw it. All moments are since the start of
// the run, by the client's monotonic clock; Unset if they did not come. It belongs
// to the goroutine that serves the request until that is done.
type Record struct {
	// Index counts the requests of a run from 0, in the order in which they were due.
	Index int
	// ID is the server's id of the request; empty if it told none.
	ID string
	// Class is the request's class; empty: the only one.
	Class string
	// Session and Turn place it in a conversation; both count from 0.
	Session, Turn int

	// Due is when the request should have been sent.
	Due time.Duration
	// Dispatched is when the generator began to send it; later than Due if the
	// generator fell behind.
	Dispatched time.Duration
	// Sent is when its last byte was handed to the transport.
	Sent time.Duration
	// Admitted is when the server said that it will serve it.
	Admitted time.Duration
	// Arrivals are the messages with tokens, oldest first.
	Arrivals []Arrival
	// End is when the answer ended, well or not.
	End time.Duration

	// Outcome says how it ended; Code and Error what the server said then: a gRPC
	// code's name or "HTTP 503", and its message, shortened.
	Outcome     Outcome
	Code, Error string

	// PromptTokens and CachedTokens are counted by the server; -1 if it did not say.
	PromptTokens, CachedTokens int
	// OutputTokens are counted by the server if it did, otherwise by messages.
	OutputTokens int
	// FinishReason is the server's word: "stop", "length", ….
	FinishReason string
	// Timings is the server's latency budget; nil if it sent none.
	Timings *inferencev1.Timings
	// Route is which workers served it; nil if the server did not say.
	Route *inferencev1.Route
}

// Arrival is one message with tokens.
type Arrival struct {
	// At is when it came.
	At time.Duration
	// Tokens is how many it carried, at least 1.
	Tokens int32
}

// Outcome says how a request ended.
type Outcome uint8

// The outcomes.
const (
	// Pending: it has not ended.
	Pending Outcome = iota
	// Completed: the whole answer came.
	Completed
	// Rejected: the server itself refused it before any token (RESOURCE_EXHAUSTED,
	// UNAVAILABLE, HTTP 429 and 503). One that did not reach a server is Failed.
	Rejected
	// Failed: it ended with an error, before or after tokens.
	Failed
	// TimedOut: the client's own limit on a request ended it.
	TimedOut
	// Cancelled: the run was over before it ended; it is nobody's failure.
	Cancelled
	// Unsent: the generator could not send it: its limit of requests in flight or the
	// end of the run came before, or its machine had no memory for it.
	Unsent
)

// String is the outcome's name in reports.
func (o Outcome) String() string {
	return [...]string{"pending", "completed", "rejected", "failed", "timed_out", "cancelled", "unsent"}[o]
}

// First is when the first token came, Unset if none did.
func (r *Record) First() time.Duration {
	if len(r.Arrivals) == 0 {
		return Unset
	}
	return r.Arrivals[0].At
}

// Last is when the last token came, Unset if none did.
func (r *Record) Last() time.Duration {
	if len(r.Arrivals) == 0 {
		return Unset
	}
	return r.Arrivals[len(r.Arrivals)-1].At
}
