// Package record is what a load generator observes: when each request was due and sent,
// when each message arrived, and how it ended. All reported figures are computed from it.
//
// Anything may import it. It starts no goroutines, reads no clock and does no I/O.
package record

import (
	"iter"
	"strings"
	"time"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Unset is a time that did not occur.
const Unset time.Duration = -1

// Record is one request as seen by its client. Times are since the start of the run, by
// the client's monotonic clock; Unset if they did not occur. It belongs to the goroutine
// that serves the request until that is done.
type Record struct {
	// Index of the request in the run, by due time from 0.
	Index int
	// ID is the server's id of the request, if it sent one.
	ID string
	// Class of the request; empty: the only one.
	Class string
	// Session and Turn locate it in a conversation, from 0.
	Session, Turn int

	// Due is when the request should have been sent.
	Due time.Duration
	// Dispatched is when the generator began to send it; later than Due if it fell
	// behind.
	Dispatched time.Duration
	// Sent is when the transport had its last byte.
	Sent time.Duration
	// Admitted is when the server accepted it.
	Admitted time.Duration
	// Arrivals are the messages with tokens, oldest first.
	Arrivals []Arrival
	// End is when the response ended, in any way.
	End time.Duration

	// Outcome, with the server's Code, a gRPC code's name or "HTTP 503", and shortened
	// Error message.
	Outcome     Outcome
	Code, Error string
	// Reason is why the server refused or failed it, for programs, as the server wrote it:
	// the reason of gRPC's ErrorInfo or the code of OpenAI's error object. Empty: it gave
	// none.
	Reason string

	// Asked is how many tokens it asks for: of its prompt, by the generator's count, and at most
	// of the answer.
	Asked int
	// PromptTokens and CachedTokens as counted by the server; -1 if unknown.
	PromptTokens, CachedTokens int
	// OutputTokens as counted by the server, otherwise by messages.
	OutputTokens int
	// FinishReason as sent by the server: "stop", "length", ….
	FinishReason string
	// Timings is the server's latency budget, if it sent one.
	Timings *inferencev1.Timings
	// Route is the workers that served it, if the server reported them.
	Route *inferencev1.Route
}

// Arrival is one message with tokens.
type Arrival struct {
	// At is when it arrived.
	At time.Duration
	// Tokens in it, at least 1.
	Tokens int32
}

// Outcome is how a request ended.
type Outcome uint8

// Outcomes.
const (
	// Pending: it has not ended.
	Pending Outcome = iota
	// Completed: the whole response arrived.
	Completed
	// Rejected: the server refused it before any token (RESOURCE_EXHAUSTED, UNAVAILABLE,
	// HTTP 429 and 503). If no server was reached, it is Failed.
	Rejected
	// Failed: an error ended it, before or after tokens.
	Failed
	// TimedOut: the client's own limit ended it.
	TimedOut
	// Cancelled: the run ended first. It counts as nobody's failure.
	Cancelled
	// Unsent: the generator could not send it because of its limit of requests in flight,
	// the end of the run, or a lack of memory.
	Unsent
)

// reasonTenantLimit is the reason of a Tandem router whose tenant has as many requests as it
// may, as pkg/api names it.
const reasonTenantLimit = "TENANT_LIMIT"

// TenantLimited reports whether a Tandem router refused the request for its tenant's limit.
// Over HTTP reasons are lower case.
func (r *Record) TenantLimited() bool {
	return r.Outcome == Rejected && strings.EqualFold(r.Reason, reasonTenantLimit)
}

// String is the outcome's name in reports.
func (o Outcome) String() string {
	return [...]string{"pending", "completed", "rejected", "failed", "timed_out", "cancelled", "unsent"}[o]
}

// First is when the first token arrived, or Unset.
func (r *Record) First() time.Duration {
	if len(r.Arrivals) == 0 {
		return Unset
	}
	return r.Arrivals[0].At
}

// Last is when the last token arrived, or Unset.
func (r *Record) Last() time.Duration {
	if len(r.Arrivals) == 0 {
		return Unset
	}
	return r.Arrivals[len(r.Arrivals)-1].At
}

// Run is everything a run of the generator recorded.
type Run struct {
	// Began is the wall-clock time of the start.
	Began time.Time
	// Offered is the requested mean rate, requests per second; 0 for closed loop and
	// traces.
	Offered float64
	// Concurrency is the number of requests kept in flight; 0 in open loop.
	Concurrency int
	// From and To bound the measured window. Requests due before From are warm-up. To is
	// when sending stopped: at the intended end, or earlier if the run was interrupted or
	// the client gave up. For a source that ends by itself, such as a trace in open loop,
	// it is when the last request was due. To is never before From: a run that ended
	// during warm-up has an empty window.
	From, To time.Duration
	// Drained is when the last request ended.
	Drained time.Duration
	// Records of all requests, by Index, including warm-up.
	Records []*Record
	// Samples of the run's state, oldest first, about four per second, the first at 0.
	Samples []Sample
	// Client is what the generator measured about itself.
	Client Client
	// Interrupted: the run was ended early. Its measurements are valid.
	Interrupted bool
}

// Counts is whether a request was due in the measured window.
func (r *Run) Counts(of *Record) bool { return of.Due >= r.From && of.Due <= r.To }

// Window is the requests that were due in the measured window, by Index.
func (r *Run) Window() iter.Seq[*Record] {
	return func(yield func(*Record) bool) {
		for _, of := range r.Records {
			if r.Counts(of) && !yield(of) {
				return
			}
		}
	}
}

// CPUShare is the share of its cores that the client used between From and To, 0 to 1; 0 if that is too
// short to tell.
func (r *Run) CPUShare() float64 {
	share, _ := r.Used(max(r.Client.Cores, 1), func(s *Sample) float64 { return s.CPUSeconds })
	return share
}

// Used is the share of cores by which a count of seconds grew between From and To; ok is false if that is
// too short.
func (r *Run) Used(cores int, seconds func(*Sample) float64) (share float64, ok bool) {
	var first, last *Sample
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.At <= r.From || first == nil {
			first = s
		}
		if s.At <= r.To || last == nil {
			last = s
		}
	}
	if first == nil || last.At-first.At < time.Second {
		return 0, false
	}
	return (seconds(last) - seconds(first)) / ((last.At - first.At).Seconds() * float64(cores)), true
}

// Sample is the state of a run at one time. All but At are counts since the start.
type Sample struct {
	At time.Duration
	// Requests that were due, were sent, were admitted, ended in any way, and ended
	// unsuccessfully.
	Due, Sent, Admitted, Ended, Failed int
	// Tokens received.
	Tokens int64
	// CPUSeconds used by the client's process; BusySeconds used by all processes on its
	// cores, 0 if unknown.
	CPUSeconds, BusySeconds float64
}

// Client is what a generator measured about itself, to tell whether the figures are the
// server's or the client's.
type Client struct {
	// Cores that the process may use.
	Cores int
	// CPUSeconds used from start to drained, of which GCSeconds by the garbage collector.
	CPUSeconds, GCSeconds float64
	// OthersShare is the share of those cores used by other processes between From and
	// To, 0 to 1, including a server on the same machine. Nil: unknown.
	OthersShare *float64
	// GCPauseMax is the longest pause of the garbage collector.
	GCPauseMax time.Duration
	// InFlightMax is the maximum concurrency, InFlightLimit the limit.
	InFlightMax, InFlightLimit int
	// Bottleneck says in one sentence why the client's side limited the run. It begins
	// with MachineBusy if other processes used its processors. Empty: nothing did. If
	// set, there is no verdict.
	Bottleneck string
	// LateAlone: the Bottleneck is that requests were made or sent late, and nothing else.
	LateAlone bool
}

// What limits a run other than the server.
const (
	MachineBusy   = "this machine was busy with other processes"
	clientLimited = "the client was the bottleneck"
)

// Culprit says who limited a run with this Bottleneck: other processes or the client.
func Culprit(bottleneck string) string {
	if strings.HasPrefix(bottleneck, MachineBusy) {
		return MachineBusy
	}
	return clientLimited
}

// Explain is a Bottleneck that begins with its culprit.
func Explain(bottleneck string) string {
	if culprit := Culprit(bottleneck); !strings.HasPrefix(bottleneck, culprit) {
		return culprit + ": " + bottleneck
	}
	return bottleneck
}
