package decode

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/services/kvtransfer"
)

// registerReceiver adds the metrics of a KV receiver, read when they are asked
// for.
func registerReceiver(registerer prometheus.Registerer, workerID string, stats func() kvtransfer.ReceiverStats) error {
	const transfers, transfersHelp = "tandem_kvtransfer_received_total", "KV transfers that ended at this receiver, by how."
	for _, c := range []struct {
		name, help, end string
		value           func(kvtransfer.ReceiverStats) uint64
	}{
		{"tandem_kvtransfer_received_bytes_total", "KV payload bytes copied into pages.", "", func(s kvtransfer.ReceiverStats) uint64 { return s.PayloadBytes }},
		{transfers, transfersHelp, "committed", func(s kvtransfer.ReceiverStats) uint64 { return s.Committed }},
		{transfers, transfersHelp, "failed", func(s kvtransfer.ReceiverStats) uint64 { return s.Failed }},
		{transfers, transfersHelp, "aborted", func(s kvtransfer.ReceiverStats) uint64 { return s.Aborted }},
		{transfers, transfersHelp, "broken", func(s kvtransfer.ReceiverStats) uint64 { return s.Broken }},
		{transfers, transfersHelp, "cancelled", func(s kvtransfer.ReceiverStats) uint64 { return s.Cancelled }},
	} {
		labels := prometheus.Labels{"worker": workerID}
		if c.end != "" {
			labels["end"] = c.end
		}
		counter := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help, ConstLabels: labels},
			func() float64 { return float64(c.value(stats())) })
		if err := registerer.Register(counter); err != nil {
			return err
		}
	}
	return nil
}
