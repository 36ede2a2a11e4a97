package record

import "time"

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
	// CPUSeconds the client's process used.
	CPUSeconds float64
}

// Client is what a generator measured of itself. It tells whether the figures are
// the server's or the client's own.
type Client struct {
	// Cores is how many CPUs the process may use.
	Cores int
	// CPUSeconds it used, of which GCSeconds in the collector's work, from start to drained.
	CPUSeconds, GCSeconds float64
	// GCPauseMax is the longest pause of the collector.
	GCPauseMax time.Duration
	// InFlightMax is the most requests at one time, InFlightLimit the limit.
	InFlightMax, InFlightLimit int
	// Bottleneck says in one sentence why the client, not the server, limited the
	// run; empty if it did not. With one there is no verdict.
	Bottleneck string
}
