package signals

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// Kinds of signals, as labels.
const (
	kindLoad    = "load"
	kindKv      = "kv"
	kindQueue   = "queue"
	kindRouter  = "router"
	kindTenants = "tenants"
	kindView    = "view"
)

type metrics struct {
	sent      *prometheus.CounterVec
	dropped   *prometheus.CounterVec
	received  *prometheus.CounterVec
	malformed *prometheus.CounterVec
	slow      prometheus.Counter
	connects  prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	vector := func(name, help string, labels ...string) *prometheus.CounterVec {
		return metricset.Shared(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_signals_" + name, Help: help}, labels))
	}
	single := func(name, help string) prometheus.Counter {
		return metricset.Shared(registerer, prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_signals_" + name, Help: help}))
	}
	return &metrics{
		sent:      vector("sent_total", "Signals handed to NATS, by kind.", "kind"),
		dropped:   vector("dropped_total", "Signals that were not sent, by kind and reason.", "kind", "reason"),
		received:  vector("received_total", "Signals received, by kind.", "kind"),
		malformed: vector("malformed_total", "Messages received that are not signals, by kind.", "kind"),
		slow:      single("slow_total", "Times that signals came faster than the process read them."),
		connects:  single("connects_total", "Connections made to NATS."),
	}
}
