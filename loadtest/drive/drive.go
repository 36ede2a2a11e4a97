// Package drive sends a workload's requests to a server when they are due, and measures
// the generator's own influence.
//
// Anything may import it. A Run owns one goroutine for each request in flight and three
// others (the source, the samples, the wait for the end), and dispatches in its
// caller's; all have ended when it returns.
//
// # Open loop
//
// A request is sent when it is due, whatever the server does. One that is due while
// InFlightLimit requests are in flight is recorded as Unsent: sending it later would
// let the server slow the load down. A goroutine keeps the source some requests ahead,
// so that making prompts delays no dispatch.
//
// # When the client was the bottleneck
//
// A Run says in record.Client.Bottleneck that its figures are not the server's, if
//
//   - a request was due while InFlightLimit requests were in flight;
//   - this machine could not send a request, as with too few open files or ports;
//   - the client fell so far behind, or its records took so much memory, that it
//     stopped sending;
//   - more than 1% of the requests, and more than one, came from the source after they
//     were due;
//   - the p99 dispatch delay (Dispatched - Due) after the warm-up exceeds a millisecond
//     and a tenth of the p99 TTFT from the send. The delay is part of every latency and
//     reported, but the tail would be the client's own. Of fewer than a hundred
//     requests, two must be so late;
//   - the process used more than nine tenths of its cores between From and To.
//
// The first that applies is reported. If the client was late, the report also says who
// used its processors: the client, or others.
package drive

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/finetimer"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

const (
	// DefaultInFlightLimit is the default limit of concurrent requests. Each costs the
	// client about 40 KiB.
	DefaultInFlightLimit = 16384
	// DefaultMemoryLimit is the default memory of a run's records, bytes.
	DefaultMemoryLimit = 2 << 30
	// recordBytes is the measured size of a record without arrivals, mostly the server's
	// timings and route. arrivalBytes is that of one arrival.
	recordBytes  = 900
	arrivalBytes = 20
	// prefetched is how many requests the source is kept ahead.
	prefetched = 512
	// prefetchTimeout bounds the initial wait until the source is ahead.
	prefetchTimeout = 10 * time.Second
	// behindLimit is how late the client may be before it stops sending.
	behindLimit = 10 * time.Second
	// interruptedDrain is how long requests may continue after an interruption.
	interruptedDrain = time.Second
	// lateFromSource is the lateness attributed to the source.
	lateFromSource = time.Millisecond
	// sampleEvery is the time between samples.
	sampleEvery = 250 * time.Millisecond
)

// Options configure a run.
type Options struct {
	// Client for the server; the caller closes it.
	Client client.Client
	// Source of the requests.
	Source workload.Source
	// Offered is the source's rate, requests per second, for the record; 0: none.
	Offered float64
	// Concurrency is the number of requests kept in flight, including users' think time;
	// 0: open loop.
	Concurrency int
	// Warmup and Duration follow one another, and nothing is sent after them. Duration 0:
	// until the source ends.
	Warmup, Duration time.Duration
	// Lasts: an open loop continues to the end of Duration even if the source ends
	// earlier, since that only means that nothing more is due. Otherwise the run ends
	// with the source.
	Lasts bool
	// RequestTimeout of each request, from when it was sent; 0: none.
	RequestTimeout time.Duration
	// DrainTimeout is how long requests may continue after sending stops, before they are
	// Cancelled. 0: not at all.
	DrainTimeout time.Duration
	// InFlightLimit of concurrent requests; 0: DefaultInFlightLimit.
	InFlightLimit int
	// MemoryLimit is the approximate memory of the records, bytes, at which sending
	// stops; 0: DefaultMemoryLimit.
	MemoryLimit int64
	// Progress, if set, receives each sample, from one goroutine.
	Progress func(record.Sample)
	// Busy is the processor time used by all processes on this process's cores, seconds;
	// ok is false if unknown. Nil: from the system.
	Busy func() (seconds float64, ok bool)
	// Timer waits for due times; Run closes it. Nil: the most precise one. Tests on
	// virtual time pass finetimer.Portable.
	Timer finetimer.Timer
}

// Complete sets the defaults of zero fields, except Timer, and validates the options. Run
// calls it.
func (o *Options) Complete() error {
	o.InFlightLimit = cmp.Or(o.InFlightLimit, DefaultInFlightLimit)
	o.MemoryLimit = cmp.Or(o.MemoryLimit, DefaultMemoryLimit)
	switch {
	case o.Client == nil || o.Source == nil:
		return errors.New("a run needs a client and a source")
	case o.Concurrency < 0 || o.InFlightLimit < 0 || o.MemoryLimit < 0:
		return errors.New("concurrency and limits must not be negative")
	case o.Concurrency > o.InFlightLimit:
		return fmt.Errorf("a concurrency of %d is above the limit of %d requests in flight: raise the limit or lower the concurrency", o.Concurrency, o.InFlightLimit)
	case o.Warmup < 0 || o.Duration < 0 || o.RequestTimeout < 0 || o.DrainTimeout < 0:
		return errors.New("a run's times must not be negative")
	case math.IsNaN(o.Offered) || math.IsInf(o.Offered, 0) || o.Offered < 0:
		return fmt.Errorf("a rate of %v requests per second: give 0 or more", o.Offered)
	}
	return Fits(o.Offered, o.Warmup+o.Duration, o.MemoryLimit)
}

// Fits reports as an error that the records of a rate, requests per second, for a time take
// more memory than limit, bytes. Complete calls it.
func Fits(rate float64, length time.Duration, limit int64) error {
	requests := rate * length.Seconds()
	if need := requests * recordBytes; need > float64(limit) {
		return fmt.Errorf("%.0f requests/s for %s are %.0f requests, whose records need %.1f GiB, more than the %.1f GiB allowed: lower the rate or the duration",
			rate, length, requests, need/(1<<30), float64(limit)/(1<<30))
	}
	return nil
}
