// Package metricset makes Prometheus collectors and registers them, so that a package's
// metrics are a list of names and helps.
//
// Any package may import it. It starts no goroutines.
package metricset

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Set makes collectors and registers each. One goroutine uses it.
type Set struct {
	registerer prometheus.Registerer
	errs       []error
}

// New returns a set; with a nil registerer its metrics count and are shown to nobody.
func New(registerer prometheus.Registerer) *Set { return &Set{registerer: registerer} }

// ForWorker returns a set whose metrics have the label worker.
func ForWorker(registerer prometheus.Registerer, workerID string) *Set {
	return New(prometheus.WrapRegistererWith(prometheus.Labels{"worker": workerID}, registerer))
}

// Err says what could not be registered; nil: everything was.
func (s *Set) Err() error { return errors.Join(s.errs...) }

// Shared registers a collector, or returns the equal one that is there. With no
// registerer, or a name that something else uses, the metric works and is not shown.
func Shared[C prometheus.Collector](registerer prometheus.Registerer, collector C) C {
	if registerer == nil {
		return collector
	}
	if there, is := errors.AsType[prometheus.AlreadyRegisteredError](registerer.Register(collector)); is {
		if existing, ok := there.ExistingCollector.(C); ok {
			return existing
		}
	}
	return collector
}

// Add registers a collector that was made elsewhere.
func (s *Set) Add(c prometheus.Collector) {
	if s.registerer != nil {
		s.errs = append(s.errs, s.registerer.Register(c))
	}
}

func add[C prometheus.Collector](s *Set, c C) C {
	s.Add(c)
	return c
}

// Counter makes a counter.
func (s *Set) Counter(name, help string) prometheus.Counter {
	return add(s, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

// Counters makes one counter for each value of a label. Those named here are shown as 0
// from the start.
func (s *Set) Counters(name, help, label string, values ...string) *prometheus.CounterVec {
	c := add(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label}))
	for _, value := range values {
		c.WithLabelValues(value)
	}
	return c
}

// CounterFunc makes a counter that is read when it is asked for; labels may be nil.
func (s *Set) CounterFunc(name, help string, labels prometheus.Labels, read func() float64) {
	s.Add(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, read))
}

// Gauges makes one gauge for each value of a label.
func (s *Set) Gauges(name, help, label string) *prometheus.GaugeVec {
	return add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label}))
}

// GaugeFunc makes a gauge that is read when it is asked for; labels may be nil.
func (s *Set) GaugeFunc(name, help string, labels prometheus.Labels, read func() float64) {
	s.Add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read))
}

// Histogram makes a histogram of count buckets, each twice the one before: the error of
// a quantile is the same everywhere.
func (s *Set) Histogram(name, help string, lowest float64, count int) prometheus.Histogram {
	return add(s, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(lowest, 2, count)}))
}

// Histograms is Histogram for each value of a label.
func (s *Set) Histograms(name, help, label string, lowest float64, count int) *prometheus.HistogramVec {
	return add(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(lowest, 2, count)}, []string{label}))
}
