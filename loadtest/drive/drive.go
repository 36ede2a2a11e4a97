// Package drive sends the requests of a workload to a server when they are due,
// and measures what the generator itself had a share in.
//
// Anything may import it. A Run owns one goroutine for each request in flight and
// three of its own (the source, the samples, the wait for the end), and dispatches in
// its caller's; all have ended when it returns.
//
// # Open loop
//
// A request goes out when it is due, whatever the server does. One that is due
// while InFlightLimit requests run is recorded as Unsent: sending it later would
// turn the load into what the server likes. A goroutine keeps the source some
// requests ahead, so that making prompts delays no dispatch.
//
// # When the client was the bottleneck
//
// A Run says in record.Client.Bottleneck that its figures are not the server's, if
//
//   - a request was due while InFlightLimit requests ran;
//   - this machine could not send a request, as with too few open files;
//   - the client fell so far behind, or its records took so much memory, that it
//     stopped sending;
//   - more than one request in a hundred came from the source after it was due, and
//     more than one in all;
//   - the dispatch delay (Dispatched - Due) of requests after the warm-up is, at
//     p99, above a millisecond and above a tenth of the TTFT from the send at p99: it
//     is part of every latency and named, but the tail would be the client's own. Of
//     a hundred requests or fewer it takes two that are so late;
//   - the process used more than nine tenths of its cores between From and To.
//
// The first that applies is said. Where the client was late, it is also said who had
// its processors meanwhile: it, or others.
package drive

import (
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
	// DefaultInFlightLimit is the most requests at one time. Each costs the client some
	// 40 KiB.
	DefaultInFlightLimit = 16384
	// DefaultMemoryLimit is how much the records of a run may take, bytes.
	DefaultMemoryLimit = 2 << 30
	// recordBytes is what a record takes without its arrivals, as measured: the server's
	// timings and route are most of it. arrivalBytes is one arrival's share.
	recordBytes  = 900
	arrivalBytes = 20
	// prefetched is how many requests the source is kept ahead.
	prefetched = 512
	// prefetchTimeout is the longest that a run waits, before it begins, until the
	// source is ahead.
	prefetchTimeout = 10 * time.Second
	// behindLimit is how far the client may fall behind before it stops sending.
	behindLimit = 10 * time.Second
	// interruptedDrain is how long requests may run on after an interruption.
	interruptedDrain = time.Second
	// lateFromSource is the lateness that counts as the source's.
	lateFromSource = time.Millisecond
	// failedPause is how long a place stays empty in closed loop after a request that
	// failed or was refused: without it, a server that refuses at once would be flooded
	// with as many as the client can send.
	failedPause = 100 * time.Millisecond
	// sampleEvery is the time between samples.
	sampleEvery = 250 * time.Millisecond
)

// Options say what to run.
type Options struct {
	// Client speaks to the server; the caller closes it.
	Client client.Client
	// Source gives the requests.
	Source workload.Source
	// Offered is the rate that the source was asked for, requests a second, for the
	// record; 0 if it has none.
	Offered float64
	// Concurrency is how many requests to keep in flight, the time in which a
	// conversation's user thinks included; 0: open loop.
	Concurrency int
	// Warmup and Duration follow one another; nothing is sent after both. Duration 0:
	// until the source ends.
	Warmup, Duration time.Duration
	// Lasts: an open loop goes on until both are over even if the source has ended
	// before, since that only says that nothing more is due. Otherwise the run ends with
	// the source.
	Lasts bool
	// RequestTimeout ends a request that long after it was sent; 0: none.
	RequestTimeout time.Duration
	// DrainTimeout is how long requests may run on when sending has stopped; those
	// that still run then are Cancelled. 0: not at all.
	DrainTimeout time.Duration
	// InFlightLimit is the most requests at one time; 0: DefaultInFlightLimit.
	InFlightLimit int
	// MemoryLimit is about how much memory the records may take, bytes; 0:
	// DefaultMemoryLimit. Sending stops there.
	MemoryLimit int64
	// Progress gets each sample when it is taken, from one goroutine; nil: nobody.
	Progress func(record.Sample)
	// Busy is the processor time that all processes have used on the cores that this one
	// may use, seconds; false if nobody knows. Nil: what the system says.
	Busy func() (seconds float64, ok bool)
	// Timer waits for the moments at which requests are due; Run closes it. Nil: the
	// most precise one. Tests on virtual time pass finetimer.Portable.
	Timer finetimer.Timer
}

// validate checks options with their defaults.
func (o Options) validate() error {
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
	if need := o.Offered * (o.Warmup + o.Duration).Seconds() * recordBytes; need > float64(o.MemoryLimit) {
		return fmt.Errorf("%.0f requests/s for %s are %.0f requests, whose records need %.1f GiB, more than the %.1f GiB allowed: lower the rate or the duration",
			o.Offered, o.Warmup+o.Duration, o.Offered*(o.Warmup+o.Duration).Seconds(), need/(1<<30), float64(o.MemoryLimit)/(1<<30))
	}
	return nil
}
