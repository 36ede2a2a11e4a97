package worker

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/scheduler"
)

// Metrics are a worker's. A nil *Metrics measures nothing.
type Metrics struct {
	steps      *prometheus.HistogramVec
	stepTokens prometheus.Counter
	failures   prometheus.Counter
	ends       *prometheus.CounterVec
	preempts   prometheus.Counter
	waits      prometheus.Counter
	blocks     *prometheus.GaugeVec
	sequences  *prometheus.GaugeVec
	reach      *reach // nil: not counted
}

// NewMetrics registers the metrics, all with the label worker.
func NewMetrics(registerer prometheus.Registerer, workerID string) (*Metrics, error) {
	labels := prometheus.Labels{"worker": workerID}
	m := &Metrics{
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tandem_worker_step_seconds", Help: "Time that the engine worked on one step, by the number of sequences in it.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16), ConstLabels: labels,
		}, []string{"batch"}),
		stepTokens: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_worker_step_tokens_total", Help: "Tokens that the engine computed, prompt and decode.", ConstLabels: labels,
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_worker_step_failures_total", Help: "Steps that failed.", ConstLabels: labels,
		}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "tandem_worker_sequences_total", Help: "Sequences that ended, by how.", ConstLabels: labels,
		}, []string{"end"}),
		preempts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_worker_preemptions_total", Help: "Times that a running sequence had to give its blocks to others.", ConstLabels: labels,
		}),
		waits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tandem_worker_preempted_seconds_total", Help: "Time that preempted sequences waited until they ran again.", ConstLabels: labels,
		}),
		blocks: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_worker_kv_blocks", Help: "KV blocks by state.", ConstLabels: labels,
		}, []string{"state"}),
		sequences: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tandem_worker_sequences", Help: "Sequences that wait and that run.", ConstLabels: labels,
		}, []string{"state"}),
	}
	for _, c := range []prometheus.Collector{m.steps, m.stepTokens, m.failures, m.ends, m.preempts, m.waits, m.blocks, m.sequences} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// registerPool adds the counters of a prefix cache, read when they are asked for.
func registerPool(registerer prometheus.Registerer, workerID string, stats func() kvcache.Stats) error {
	for _, c := range []struct {
		name, help string
		value      func(kvcache.Stats) uint64
	}{
		{"tandem_worker_prefix_cache_lookup_tokens_total", "Prompt tokens looked up in the prefix cache.", func(s kvcache.Stats) uint64 { return s.LookupTokens }},
		{"tandem_worker_prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache.", func(s kvcache.Stats) uint64 { return s.HitTokens }},
		{"tandem_worker_prefix_cache_evictions_total", "Cached blocks given to others.", func(s kvcache.Stats) uint64 { return s.Evictions }},
		{"tandem_worker_prefix_cache_saved_evictions_total", "Cached blocks given to others that a block store had.", func(s kvcache.Stats) uint64 { return s.SavedEvictions }},
		{"tandem_worker_prefix_cache_unoffered_evictions_total", "Cached blocks given to others that no block store had been offered yet.", func(s kvcache.Stats) uint64 { return s.UnofferedEvictions }},
		{"tandem_worker_kv_block_misuses_total", "Calls that named a block in the wrong state: a bug if not 0.", func(s kvcache.Stats) uint64 { return s.Misuses }},
	} {
		counter := prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help, ConstLabels: prometheus.Labels{"worker": workerID}},
			func() float64 { return float64(c.value(stats())) })
		if err := registerer.Register(counter); err != nil {
			return err
		}
	}
	return nil
}

// registerBacklog adds the gauge of the prompt tokens that the worker has yet to
// compute, read when it is asked for: those of sequences that wait, and the rest
// of prompts that run. It is what a pool is scaled by: requests differ in length
// by orders of magnitude, and a busy processor does not say how much is left.
func registerBacklog(registerer prometheus.Registerer, identity Identity, load func() (scheduler.Load, latency.Model)) error {
	return registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tandem_worker_backlog_tokens", Help: "Prompt tokens that the worker has taken and not computed yet.",
		ConstLabels: prometheus.Labels{"worker": identity.ID, "role": roleLabel(identity.Role)},
	}, func() float64 {
		now, _ := load()
		return float64(now.WaitingTokens + now.RunningPromptTokens)
	}))
}

func roleLabel(role controlv1.Role) string {
	return strings.ToLower(strings.TrimPrefix(role.String(), "ROLE_"))
}

func (m *Metrics) stepDone(tokens, sequences int, compute time.Duration) {
	if m == nil {
		return
	}
	m.steps.WithLabelValues(batchLabel(sequences)).Observe(compute.Seconds())
	m.stepTokens.Add(float64(tokens))
}

// batchLabel bounds the label's values: the next power of two.
func batchLabel(sequences int) string {
	for _, bucket := range []struct {
		most  int
		label string
	}{{1, "1"}, {2, "2"}, {4, "4"}, {8, "8"}, {16, "16"}, {32, "32"}, {64, "64"}} {
		if sequences <= bucket.most {
			return bucket.label
		}
	}
	return "more"
}

func (m *Metrics) stepFailed() {
	if m != nil {
		m.failures.Inc()
	}
}

func (m *Metrics) preempted() {
	if m != nil {
		m.preempts.Inc()
	}
}

func (m *Metrics) resumed(waited time.Duration) {
	if m != nil {
		m.waits.Add(waited.Seconds())
	}
}

func (m *Metrics) finished(reason scheduler.FinishReason) {
	if m != nil {
		m.ends.WithLabelValues(endLabel(reason)).Inc()
	}
}

func endLabel(reason scheduler.FinishReason) string {
	switch reason {
	case scheduler.Stopped:
		return "stop"
	case scheduler.Length:
		return "length"
	case scheduler.PrefillDone:
		return "prefill_done"
	case scheduler.Cancelled:
		return "cancelled"
	default:
		return "failed"
	}
}

func (m *Metrics) refused() {
	if m != nil {
		m.ends.WithLabelValues("refused").Inc()
	}
}

func (m *Metrics) load(report *controlv1.LoadReport) {
	if m == nil {
		return
	}
	m.blocks.WithLabelValues("free").Set(float64(report.GetBlocksFree()))
	m.blocks.WithLabelValues("reserved").Set(float64(report.GetBlocksReserved()))
	m.blocks.WithLabelValues("quarantined").Set(float64(report.GetBlocksQuarantined()))
	m.blocks.WithLabelValues("total").Set(float64(report.GetBlocksTotal()))
	m.sequences.WithLabelValues("waiting").Set(float64(report.GetWaitingSequences()))
	m.sequences.WithLabelValues("running").Set(float64(report.GetRunningSequences()))
}
