package serving

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/joining"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry/metricset"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
)

// metrics is what the router counts. All labels are bounded: codes, modes, stages
// and reasons. docs/metrics.md says what each means.
type metrics struct {
	requests      *prometheus.CounterVec
	finishes      *prometheus.CounterVec
	dispatches    *prometheus.CounterVec
	failedTries   *prometheus.CounterVec
	fallbacks     prometheus.Counter
	retries       prometheus.Counter
	spent         prometheus.Counter
	limited       *prometheus.CounterVec // by limit
	hedges        *prometheus.CounterVec
	hedgesRefused *prometheus.CounterVec
	hedgesWasted  prometheus.Counter
	unreached     prometheus.Counter
	wronged       prometheus.Counter
	forgotten     prometheus.Counter
	modes         map[inferencev1.Mode]*modeMetrics // of those that a request can run in
	stages        [api.NumStages]prometheus.Observer
	promptLengths prometheus.Histogram
	outputLengths prometheus.Histogram
	promptTokens  prometheus.Counter
	cachedTokens  prometheus.Counter
	fetchedTokens prometheus.Counter
	fetchHints    prometheus.Counter
	fetches       *prometheus.CounterVec
	fetchTimes    prometheus.Histogram
	outputTokens  prometheus.Counter
	spending      *latencybudget.Spending
}

// modeMetrics are the latencies of one mode, looked up once: tokens are too many
// to do so for each.
type modeMetrics struct {
	ttft, secondToken, gap, tpot, e2e prometheus.Observer
	queue, prefill, decode, inference prometheus.Observer
}

func newMetrics(set *metricset.Set, spending *latencybudget.Spending) *metrics {
	m := &metrics{
		spending: spending,
		modes: map[inferencev1.Mode]*modeMetrics{
			inferencev1.Mode_MODE_AGGREGATED: {}, inferencev1.Mode_MODE_DISAGGREGATED: {},
		},
		requests:      set.Counters("tandem_router_requests_total", "Requests that ended, by gRPC status.", "code"),
		finishes:      set.Counters("tandem_requests_finished_total", "Requests that ended, by reason: stop and length ended well.", "reason", "stop", "length", "cancelled", "error"),
		dispatches:    set.Counters("tandem_router_dispatches_total", "Attempts sent to workers, by mode.", "mode", "aggregated", "disaggregated"),
		failedTries:   set.Counters("tandem_router_failed_tries_total", "Attempts in which a worker failed or refused, by its status.", "code"),
		fallbacks:     set.Counter("tandem_router_fallbacks_total", "Requests in mode auto that ran on one worker, because no prefill worker was available or KV had no way from one."),
		retries:       set.Counter("tandem_router_retries_total", "Retries that were asked for after a worker failed."),
		limited:       set.Counters("tandem_router_quota_refused_total", "Requests refused for what their credentials allow, by limit: requests or tokens a minute, concurrency, or the size or priority of one request.", "limit", "requests", "tokens", "concurrency", "size", "priority"),
		spent:         set.Counter("tandem_router_retries_refused_total", "Retries that were refused, since there had been as many as may be; their requests ended with UNAVAILABLE."),
		hedges:        set.Counters("tandem_router_hedges_total", "Hedged attempts beside one whose first token was late, by result: won and went on alone, lost, or ended because the request ended before either had a first token.", "result", joining.HedgeWon, joining.HedgeLost, joining.HedgeEnded),
		hedgesRefused: set.Counters("tandem_router_hedges_refused_total", "Hedged attempts that were due and not begun, by reason: as many as may be had been, or no other worker would have begun at once.", "reason", routing.HedgeBudget, routing.HedgeNoCapacity),
		hedgesWasted:  set.Counter("tandem_router_hedges_wasted_seconds_total", "Time that workers computed prompts whose first token another attempt had before."),
		unreached:     set.Counter("tandem_router_kv_unreached_total", "Attempts in which the prefill worker could not begin a transfer to the decode worker."),
		forgotten:     set.Counter("tandem_router_kept_forgotten_total", "Finished answers forgotten early, because they were too many or too large."),
		wronged:       set.Counter("tandem_router_contradicted_total", "Attempts in which a worker reported a failure of requests that other workers then served."),
		promptLengths: set.Histogram("tandem_request_prompt_tokens", "Prompt tokens of each request that ended well.", 1, 18),
		outputLengths: set.Histogram("tandem_request_generation_tokens", "Tokens generated for each request that ended well.", 1, 18),
		promptTokens:  set.Counter("tandem_prompt_tokens_total", "Prompt tokens of requests that ended well."),
		cachedTokens:  set.Counter("tandem_prompt_cached_tokens_total", "Prompt tokens that were not computed, because a prefix cache held them or they were fetched."),
		fetchedTokens: set.Counter("tandem_prompt_fetched_tokens_total", "Cached prompt tokens that were fetched from a block store."),
		fetchHints:    set.Counter("tandem_router_fetch_hints_total", "Attempts in which the router named a block store to the prefill worker."),
		fetches:       set.Counters("tandem_router_fetches_total", "Attempts in which the prefill worker asked the block store, by whether it got KV.", "result", "fetched", "nothing"),
		fetchTimes:    set.Histogram("tandem_request_fetch_time_seconds", "Time of fetching KV from a block store, a part of the prefill time.", .0005, 18),
		outputTokens:  set.Counter("tandem_generation_tokens_total", "Tokens generated for requests that ended well."),
	}
	for _, h := range []struct {
		name, help string
		low        float64
		count      int
		of         func(*modeMetrics) *prometheus.Observer
	}{
		{"tandem_time_to_first_token_seconds", "Arrival to first token.", .001, 18, func(o *modeMetrics) *prometheus.Observer { return &o.ttft }},
		{"tandem_second_token_seconds", "First token to second token, including the exposed part of the KV transfer.", .0005, 16, func(o *modeMetrics) *prometheus.Observer { return &o.secondToken }},
		{"tandem_inter_token_latency_seconds", "Each gap between two tokens, as the router gets them.", .00025, 16, func(o *modeMetrics) *prometheus.Observer { return &o.gap }},
		{"tandem_request_time_per_output_token_seconds", "Mean time per token after the first, once for each request.", .0005, 16, func(o *modeMetrics) *prometheus.Observer { return &o.tpot }},
		{"tandem_e2e_request_latency_seconds", "Arrival to last token.", .004, 18, func(o *modeMetrics) *prometheus.Observer { return &o.e2e }},
		{"tandem_request_queue_time_seconds", "Time in the router's queue and in the worker's.", .0001, 20, func(o *modeMetrics) *prometheus.Observer { return &o.queue }},
		{"tandem_request_prefill_time_seconds", "Reservation to first token, without the worker's queue.", .0005, 18, func(o *modeMetrics) *prometheus.Observer { return &o.prefill }},
		{"tandem_request_decode_time_seconds", "First token to last token, including the exposed part of the KV transfer.", .001, 20, func(o *modeMetrics) *prometheus.Observer { return &o.decode }},
		{"tandem_request_inference_time_seconds", "Prefill time and decode time together.", .001, 20, func(o *modeMetrics) *prometheus.Observer { return &o.inference }},
	} {
		vec := set.Histograms(h.name, h.help, "mode", h.low, h.count)
		for mode, of := range m.modes {
			*h.of(of) = vec.WithLabelValues(api.Name(mode))
		}
	}
	stages := set.Histograms("tandem_router_stage_seconds", "Each stage of a request; the stages add up to its latency.", "stage", .0001, 20)
	for stage := range api.NumStages {
		m.stages[stage] = stages.WithLabelValues(stage.String())
	}
	return m
}

func (m *metrics) dispatched(d *controlv1.Decision, fallback bool) {
	m.dispatches.WithLabelValues(api.Name(d.GetMode())).Inc()
	if fallback {
		m.fallbacks.Inc()
	}
	if d.GetSource() != "" {
		m.fetchHints.Inc()
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

// retried counts an attempt that failed because of workers.
func (m *metrics) retried(failures []routing.Failure, err error) {
	m.failedTries.WithLabelValues(rpc.CodeName(status.Code(err))).Inc()
	for _, failure := range failures {
		if failure.Unreached != (routing.Ref{}) {
			m.unreached.Inc()
		}
	}
}

// hedged counts what a hedged attempt came to, if this was the end of one.
func (m *metrics) hedged(a joining.Release) {
	if a.Lost {
		m.hedgesWasted.Add(a.Computed.Seconds())
	}
	if result := a.Hedged(); result != "" {
		m.hedges.WithLabelValues(result).Inc()
	}
}

// hedgeRefused counts a hedged attempt that was not begun.
func (m *metrics) hedgeRefused(err error) {
	if refusal, is := errors.AsType[*routing.Refusal](err); is {
		m.hedgesRefused.WithLabelValues(refusal.Reason).Inc()
	}
}

// token counts a token that came at now, after another one at last; the zero time
// for the first. It allocates nothing.
func (m *metrics) token(mode inferencev1.Mode, now, last time.Time) {
	if last.IsZero() {
		return
	}
	gap := now.Sub(last)
	m.modes[mode].gap.Observe(gap.Seconds())
	m.spending.Gap(now, gap)
}

// ended counts the end of a request, f's if err is nil.
func (m *metrics) ended(now time.Time, err error, f joining.Finish) {
	m.requests.WithLabelValues(rpc.CodeName(status.Code(err))).Inc()
	m.finishes.WithLabelValues(finishLabel(err, f.Reason)).Inc()
	if err == nil {
		m.finished(now, f)
		return
	}
	switch status.Code(err) {
	case codes.Canceled, codes.InvalidArgument, codes.NotFound: // the client's doing
	default:
		m.spending.Failed(now)
	}
}

// finishLabel is how a request ended, as `generate` says it.
func finishLabel(err error, reason inferencev1.FinishReason) string {
	switch {
	case status.Code(err) == codes.Canceled:
		return "cancelled"
	case err != nil:
		return "error"
	}
	return api.Name(reason)
}

// finished takes in the timings that the client gets, so that the metrics, the
// budget and the response are the same numbers.
func (m *metrics) finished(now time.Time, f joining.Finish) {
	s := latencybudget.SpentOf(f.Timings, int(f.Usage.GetCompletionTokens()))
	mode := m.modes[f.Route.GetMode()]
	mode.ttft.Observe(s.TTFT.Seconds())
	mode.e2e.Observe(s.E2E.Seconds())
	decode := s.Stages[api.StageTransferExposed] + s.Stages[api.StageDecode]
	mode.queue.Observe(s.Stages[api.StageQueue].Seconds())
	mode.prefill.Observe(s.Stages[api.StagePrefill].Seconds())
	mode.inference.Observe((s.Stages[api.StagePrefill] + decode).Seconds())
	mode.decode.Observe(decode.Seconds())
	second := time.Duration(f.Timings.GetSecondTokenNs())
	if s.Tokens > 1 {
		mode.secondToken.Observe(second.Seconds())
		mode.tpot.Observe(s.TPOT.Seconds())
	}
	for stage, observer := range m.stages {
		observer.Observe(s.Stages[stage].Seconds())
	}
	fetch := time.Duration(f.Timings.GetFetchNs())
	if fetch > 0 {
		m.fetchTimes.Observe(fetch.Seconds())
	}
	m.spending.Finished(now, s, second, fetch)
	m.promptLengths.Observe(float64(f.Usage.GetPromptTokens()))
	m.outputLengths.Observe(float64(f.Usage.GetCompletionTokens()))
	m.promptTokens.Add(float64(f.Usage.GetPromptTokens()))
	m.cachedTokens.Add(float64(f.Usage.GetCachedTokens()))
	m.fetchedTokens.Add(float64(f.FetchedTokens))
	m.outputTokens.Add(float64(f.Usage.GetCompletionTokens()))
}
