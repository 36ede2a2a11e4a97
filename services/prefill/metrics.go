package prefill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/services/kvtransfer/store"
)

// What came of a hint at a block store.
const (
	fetchOK        = "fetched"
	fetchJoined    = "joined"
	fetchDeclined  = "declined"
	fetchResting   = "resting"
	fetchNoRoom    = "no_room"
	fetchDraining  = "draining"
	fetchMissing   = "missing"
	fetchBusy      = "busy"
	fetchSlow      = "slow"
	fetchAbandoned = "abandoned"
	fetchFailed    = "failed"
)

// What came of a put.
const (
	putOK      = "put"
	putHeld    = "held"
	putBusy    = "busy"
	putRefused = "refused"
	putNoStore = "no_store"
	putLate    = "timeout"
	putStopped = "stopped"
	putFailed  = "failed"
)

// metrics count what went to and came from block stores.
type metrics struct {
	fetches                   *prometheus.CounterVec
	fetchedBlocks, fetchBytes prometheus.Counter
	fetchTimes                prometheus.Histogram
	puts                      *prometheus.CounterVec
	putBytes                  prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, workerID string) (*metrics, error) {
	labels := prometheus.Labels{"worker": workerID}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_prefill_store_fetches_total", Help: "Hints at block stores that have more of a prompt, by what came of them.", ConstLabels: labels,
		}, []string{"result"}),
		fetchedBlocks: counter("tandem_prefill_store_fetched_blocks_total", "KV blocks fetched from block stores."),
		fetchBytes:    counter("tandem_prefill_store_fetched_bytes_total", "KV bytes fetched from block stores."),
		fetchTimes: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tandem_prefill_store_fetch_seconds", Help: "Time that fetches took that succeeded.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14), ConstLabels: labels,
		}),
		puts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_prefill_store_puts_total", Help: "Prefixes near their eviction that were offered to block stores, by what came of them.", ConstLabels: labels,
		}, []string{"result"}),
		putBytes: counter("tandem_prefill_store_put_bytes_total", "KV bytes put into block stores."),
	}
	for _, result := range []string{fetchOK, fetchJoined, fetchDeclined, fetchResting, fetchNoRoom, fetchDraining, fetchMissing, fetchBusy, fetchSlow, fetchAbandoned, fetchFailed} {
		m.fetches.WithLabelValues(result)
	}
	for _, result := range []string{putOK, putHeld, putBusy, putRefused, putNoStore, putLate, putStopped, putFailed} {
		m.puts.WithLabelValues(result)
	}
	for _, c := range []prometheus.Collector{m.fetches, m.fetchedBlocks, m.fetchBytes, m.fetchTimes, m.puts, m.putBytes} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) fetch(result string) { m.fetches.WithLabelValues(result).Inc() }

func (m *metrics) fetched(blocks int, bytes uint64, took time.Duration) {
	m.fetch(fetchOK)
	m.fetchedBlocks.Add(float64(blocks))
	m.fetchBytes.Add(float64(bytes))
	m.fetchTimes.Observe(took.Seconds())
}

func (m *metrics) put(result string, bytes uint64) {
	m.puts.WithLabelValues(result).Inc()
	m.putBytes.Add(float64(bytes))
}

// fetchFailure names the end of a fetch that failed.
func fetchFailure(err error) string {
	switch {
	case errors.Is(err, errTooSlow):
		return fetchSlow
	case errors.Is(err, errAbandoned), errors.Is(err, errClosing):
		return fetchAbandoned
	}
	if _, is := errors.AsType[*store.MissingError](err); is {
		return fetchMissing
	}
	if _, is := errors.AsType[*store.BusyError](err); is {
		return fetchBusy
	}
	return fetchFailed
}

func putResult(err error) string {
	switch {
	case err == nil:
		return putOK
	case errors.Is(err, store.ErrHeld):
		return putHeld
	case errors.Is(err, errStopped), errors.Is(err, errClosing):
		return putStopped
	}
	if _, is := errors.AsType[*store.BusyError](err); is {
		return putBusy
	}
	if _, is := errors.AsType[*store.LayoutError](err); is {
		return putRefused
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return putLate
	}
	return putFailed
}
