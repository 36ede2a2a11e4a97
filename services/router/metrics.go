package router

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/services/router/internal/fleet"
	"github.com/tandem-serving/tandem/services/router/internal/joining"
)

// metrics is what the router counts. All labels are bounded: codes, modes, stages
// and reasons. docs/metrics.md says what each means.
type metrics struct {
	requests   *prometheus.CounterVec
	finishes   *prometheus.CounterVec
	dispatches *prometheus.CounterVec
	retries    *prometheus.CounterVec
	fallbacks  prometheus.Counter
	unreached  prometheus.Counter
	paths      prometheus.Gauge
	waiting    prometheus.Gauge
	running    prometheus.Gauge
	modes      [2]modeMetrics // by modeIndex
	stages     [latency.NumStages]prometheus.Observer
	prompts    prometheus.Histogram
	outputs    prometheus.Histogram
	prompt     prometheus.Counter
	cached     prometheus.Counter
	fetched    prometheus.Counter
	hints      prometheus.Counter
	fetches    *prometheus.CounterVec
	fetch      prometheus.Histogram
	generated  prometheus.Counter
	spending   *spending
}

// modeMetrics are the latencies of one mode, looked up once: tokens are too many
// to do so for each.
type modeMetrics struct {
	ttft, second, gap, tpot, e2e      prometheus.Observer
	queue, prefill, decode, inference prometheus.Observer
}

// newMetrics registers the metrics; a nil registerer shows them to nobody.
func newMetrics(registerer prometheus.Registerer, config Config) (*metrics, error) {
	var collectors []prometheus.Collector
	add := func(c prometheus.Collector) { collectors = append(collectors, c) }
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		add(c)
		return c
	}
	counters := func(name, help, label string, values ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		for _, value := range values {
			c.WithLabelValues(value) // shown as 0 from the start
		}
		add(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		add(g)
		return g
	}
	// Buckets double from the lowest: the error of a quantile is the same
	// everywhere.
	histogram := func(name, help, label string, low float64, count int) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(low, 2, count),
		}, []string{label})
		add(h)
		return h
	}
	tokens := func(name, help string) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(1, 2, 18)})
		add(h)
		return h
	}
	m := &metrics{
		requests:   counters("tandem_router_requests_total", "Requests that ended, by status.", "code"),
		finishes:   counters("tandem_requests_finished_total", "Requests that ended, by how: stop and length went well.", "reason", "stop", "length", "cancelled", "error"),
		dispatches: counters("tandem_router_dispatches_total", "Tries sent to workers, by mode.", "mode", modeNames[:]...),
		retries:    counters("tandem_router_failed_tries_total", "Tries in which a worker failed or refused, by its status.", "code"),
		fallbacks:  counter("tandem_router_fallbacks_total", "Requests in mode auto that ran on one worker for want of a prefill worker, or of a way for KV from one."),
		unreached:  counter("tandem_router_kv_unreached_total", "Tries in which the prefill worker could begin no transfer to the decode worker."),
		paths:      gauge("tandem_router_kv_paths_broken", "Pairs of a prefill and a decode worker between which the last transfer could not begin."),
		waiting:    gauge("tandem_router_requests_waiting", "Requests that wait for workers."),
		running:    gauge("tandem_router_requests_running", "Requests that run on workers."),
		prompts:    tokens("tandem_request_prompt_tokens", "Tokens of the prompt of a request that went well."),
		outputs:    tokens("tandem_request_generation_tokens", "Tokens generated for a request that went well."),
		prompt:     counter("tandem_prompt_tokens_total", "Prompt tokens of requests that went well."),
		cached:     counter("tandem_prompt_cached_tokens_total", "Prompt tokens found in a prefix cache."),
		fetched:    counter("tandem_prompt_fetched_tokens_total", "Of those, the ones fetched from a block store."),
		hints:      counter("tandem_router_fetch_hints_total", "Tries whose prefill worker was told of a block store."),
		fetches:    counters("tandem_router_fetches_total", "Tries in which it asked the store, by whether KV came of it.", "result", "fetched", "nothing"),
		generated:  counter("tandem_generation_tokens_total", "Tokens generated by requests that went well."),
	}
	for _, h := range []struct {
		name, help string
		low        float64
		count      int
		of         func(*modeMetrics) *prometheus.Observer
	}{
		{"tandem_time_to_first_token_seconds", "Arrival to first token.", .001, 18, func(o *modeMetrics) *prometheus.Observer { return &o.ttft }},
		{"tandem_second_token_seconds", "First token to second token, the exposed part of the KV transfer included.", .0005, 16, func(o *modeMetrics) *prometheus.Observer { return &o.second }},
		{"tandem_inter_token_latency_seconds", "Each gap between two tokens, as the router got them.", .00025, 16, func(o *modeMetrics) *prometheus.Observer { return &o.gap }},
		{"tandem_request_time_per_output_token_seconds", "Mean time per token after the first.", .0005, 16, func(o *modeMetrics) *prometheus.Observer { return &o.tpot }},
		{"tandem_e2e_request_latency_seconds", "Arrival to last token.", .004, 18, func(o *modeMetrics) *prometheus.Observer { return &o.e2e }},
		{"tandem_request_queue_time_seconds", "Waiting in the router's queue and in the worker's.", .0001, 20, func(o *modeMetrics) *prometheus.Observer { return &o.queue }},
		{"tandem_request_prefill_time_seconds", "Computing the prompt, up to the first token.", .0005, 18, func(o *modeMetrics) *prometheus.Observer { return &o.prefill }},
		{"tandem_request_decode_time_seconds", "First token to last token.", .001, 20, func(o *modeMetrics) *prometheus.Observer { return &o.decode }},
		{"tandem_request_inference_time_seconds", "Prefill and decode together.", .001, 20, func(o *modeMetrics) *prometheus.Observer { return &o.inference }},
	} {
		vec := histogram(h.name, h.help, "mode", h.low, h.count)
		for i := range m.modes {
			*h.of(&m.modes[i]) = vec.WithLabelValues(modeNames[i])
		}
	}
	m.fetch = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tandem_request_fetch_time_seconds", Help: "Fetching KV from a block store, part of the prefill time.",
		Buckets: prometheus.ExponentialBuckets(.0005, 2, 18),
	})
	add(m.fetch)
	stages := histogram("tandem_router_stage_seconds", "Stages of a request; they add up to its latency.", "stage", .0001, 20)
	for stage := range latency.NumStages {
		m.stages[stage] = stages.WithLabelValues(stage.String())
	}
	breaches := counters("tandem_budget_breaches_total", "Requests that exceeded their latency budget, by the stage that broke it.", "stage")
	m.spending = newSpending(config, breaches)
	add(m.spending)
	if registerer == nil {
		return m, nil
	}
	for _, c := range collectors {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// registerBacklog adds the gauges of the prompt tokens that wait in the router, by
// the pool that they wait for, read when they are asked for. It is what the router's
// signals say of the queue as well, so that scalers of either kind see one number.
func registerBacklog(registerer prometheus.Registerer, queued func() map[string][]*controlv1.QueueDepth) error {
	if registerer == nil {
		return nil
	}
	for _, pool := range []struct {
		label string
		role  controlv1.Role
	}{{"prefill", controlv1.Role_ROLE_PREFILL}, {"decode", controlv1.Role_ROLE_DECODE}} {
		gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "tandem_router_backlog_tokens", Help: "Prompt tokens of the requests that wait in the router, by the pool that they wait for.",
			ConstLabels: prometheus.Labels{"pool": pool.label},
		}, func() float64 {
			var tokens uint64
			for _, depths := range queued() {
				for _, depth := range depths {
					if depth.GetPool() == pool.role {
						tokens += depth.GetTokens()
					}
				}
			}
			return float64(tokens)
		})
		if err := registerer.Register(gauge); err != nil {
			return err
		}
	}
	return nil
}

// modeNames are the values of the label mode, by modeIndex.
var modeNames = [2]string{"aggregated", "disaggregated"}

func modeIndex(mode inferencev1.Mode) int {
	if mode == inferencev1.Mode_MODE_DISAGGREGATED {
		return 1
	}
	return 0
}

func modeLabel(mode inferencev1.Mode) string { return modeNames[modeIndex(mode)] }

func (m *metrics) depth(waiting, running, brokenPaths int) {
	m.waiting.Set(float64(waiting))
	m.running.Set(float64(running))
	m.paths.Set(float64(brokenPaths))
}

func (m *metrics) dispatched(d *controlv1.Decision, fallback bool) {
	m.dispatches.WithLabelValues(modeLabel(d.GetMode())).Inc()
	if fallback {
		m.fallbacks.Inc()
	}
	if d.GetSource() != "" {
		m.hints.Inc()
	}
}

// fetchedFrom counts what came of asking a block store.
func (m *metrics) fetchedFrom(verdict workerv1.FetchVerdict) {
	result := "nothing"
	if verdict == workerv1.FetchVerdict_FETCH_VERDICT_GIVEN {
		result = "fetched"
	}
	m.fetches.WithLabelValues(result).Inc()
}

// retried counts a try that failed because of workers.
func (m *metrics) retried(failures []fleet.Failure, err error) {
	m.retries.WithLabelValues(status.Code(err).String()).Inc()
	for _, failure := range failures {
		if failure.Unreached != (fleet.Ref{}) {
			m.unreached.Inc()
		}
	}
}

// token counts a token that came at now, after another one at last; the zero time
// for the first. It allocates nothing.
func (m *metrics) token(mode inferencev1.Mode, now, last time.Time) {
	if last.IsZero() {
		return
	}
	gap := now.Sub(last)
	m.modes[modeIndex(mode)].gap.Observe(gap.Seconds())
	m.spending.gaps.Record(now, gap)
}

// ended counts the end of a request, f's if err is nil.
func (m *metrics) ended(now time.Time, err error, f joining.Finish) {
	m.requests.WithLabelValues(codeName(err)).Inc()
	m.finishes.WithLabelValues(finishLabel(err, f.Reason)).Inc()
	if err == nil {
		m.finished(now, f)
		return
	}
	switch status.Code(err) {
	case codes.Canceled, codes.InvalidArgument, codes.NotFound: // the client's doing
	default:
		m.spending.failed(now)
	}
}

// finishLabel is how a request ended, as `generate` says it.
func finishLabel(err error, reason inferencev1.FinishReason) string {
	switch {
	case status.Code(err) == codes.Canceled:
		return "cancelled"
	case err != nil:
		return "error"
	case reason == inferencev1.FinishReason_FINISH_REASON_STOP:
		return "stop"
	}
	return "length"
}

// finished takes in the timings that the client gets, so that the metrics, the
// budget and the response are the same numbers.
func (m *metrics) finished(now time.Time, f joining.Finish) {
	s := spentOf(f.Timings, int(f.Usage.GetCompletionTokens()))
	mode := &m.modes[modeIndex(f.Route.GetMode())]
	mode.ttft.Observe(s.TTFT.Seconds())
	mode.e2e.Observe(s.E2E.Seconds())
	decode := s.Stages[latency.StageTransferExposed] + s.Stages[latency.StageDecode]
	mode.queue.Observe(s.Stages[latency.StageQueue].Seconds())
	mode.prefill.Observe(s.Stages[latency.StagePrefill].Seconds())
	mode.inference.Observe((s.Stages[latency.StagePrefill] + decode).Seconds())
	mode.decode.Observe(decode.Seconds())
	second := time.Duration(f.Timings.GetSecondTokenNs())
	if s.Tokens > 1 {
		mode.second.Observe(second.Seconds())
		mode.tpot.Observe(s.TPOT.Seconds())
	}
	for stage, observer := range m.stages {
		observer.Observe(s.Stages[stage].Seconds())
	}
	fetch := time.Duration(f.Timings.GetFetchNs())
	if fetch > 0 {
		m.fetch.Observe(fetch.Seconds())
	}
	m.spending.finished(now, s, second, fetch)
	m.prompts.Observe(float64(f.Usage.GetPromptTokens()))
	m.outputs.Observe(float64(f.Usage.GetCompletionTokens()))
	m.prompt.Add(float64(f.Usage.GetPromptTokens()))
	m.cached.Add(float64(f.Usage.GetCachedTokens()))
	m.fetched.Add(float64(f.FetchedTokens))
	m.generated.Add(float64(f.Usage.GetCompletionTokens()))
}
