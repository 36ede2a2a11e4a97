package prefill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/kvtransfer/storeclient"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
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
	fetchSpoilt    = "not_finite"
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
	putSpoilt  = "not_finite"
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
	set := metricset.ForWorker(registerer, workerID)
	m := &metrics{
		fetches: set.Counters("tandem_prefill_store_fetches_total", "Hints that a block store has more of a prompt than this worker, by result.", "result",
			fetchOK, fetchJoined, fetchDeclined, fetchResting, fetchNoRoom, fetchDraining, fetchMissing, fetchBusy, fetchSlow, fetchAbandoned, fetchSpoilt, fetchFailed),
		fetchedBlocks: set.Counter("tandem_prefill_store_fetched_blocks_total", "KV blocks fetched from block stores."),
		fetchBytes:    set.Counter("tandem_prefill_store_fetched_bytes_total", "KV bytes fetched from block stores."),
		fetchTimes:    set.Histogram("tandem_prefill_store_fetch_seconds", "Time of successful fetches, in seconds.", 0.0005, 14),
		puts: set.Counters("tandem_prefill_store_puts_total", "Prefixes near their eviction that were offered to a block store, by result.", "result",
			putOK, putHeld, putBusy, putRefused, putNoStore, putLate, putStopped, putSpoilt, putFailed),
		putBytes: set.Counter("tandem_prefill_store_put_bytes_total", "KV bytes sent in puts to block stores."),
	}
	if err := set.Err(); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
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
	case errors.Is(err, errNotFinite):
		return fetchSpoilt
	}
	if _, is := errors.AsType[*storeclient.MissingError](err); is {
		return fetchMissing
	}
	if _, is := errors.AsType[*storeclient.BusyError](err); is {
		return fetchBusy
	}
	return fetchFailed
}

func putResult(err error) string {
	switch {
	case err == nil:
		return putOK
	case errors.Is(err, storeclient.ErrHeld):
		return putHeld
	case errors.Is(err, errStopped), errors.Is(err, errClosing):
		return putStopped
	}
	if _, is := errors.AsType[*storeclient.BusyError](err); is {
		return putBusy
	}
	if _, is := errors.AsType[*storeclient.LayoutError](err); is {
		return putRefused
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return putLate
	}
	return putFailed
}
