package kvtransfer

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// metrics are a store's.
type metrics struct {
	offers, fetches          *prometheus.CounterVec
	hits, misses, lost       prometheus.Counter
	receivedBytes, sentBytes prometheus.Counter
}

// newMetrics registers the metrics, all with the label worker.
func newMetrics(registerer prometheus.Registerer, workerID string, s *Service) (*metrics, error) {
	set := metricset.ForWorker(registerer, workerID)
	m := &metrics{
		offers: set.Counters("tandem_store_offers_total", "Offers of blocks to a block store, by outcome.", "outcome",
			outcomeOK, outcomeFailed, strings.ToLower(api.ReasonStoreTooSmall)), // so that rates begin at 0; too small is one too many
		fetches:       set.Counters("tandem_store_fetches_total", "Fetches of blocks from a block store, by outcome.", "outcome", outcomeOK, outcomeFailed),
		hits:          set.Counter("tandem_store_hit_blocks_total", "Blocks asked for that the store holds, beyond those that the receiver has."),
		misses:        set.Counter("tandem_store_missed_blocks_total", "Blocks asked for that the store does not hold."),
		lost:          set.Counter("tandem_store_lost_puts_total", "Offers that got room and whose blocks did not come."),
		receivedBytes: set.Counter("tandem_store_received_bytes_total", "KV payload bytes received in committed puts."),
		sentBytes:     set.Counter("tandem_store_sent_bytes_total", "KV payload bytes sent in fetches, including failed ones."),
	}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, variable, nil)
	}
	set.Add(&blockMetrics{
		service:   s,
		blocks:    desc("tandem_store_blocks", "KV blocks of a block store, by state.", "state"),
		heldBytes: desc("tandem_store_held_bytes", "Bytes of the KV blocks that can be fetched."),
		stored:    desc("tandem_store_stored_blocks_total", "KV blocks that came and are held."),
		evicted:   desc("tandem_store_evictions_total", "Held KV blocks evicted for others."),
	})
	if err := set.Err(); err != nil {
		return nil, err
	}
	return m, nil
}

// blockMetrics are read from the store when they are asked for.
type blockMetrics struct {
	service                            *Service
	blocks, heldBytes, stored, evicted *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (m *blockMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.blocks, m.heldBytes, m.stored, m.evicted} {
		descs <- d
	}
}

// Collect implements prometheus.Collector.
func (m *blockMetrics) Collect(metrics chan<- prometheus.Metric) {
	stats, pageBytes := m.service.stats()
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, kind, float64(value), labels...)
	}
	p := stats.Pool
	for state, blocks := range map[string]int{
		"free": p.Free, "cached": p.Cached, "arriving": p.Reserved, "in_use": p.Held - p.Reserved, "quarantined": p.Quarantined,
	} {
		send(m.blocks, prometheus.GaugeValue, uint64(blocks), state)
	}
	send(m.heldBytes, prometheus.GaugeValue, uint64(p.Published)*uint64(pageBytes))
	send(m.stored, prometheus.CounterValue, stats.Kept)
	send(m.evicted, prometheus.CounterValue, p.Evictions)
}

func (m *metrics) missed(blocks int) { m.misses.Add(float64(blocks)) }

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
	case api.ReasonBlocksHeld, api.ReasonBlocksArriving, api.ReasonBlocksMissing, api.ReasonLayoutMismatch, api.ReasonStoreTooSmall, api.ReasonStoreFull, api.ReasonStoreBusy,
		api.ReasonWrongEpoch, api.ReasonWorkerDraining, api.ReasonTransferRefused, api.ReasonTransferFailed, api.ReasonInvalidField:
		return strings.ToLower(reason)
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded:
		return outcomeCancelled
	default:
		return outcomeFailed
	}
}
