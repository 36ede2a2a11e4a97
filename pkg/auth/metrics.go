package auth

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

type metrics struct {
	refused *prometheus.CounterVec // by why: missing, invalid, scope
}

func newMetrics(registerer prometheus.Registerer) metrics {
	return metrics{refused: metricset.Shared(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tandem_auth_refused_total",
		Help: "Calls refused for their credentials, by why: missing, invalid (unknown, expired or revoked) or scope (not for this).",
	}, []string{"why"}))}
}
