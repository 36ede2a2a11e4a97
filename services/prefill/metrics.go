package prefill

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/offload"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
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
			offload.FetchOK, offload.FetchJoined, offload.FetchDeclined, offload.FetchBackingOff, offload.FetchNoBlocks, offload.FetchDraining, offload.FetchMissing, offload.FetchBusy, offload.FetchSlow, offload.FetchAbandoned, offload.FetchNotFinite, offload.FetchFailed),
		fetchedBlocks: set.Counter("tandem_prefill_store_fetched_blocks_total", "KV blocks fetched from block stores."),
		fetchBytes:    set.Counter("tandem_prefill_store_fetched_bytes_total", "KV bytes fetched from block stores."),
		fetchTimes:    set.Histogram("tandem_prefill_store_fetch_seconds", "Time of successful fetches, in seconds.", 0.0005, 14),
		puts: set.Counters("tandem_prefill_store_puts_total", "Prefixes near their eviction that were offered to a block store, by result.", "result",
			offload.PutOK, offload.PutHeld, offload.PutArriving, offload.PutBusy, offload.PutRefused, offload.PutNoStore, offload.PutLate, offload.PutStopped, offload.PutNotFinite, offload.PutFailed),
		putBytes: set.Counter("tandem_prefill_store_put_bytes_total", "KV bytes sent in puts to block stores."),
	}
	if err := set.Err(); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return m, nil
}

func (m *metrics) fetch(result string) { m.fetches.WithLabelValues(result).Inc() }

func (m *metrics) fetched(blocks int, bytes uint64, took time.Duration) {
	m.fetch(offload.FetchOK)
	m.fetchedBlocks.Add(float64(blocks))
	m.fetchBytes.Add(float64(bytes))
	m.fetchTimes.Observe(took.Seconds())
}

func (m *metrics) put(result string, bytes uint64) {
	m.puts.WithLabelValues(result).Inc()
	m.putBytes.Add(float64(bytes))
}
