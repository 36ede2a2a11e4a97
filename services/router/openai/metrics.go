package openai

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// buckets of durations, in seconds: each twice the one before.
var buckets = prometheus.ExponentialBuckets(.001, 2, 20)

// metrics count requests over HTTP. Labels are bounded: routes are this package's,
// codes those that it answers.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_http_requests_total", Help: "Requests to the HTTP API that ended, by route and status code.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tandem_http_request_seconds", Help: "How long requests to the HTTP API took, streams from begin to end, in seconds.", Buckets: buckets,
		}, []string{"route"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.seconds} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) ended(route string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}
