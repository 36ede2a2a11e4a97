package openai

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// metrics count requests over HTTP. Labels are bounded: routes are this package's,
// codes those that it answers.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	set := metricset.New(registerer)
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_http_requests_total", Help: "Requests to the HTTP API that ended, by route and status code.",
		}, []string{"route", "code"}),
		seconds: set.Histograms("tandem_http_request_seconds", "Duration of requests to the HTTP API in seconds; a stream counts from begin to end.", "route", .001, 20),
	}
	set.Add(m.requests)
	return m, set.Err()
}

func (m *metrics) ended(route string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}
