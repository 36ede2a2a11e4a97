package store

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker"
	"github.com/tandem-serving/tandem/services/kvtransfer/internal/stock"
)

// metrics are a store's.
type metrics struct {
	offers, fetches             *prometheus.CounterVec
	hits, misses, lost          prometheus.Counter
	receivedBytes, sentBytes    prometheus.Counter
	keptBefore, evictionsBefore uint64 // of shelves that were cleared away
}

// newMetrics registers the metrics, all with the label worker.
func newMetrics(registerer prometheus.Registerer, workerID string, s *Service) (*metrics, error) {
	labels := prometheus.Labels{"worker": workerID}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		offers: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_store_offers_total", Help: "Offers of blocks to a block store, by what became of them.", ConstLabels: labels,
		}, []string{"outcome"}),
		fetches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_store_fetches_total", Help: "Fetches of blocks from a block store, by what became of them.", ConstLabels: labels,
		}, []string{"outcome"}),
		hits:          counter("tandem_store_hit_blocks_total", "Blocks that fetches asked for, beyond those that their receiver had, and the store had."),
		misses:        counter("tandem_store_missed_blocks_total", "Blocks that fetches asked for and the store did not have."),
		lost:          counter("tandem_store_lost_puts_total", "Offers that were taken and whose blocks did not come."),
		receivedBytes: counter("tandem_store_received_bytes_total", "KV payload bytes of committed puts."),
		sentBytes:     counter("tandem_store_sent_bytes_total", "KV payload bytes that fetches sent."),
	}
	for _, outcome := range []string{outcomeOK, outcomeFailed} { // so that rates begin at 0
		m.offers.WithLabelValues(outcome)
		m.fetches.WithLabelValues(outcome)
	}
	m.offers.WithLabelValues(strings.ToLower(ReasonTooSmall)) // one is one too many
	collectors := []prometheus.Collector{m.offers, m.fetches, m.hits, m.misses, m.lost, m.receivedBytes, m.sentBytes}
	gauge := func(name, help string, labels prometheus.Labels, value func(stock.Stats, int) int) {
		collectors = append(collectors, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(s.stats())) }))
	}
	for _, b := range []struct {
		state string
		value func(stock.Stats, int) int
	}{
		{"free", func(s stock.Stats, _ int) int { return s.Pool.Free }},
		{"cached", func(s stock.Stats, _ int) int { return s.Pool.Cached }},
		{"arriving", func(s stock.Stats, _ int) int { return s.Pool.Reserved }},
		{"in_use", func(s stock.Stats, _ int) int { return s.Pool.Held - s.Pool.Reserved }},
		{"quarantined", func(s stock.Stats, _ int) int { return s.Pool.Quarantined }},
	} {
		gauge("tandem_store_blocks", "KV blocks of a block store by state.", prometheus.Labels{"worker": workerID, "state": b.state}, b.value)
	}
	gauge("tandem_store_held_bytes", "Bytes of the blocks that can be fetched.", labels,
		func(s stock.Stats, pageBytes int) int { return s.Pool.Published * pageBytes })
	total := func(name, help string, value func(stock.Stats) uint64, before *uint64) {
		collectors = append(collectors, prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(s.total(value, before)) }))
	}
	total("tandem_store_stored_blocks_total", "Blocks that came to be held.", func(s stock.Stats) uint64 { return s.Kept }, &m.keptBefore)
	total("tandem_store_evictions_total", "Held blocks that made room for others.", func(s stock.Stats) uint64 { return s.Pool.Evictions }, &m.evictionsBefore)
	for _, c := range collectors {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// total is a count over all shelves.
func (s *Service) total(value func(stock.Stats) uint64, before *uint64) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shelf == nil {
		return *before
	}
	return *before + value(s.shelf.stock.Stats())
}

// clearedAway adds up what a shelf counted that goes. Service.mu is held.
func (m *metrics) clearedAway(stats stock.Stats) {
	m.keptBefore += stats.Kept
	m.evictionsBefore += stats.Pool.Evictions
}

func (m *metrics) received(bytes uint64) { m.receivedBytes.Add(float64(bytes)) }
func (m *metrics) sent(bytes uint64)     { m.sentBytes.Add(float64(bytes)) }
func (m *metrics) hit(blocks int)        { m.hits.Add(float64(blocks)) }
func (m *metrics) missed(blocks int)     { m.misses.Add(float64(blocks)) }

// Outcomes besides the reasons of refusals, in lower case.
const (
	outcomeOK        = "ok"
	outcomeCancelled = "cancelled"
	outcomeFailed    = "failed"
)

// outcome is the label of a call that ended so. It has few values.
func outcome(err error) string {
	if err == nil {
		return outcomeOK
	}
	switch reason := rpc.Reason(err); reason {
	case ReasonHeld, ReasonArriving, ReasonMissing, ReasonLayout, ReasonTooSmall, ReasonFull, ReasonBusy,
		worker.ReasonWrongEpoch, worker.ReasonDraining, worker.ReasonTransferRefused, worker.ReasonTransferFailed, rpc.ReasonInvalidField:
		return strings.ToLower(reason)
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded:
		return outcomeCancelled
	default:
		return outcomeFailed
	}
}
