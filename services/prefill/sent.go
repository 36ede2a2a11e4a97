package prefill

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// newSentBytes counts the KV that a worker sent to decode workers, by transport.
func newSentBytes(registerer prometheus.Registerer, workerID string) (*prometheus.CounterVec, error) {
	sent := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_kvtransfer_sent_bytes_total", Help: "KV payload bytes sent to decode workers, by what they went over.",
		ConstLabels: prometheus.Labels{"worker": workerID},
	}, []string{"transport"})
	if err := registerer.Register(sent); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	for _, transport := range []string{"tcp", "unix"} {
		sent.WithLabelValues(transport) // so that it is there before the first transfer
	}
	return sent, nil
}
