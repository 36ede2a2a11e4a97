package workerdriver

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/kvcache"
	"github.com/tandem-serving/tandem/pkg/membership"
	"github.com/tandem-serving/tandem/pkg/scheduler"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
)

// Metrics are a worker's.
type Metrics struct {
	steps      *prometheus.HistogramVec
	stepTokens prometheus.Counter
	drafted    prometheus.Counter
	accepted   prometheus.Counter
	drafting   prometheus.Counter
	failures   prometheus.Counter
	spoilt     *prometheus.CounterVec
	ends       *prometheus.CounterVec
	preempts   prometheus.Counter
	waits      prometheus.Counter
	blocks     *prometheus.GaugeVec
	sequences  *prometheus.GaugeVec
	reach      *reach // nil: not counted
}

// NewMetrics registers the metrics, all with the label worker.
func NewMetrics(registerer prometheus.Registerer, workerID string) (*Metrics, error) {
	set := metricset.ForWorker(registerer, workerID)
	m := &Metrics{
		steps:      set.Histograms("tandem_worker_step_seconds", "Time that the engine worked on a step, by the number of sequences in it.", "batch", 0.0001, 16),
		stepTokens: set.Counter("tandem_worker_step_tokens_total", "Tokens that the engine computed, of prompts and in decode."),
		drafted:    set.Counter("tandem_worker_draft_tokens_total", "Draft tokens (speculative decoding) that the engine verified, or that an output constraint does not allow."),
		accepted:   set.Counter("tandem_worker_accepted_draft_tokens_total", "Draft tokens that were right: tokens without a step of their own."),
		drafting:   set.Counter("tandem_worker_drafting_seconds_total", "Time that a draft model took to draft tokens; part of that of steps."),
		failures:   set.Counter("tandem_worker_step_failures_total", "Steps that failed."),
		spoilt:     set.Counters("tandem_worker_not_finite_total", "Sequences that failed because their logits were not finite, by the KV that they used: own or received.", "kv", kvOwn, kvReceived),
		ends:       set.Counters("tandem_worker_sequences_total", "Sequences that ended, by their end.", "end"),
		preempts:   set.Counter("tandem_worker_preemptions_total", "Times that a running sequence gave its KV blocks to others."),
		waits:      set.Counter("tandem_worker_preempted_seconds_total", "Time that preempted sequences waited until they ran again."),
		blocks:     set.Gauges("tandem_worker_kv_blocks", "KV blocks, by state.", "state"),
		sequences:  set.Gauges("tandem_worker_sequences", "Sequences, by state: waiting or running.", "state"),
	}
	if err := set.Err(); err != nil {
		return nil, err
	}
	return m, nil
}

// Whose KV was the cause of logits that are not finite.
const (
	kvOwn      = "own"
	kvReceived = "received"
)

// ofMember adds the metrics that are read from a member's driver when they are asked for, and those
// of what its engine reaches, with the device's limits where the engine knows them.
//
// The backlog is what a pool is scaled by: requests differ in length by orders of magnitude, and a
// busy processor does not say how much is left.
func (m *Metrics) ofMember(registerer prometheus.Registerer, identity membership.Identity, d *Driver) error {
	set := metricset.ForWorker(registerer, identity.ID)
	for _, c := range []struct {
		name, help string
		value      func(kvcache.Stats) uint64
	}{
		{"tandem_worker_prefix_cache_lookup_tokens_total", "Prompt tokens looked up in the prefix cache.", func(s kvcache.Stats) uint64 { return s.LookupTokens }},
		{"tandem_worker_prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache.", func(s kvcache.Stats) uint64 { return s.HitTokens }},
		{"tandem_worker_prefix_cache_evictions_total", "Cached blocks given to other sequences.", func(s kvcache.Stats) uint64 { return s.Evictions }},
		{"tandem_worker_prefix_cache_saved_evictions_total", "Evictions of cached blocks that a block store had.", func(s kvcache.Stats) uint64 { return s.SavedEvictions }},
		{"tandem_worker_prefix_cache_unoffered_evictions_total", "Evictions of cached blocks that no block store had been offered.", func(s kvcache.Stats) uint64 { return s.UnofferedEvictions }},
		{"tandem_worker_kv_block_misuses_total", "Calls that named a block in the wrong state; anything but 0 is a bug.", func(s kvcache.Stats) uint64 { return s.Misuses }},
	} {
		set.CounterFunc(c.name, c.help, nil, func() float64 { return float64(c.value(d.PoolStats())) })
	}
	set.GaugeFunc("tandem_worker_backlog_tokens", "Prompt tokens that the worker has accepted and not computed yet.", prometheus.Labels{"role": api.Name(identity.Role)}, func() float64 {
		load, _ := d.Load()
		return float64(load.WaitingTokens + load.RunningPromptTokens)
	})
	set.GaugeFunc("tandem_worker_step_running_seconds", "Seconds that the engine has worked on its present step; 0 between steps.", nil, func() float64 {
		d.loop.Lock()
		defer d.loop.Unlock()
		if d.running.since.IsZero() {
			return 0
		}
		return time.Since(d.running.since).Seconds()
	})
	flops := set.Counters("tandem_engine_flops_total", "Floating-point operations that the engine's steps needed, by phase.", "phase")
	readBytes := set.Counters("tandem_engine_read_bytes_total", "Bytes of weights and KV that the engine's steps had to read, by phase.", "phase")
	seconds := set.Counters("tandem_engine_busy_seconds_total", "Time that the engine worked on steps, by phase; a mixed step counts as prefill.", "phase")
	if limited, knows := engine.As[engine.Limited](d.cfg.Engine); knows {
		set.GaugeFunc("tandem_engine_limit_flops_per_second", "Floating-point operations per second that the device can do, as measured; 0 if unknown.", nil,
			func() float64 { return limited.Limits().FLOPsPerSecond })
		set.GaugeFunc("tandem_engine_limit_read_bytes_per_second", "Bytes per second that the device can read from memory, as measured; 0 if unknown.", nil,
			func() float64 { return limited.Limits().ReadBytesPerSecond })
	}
	of := func(phase string) costCounters {
		return costCounters{flops.WithLabelValues(phase), readBytes.WithLabelValues(phase), seconds.WithLabelValues(phase)}
	}
	m.reach = &reach{engine.CostsOf(d.cfg.Engine), of("prefill"), of("decode")}
	return set.Err()
}

func (m *Metrics) stepDone(tokens, sequences int, compute time.Duration) {
	m.steps.WithLabelValues(batchLabel(sequences)).Observe(compute.Seconds())
	m.stepTokens.Add(float64(tokens))
}

// drafts counts those of a step, and what became of them.
func (m *Metrics) drafts(batch engine.Batch, out *engine.Output) {
	m.drafting.Add(out.Drafting.Seconds())
	for i, accepted := range out.Accepted {
		if sample := batch.Sequences[i].Sample; sample != nil {
			m.drafted.Add(float64(sample.Drafts))
			m.accepted.Add(float64(accepted))
		}
	}
	for _, drafts := range out.Drafts {
		m.drafted.Add(float64(len(drafts)))
	}
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

func (m *Metrics) stepFailed() { m.failures.Inc() }

func (m *Metrics) notFinite(received bool) {
	kv := kvOwn
	if received {
		kv = kvReceived
	}
	m.spoilt.WithLabelValues(kv).Inc()
}

func (m *Metrics) preempted() { m.preempts.Inc() }

func (m *Metrics) resumed(waited time.Duration) { m.waits.Add(waited.Seconds()) }

func (m *Metrics) finished(reason scheduler.FinishReason) {
	m.ends.WithLabelValues(endLabel(reason)).Inc()
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

func (m *Metrics) refused() { m.ends.WithLabelValues("refused").Inc() }

// load sets the gauges. What routers are told of free blocks leaves out what sequences are
// expected to grow by, so it is not read here.
func (m *Metrics) load(report *controlv1.LoadReport, pool kvcache.Stats) {
	m.blocks.WithLabelValues("free").Set(float64(pool.Free + pool.Cached))
	m.blocks.WithLabelValues("reserved").Set(float64(pool.Reserved))
	m.blocks.WithLabelValues("quarantined").Set(float64(pool.Quarantined))
	m.blocks.WithLabelValues("total").Set(float64(pool.Total))
	m.sequences.WithLabelValues("waiting").Set(float64(report.GetWaitingSequences()))
	m.sequences.WithLabelValues("running").Set(float64(report.GetRunningSequences()))
}
