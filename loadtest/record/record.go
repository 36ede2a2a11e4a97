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

// Run is everything that one run of the generator saw.
type Run struct {
	// Began is the wall clock's time at the start, for people.
	Began time.Time
	// Offered is the mean rate that was asked for, requests a second; 0 with closed
	// loop and traces.
	Offered float64
	// Concurrency is the number of requests kept in flight; 0 with open loop.
	Concurrency int
	// From and To bound what counts: requests due before From are warm-up, and To is
	// when sending stopped: at the end of the time that it was to last, or before if it
	// was interrupted or the client gave up. Of a source that ends by itself, such as a
	// trace in open loop, it is when the last request was due. To is never before From:
	// a run that ended during the warm-up has an empty window.
	From, To time.Duration
	// Drained is when the last request ended.
	Drained time.Duration
	// Records are all requests, by Index, warm-up included.
	Records []*Record
	// Samples are the run's state, oldest first, about four a second, the first at 0.
	Samples []Sample
	// Client is what the generator measured of itself.
	Client Client
	// Interrupted: it was ended before its time; what was measured stands.
	Interrupted bool
}

// Sample is the state of a run at one moment. All but At are counts since the start.
type Sample struct {
	At time.Duration
	// Due requests should have been sent, Sent were, Admitted were accepted by the
	// server, Ended ended in any way, Failed ended not well.
	Due, Sent, Admitted, Ended, Failed int
	// Tokens came.
	Tokens int64
	// CPUSeconds the client's process used; BusySeconds all processes used on the cores
	// that it may use, 0 if the system does not say.
	CPUSeconds, BusySeconds float64
}

// Client is what a generator measured of itself. It tells whether the figures are
// the server's or the client's own.
type Client struct {
	// Cores is how many CPUs the process may use.
	Cores int
	// CPUSeconds it used, of which GCSeconds in the collector's work, from start to drained.
	CPUSeconds, GCSeconds float64
	// OthersShare is the share of those CPUs that other processes used between From and To,
	// 0 to 1: the server, if it runs on this machine, is one of them. Nil: the system does
	// not say.
	OthersShare *float64
	// GCPauseMax is the longest pause of the collector.
	GCPauseMax time.Duration
	// InFlightMax is the most requests at one time, InFlightLimit the limit.
	InFlightMax, InFlightLimit int
	// Bottleneck says in one sentence why the client's side, not the server, limited the
	// run: the client itself, or others that had its processors. Empty if neither did.
	// With one there is no verdict.
	Bottleneck string
}
