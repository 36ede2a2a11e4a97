package kvtransfer

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// RegisterMetrics registers the receiver's metrics with the label worker. They are read on
// collection.
func (r *Receiver) RegisterMetrics(registerer prometheus.Registerer) error {
	labels := prometheus.Labels{"worker": r.cfg.WorkerID}
	err := registerer.Register(&receiverMetrics{
		stats: r.Stats,
		bytes: prometheus.NewDesc("tandem_kvtransfer_received_bytes_total", "KV payload bytes that arrived in this receiver's pages.", nil, labels),
		ended: prometheus.NewDesc("tandem_kvtransfer_received_total", "KV transfers that ended at this receiver, by their end.", []string{"end"}, labels),
	})
	if err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

type receiverMetrics struct {
	stats        func() ReceiverStats
	bytes, ended *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (m *receiverMetrics) Describe(descs chan<- *prometheus.Desc) { descs <- m.bytes; descs <- m.ended }

// Collect implements prometheus.Collector.
func (m *receiverMetrics) Collect(metrics chan<- prometheus.Metric) {
	s := m.stats()
	metrics <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(s.PayloadBytes))
	for end, n := range map[string]uint64{
		"committed": s.Committed, "failed": s.Failed, "aborted": s.Aborted, "broken": s.Broken, "cancelled": s.Cancelled,
	} {
		metrics <- prometheus.MustNewConstMetric(m.ended, prometheus.CounterValue, float64(n), end)
	}
}

// SentBytes counts the KV bytes that a worker sent to decode workers, by transport.
type SentBytes struct{ counter *prometheus.CounterVec }

// NewSentBytes registers the counter with the label worker.
func NewSentBytes(registerer prometheus.Registerer, workerID string) (SentBytes, error) {
	s := SentBytes{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_kvtransfer_sent_bytes_total", Help: "KV payload bytes sent to decode workers, by transport.",
		ConstLabels: prometheus.Labels{"worker": workerID},
	}, []string{"transport"})}
	if err := registerer.Register(s.counter); err != nil {
		return s, fmt.Errorf("register metrics: %w", err)
	}
	for _, transport := range []string{transportTCP, transportUnix, transportShared, transportDevice} {
		s.counter.WithLabelValues(transport) // exports zero before the first transfer
	}
	return s, nil
}

// Add counts the bytes of a transfer that has ended.
func (s SentBytes) Add(t TransferStats) {
	s.counter.WithLabelValues(t.Transport).Add(float64(t.Bytes))
}
