package calibrate

import (
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Result is the outcome of a measurement. All times are milliseconds.
type Result struct {
	Plan Plan `json:"plan"`
	// Requests due in the measured time, and how many of them succeeded.
	Requests  int `json:"requests"`
	Completed int `json:"completed"`
	// Tokens received for them.
	Tokens int `json:"tokens"`
	// StreamsMax is the maximum concurrency.
	StreamsMax int `json:"streams_max"`
	// Cores of the generator, the share of them it used, the garbage collector's part of
	// that, and its longest pause.
	Cores      int     `json:"cores"`
	CPUShare   float64 `json:"cpu_share"`
	GCShare    float64 `json:"gc_share"`
	GCPauseMax float64 `json:"gc_pause_max_ms"`
	// ServerCPUSeconds used by the fake server since its start.
	ServerCPUSeconds float64 `json:"server_cpu_seconds"`
	// Pinned: generator and fake server each had their own core.
	Pinned bool `json:"pinned"`
	// DispatchDelay is from the due time to the start of sending, SendTime from there
	// until the transport has the request.
	DispatchDelay Spread `json:"dispatch_delay_ms"`
	SendTime      Spread `json:"send_time_ms"`
	// Delivery is from the fake server's write of a token to the generator's read.
	Delivery Spread `json:"delivery_ms"`
	// ServerLateness is how far the fake server was behind its schedule.
	ServerLateness Spread `json:"server_lateness_ms"`
	// TTFT (from the due time) and ITL, compared with the injected values.
	TTFT Error `json:"ttft"`
	ITL  Error `json:"itl"`
	// Bottleneck is the generator's own verdict.
	Bottleneck string `json:"bottleneck,omitempty"`
	// Failure of the first request that failed.
	Failure string `json:"failure,omitempty"`
}

// Spread is a distribution, milliseconds.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Error compares a latency as injected, as sent by the fake server, and as reported by
// the generator, milliseconds.
type Error struct {
	Injected Spread `json:"injected"`
	Sent     Spread `json:"sent"`
	Reported Spread `json:"reported"`
	// P50 and P99 are reported minus injected: the error of generator and fake server
	// together.
	P50 float64 `json:"error_p50"`
	P99 float64 `json:"error_p99"`
	// Each is the distribution of that difference over samples.
	Each Spread `json:"error_each"`
}

// join compares what was seen with what was served.
func join(p Plan, server served, client seen) (*Result, error) {
	log := make(map[string]int, len(server.Log))
	for i, d := range server.Log {
		log[d.ID] = i
	}
	// The generator's time 0 by the fake server's clock.
	shift := time.Duration(client.Start - server.Start)
	r := &Result{
		Plan: p, StreamsMax: client.Client.InFlightMax, Cores: client.Client.Cores, CPUShare: client.CPUShare,
		GCPauseMax: stats.Milliseconds(client.Client.GCPauseMax), Bottleneck: client.Client.Bottleneck, ServerCPUSeconds: server.CPUSeconds,
	}
	if client.Client.CPUSeconds > 0 {
		r.GCShare = client.Client.GCSeconds / client.Client.CPUSeconds
	}
	var dispatch, send, delivery, late []time.Duration
	var ttft, itl pairs
	for _, q := range client.Requests {
		if q.Due < client.From {
			continue
		}
		r.Requests++
		if q.Dispatched >= 0 {
			dispatch = append(dispatch, q.Dispatched-q.Due)
		}
		if !q.Completed {
			if r.Failure == "" {
				r.Failure = q.Error
			}
			continue
		}
		r.Completed++
		r.Tokens += len(q.Arrivals)
		send = append(send, q.Sent-q.Dispatched)
		i, ok := log[q.ID]
		if !ok || len(server.Log[i].Sent) != len(q.Arrivals) {
			return nil, fmt.Errorf("request %q was reported with %d messages, which is not what the fake server sent", q.ID, len(q.Arrivals))
		}
		d := server.Log[i]
		ttft.add(d.Due[0]-d.Arrived, d.Sent[0]-d.Arrived, q.Arrivals[0]-q.Due)
		for k, at := range q.Arrivals {
			delivery = append(delivery, at+shift-d.Sent[k])
			late = append(late, d.Sent[k]-d.Due[k])
			if k > 0 {
				itl.add(d.Due[k]-d.Due[k-1], d.Sent[k]-d.Sent[k-1], at-q.Arrivals[k-1])
			}
		}
	}
	r.DispatchDelay, r.SendTime, r.Delivery, r.ServerLateness = spread(dispatch), spread(send), spread(delivery), spread(late)
	r.TTFT, r.ITL = ttft.error(), itl.error()
	return r, nil
}

// pairs are samples of a latency, in the same order.
type pairs struct{ injected, sent, reported, each []time.Duration }

func (p *pairs) add(injected, sent, reported time.Duration) {
	p.injected, p.sent, p.reported = append(p.injected, injected), append(p.sent, sent), append(p.reported, reported)
	p.each = append(p.each, reported-injected)
}

func (p *pairs) error() Error {
	e := Error{Injected: spread(p.injected), Sent: spread(p.sent), Reported: spread(p.reported), Each: spread(p.each)}
	e.P50, e.P99 = e.Reported.P50-e.Injected.P50, e.Reported.P99-e.Injected.P99
	return e
}

// spread sorts the values.
func spread(values []time.Duration) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	slices.Sort(values)
	at := func(p float64) float64 { return stats.Milliseconds(stats.Quantile(values, p)) }
	return Spread{P50: at(.5), P99: at(.99), Max: at(1)}
}
