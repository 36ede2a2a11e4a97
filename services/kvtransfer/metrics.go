package kvtransfer

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/blockstore"
	"github.com/tandem-serving/tandem/pkg/kvcache"
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
	read := func(value func(blockstore.Stats) float64) func() float64 {
		return func() float64 {
			stats, _ := s.stats()
			return value(stats)
		}
	}
	for state, blocks := range map[string]func(kvcache.Stats) int{
		"free":        func(p kvcache.Stats) int { return p.Free },
		"cached":      func(p kvcache.Stats) int { return p.Cached },
		"arriving":    func(p kvcache.Stats) int { return p.Reserved },
		"in_use":      func(p kvcache.Stats) int { return p.Held - p.Reserved },
		"quarantined": func(p kvcache.Stats) int { return p.Quarantined },
	} {
		set.GaugeFunc("tandem_store_blocks", "KV blocks of a block store, by state.", prometheus.Labels{"state": state},
			read(func(stats blockstore.Stats) float64 { return float64(blocks(stats.Pool)) }))
	}
	set.GaugeFunc("tandem_store_held_bytes", "Bytes of the KV blocks that can be fetched.", nil, func() float64 {
		stats, pageBytes := s.stats()
		return float64(stats.Pool.Published) * float64(pageBytes)
	})
	set.CounterFunc("tandem_store_stored_blocks_total", "KV blocks that came and are held.", nil,
		read(func(stats blockstore.Stats) float64 { return float64(stats.Kept) }))
	set.CounterFunc("tandem_store_evictions_total", "Held KV blocks evicted for others.", nil,
		read(func(stats blockstore.Stats) float64 { return float64(stats.Pool.Evictions) }))
	if err := set.Err(); err != nil {
		return nil, err
	}
	return m, nil
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
