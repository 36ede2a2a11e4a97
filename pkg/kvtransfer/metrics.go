package kvtransfer

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// RegisterMetrics registers the receiver's metrics with the label worker. They are read on
// collection.
func (r *Receiver) RegisterMetrics(registerer prometheus.Registerer) error {
	set := metricset.ForWorker(registerer, r.cfg.WorkerID)
	set.CounterFunc("tandem_kvtransfer_received_bytes_total", "KV payload bytes that arrived in this receiver's pages.", nil,
		func() float64 { return float64(r.Stats().PayloadBytes) })
	for end, count := range map[string]func(ReceiverStats) uint64{
		"committed": func(s ReceiverStats) uint64 { return s.Committed },
		"failed":    func(s ReceiverStats) uint64 { return s.Failed },
		"aborted":   func(s ReceiverStats) uint64 { return s.Aborted },
		"broken":    func(s ReceiverStats) uint64 { return s.Broken },
		"cancelled": func(s ReceiverStats) uint64 { return s.Cancelled },
	} {
		set.CounterFunc("tandem_kvtransfer_received_total", "KV transfers that ended at this receiver, by their end.", prometheus.Labels{"end": end},
			func() float64 { return float64(count(r.Stats())) })
	}
	if err := set.Err(); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// SentBytes counts the KV bytes that a worker sent to decode workers, by transport, and those of them
// that were not copied.
type SentBytes struct {
	counter *prometheus.CounterVec
	stored  prometheus.Counter
}

// NewSentBytes registers the counter with the label worker.
func NewSentBytes(registerer prometheus.Registerer, workerID string) (SentBytes, error) {
	set := metricset.ForWorker(registerer, workerID)
	s := SentBytes{counter: set.Counters("tandem_kvtransfer_sent_bytes_total", "KV payload bytes sent to decode workers, by transport.", "transport",
		TransportTCP, TransportUnix, TransportShm, transportDevice)} // shown as 0 before the first transfer
	s.stored = set.Counter("tandem_kvtransfer_stored_bytes_total", "KV payload bytes that the engine stored in decode workers' pages itself.")
	if err := set.Err(); err != nil {
		return s, fmt.Errorf("register metrics: %w", err)
	}
	return s, nil
}

// Add counts the bytes of a transfer that has ended.
func (s SentBytes) Add(t TransferStats) {
	s.counter.WithLabelValues(t.Transport).Add(float64(t.Bytes))
	s.stored.Add(float64(t.Stored))
}
