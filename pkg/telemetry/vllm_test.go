package telemetry_test

import (
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// busy is a registry as a mesh that has served has it.
func busy(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewRegistry()
	for i, name := range []string{
		"tandem_time_to_first_token_seconds", "tandem_inter_token_latency_seconds", "tandem_request_time_per_output_token_seconds",
		"tandem_e2e_request_latency_seconds", "tandem_request_queue_time_seconds", "tandem_request_prefill_time_seconds",
		"tandem_request_decode_time_seconds", "tandem_request_inference_time_seconds",
	} {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: name, Buckets: []float64{.01, .1, 1, 10}}, []string{"mode"})
		registry.MustRegister(h)
		for n := range 7 + i {
			h.WithLabelValues("aggregated").Observe(.003 * float64(n*n))
			h.WithLabelValues("disaggregated").Observe(float64(n + i))
		}
	}
	for _, name := range []string{"tandem_request_prompt_tokens", "tandem_request_generation_tokens"} {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: name, Buckets: []float64{1, 2, 4}})
		registry.MustRegister(h)
		h.Observe(3)
	}
	for i, name := range []string{"tandem_prompt_tokens_total", "tandem_generation_tokens_total"} {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: name})
		registry.MustRegister(c)
		c.Add(float64(100 + i))
	}
	for i, name := range []string{"tandem_router_requests_running", "tandem_router_requests_waiting"} {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: name})
		registry.MustRegister(g)
		g.Set(float64(3 + i))
	}
	finished := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_requests_finished_total", Help: "x"}, []string{"reason"})
	registry.MustRegister(finished)
	for i, reason := range []string{"stop", "length", "cancelled", "error"} {
		finished.WithLabelValues(reason).Add(float64(i + 1))
	}
	for i, worker := range []string{"d1", `d"2`} {
		labels := prometheus.Labels{"worker": worker}
		blocks := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_worker_kv_blocks", Help: "x", ConstLabels: labels}, []string{"state"})
		sequences := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_worker_sequences", Help: "x", ConstLabels: labels}, []string{"state"})
		lookup := prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_worker_prefix_cache_lookup_tokens_total", Help: "x", ConstLabels: labels})
		hit := prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_worker_prefix_cache_hit_tokens_total", Help: "x", ConstLabels: labels})
		preemptions := prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_worker_preemptions_total", Help: "x", ConstLabels: labels})
		registry.MustRegister(blocks, sequences, lookup, hit, preemptions)
		preemptions.Add(float64(3 + i))
		blocks.WithLabelValues("total").Set(64)
		blocks.WithLabelValues("free").Set(float64(48 - 16*i))
		blocks.WithLabelValues("reserved").Set(5)
		sequences.WithLabelValues("running").Set(2)
		lookup.Add(float64(1000 + i))
		hit.Add(float64(300 + i))
	}
	return registry
}

func byName(t *testing.T, g prometheus.Gatherer) map[string]*dto.MetricFamily {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*dto.MetricFamily{}
	for _, f := range families {
		out[f.GetName()] = f
	}
	return out
}

func labels(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// added is the sum of a family's samples, one for each bucket, then sum and count
// or the value.
func added(f *dto.MetricFamily) (out []float64) {
	at := func(i int, v float64) {
		for len(out) <= i {
			out = append(out, 0)
		}
		out[i] += v
	}
	for _, m := range f.GetMetric() {
		n := len(m.GetHistogram().GetBucket())
		for i, b := range m.GetHistogram().GetBucket() {
			at(i, float64(b.GetCumulativeCount()))
		}
		at(n, m.GetHistogram().GetSampleSum()+m.GetCounter().GetValue()+m.GetGauge().GetValue())
		at(n+1, float64(m.GetHistogram().GetSampleCount()))
	}
	return out
}

func TestVLLMViewIsTheSameNumbers(t *testing.T) {
	all := byName(t, telemetry.WithVLLM(busy(t), "fable"))
	same := map[string]string{
		"vllm:time_to_first_token_seconds":           "tandem_time_to_first_token_seconds",
		"vllm:inter_token_latency_seconds":           "tandem_inter_token_latency_seconds",
		"vllm:request_time_per_output_token_seconds": "tandem_request_time_per_output_token_seconds",
		"vllm:e2e_request_latency_seconds":           "tandem_e2e_request_latency_seconds",
		"vllm:request_queue_time_seconds":            "tandem_request_queue_time_seconds",
		"vllm:request_prefill_time_seconds":          "tandem_request_prefill_time_seconds",
		"vllm:request_decode_time_seconds":           "tandem_request_decode_time_seconds",
		"vllm:request_inference_time_seconds":        "tandem_request_inference_time_seconds",
		"vllm:request_prompt_tokens":                 "tandem_request_prompt_tokens",
		"vllm:request_generation_tokens":             "tandem_request_generation_tokens",
		"vllm:prompt_tokens_total":                   "tandem_prompt_tokens_total",
		"vllm:generation_tokens_total":               "tandem_generation_tokens_total",
		"vllm:num_requests_running":                  "tandem_router_requests_running",
		"vllm:num_requests_waiting":                  "tandem_router_requests_waiting",
		"vllm:request_success_total":                 "tandem_requests_finished_total",
		"vllm:prefix_cache_queries_total":            "tandem_worker_prefix_cache_lookup_tokens_total",
		"vllm:prefix_cache_hits_total":               "tandem_worker_prefix_cache_hit_tokens_total",
		"vllm:num_preemptions_total":                 "tandem_worker_preemptions_total",
	}
	for theirs, ours := range same {
		f := all[theirs]
		if f == nil {
			t.Errorf("there is no %s", theirs)
			continue
		}
		got, want := added(f), added(all[ours])
		if len(got) != len(want) || f.GetType() != all[ours].GetType() || f.GetHelp() == "" {
			t.Errorf("%s has %v, %s has %v", theirs, f, ours, all[ours])
			continue
		}
		for i := range got {
			if got[i] != want[i] || got[i] == 0 && i == 0 && f.GetType() != dto.MetricType_HISTOGRAM {
				t.Errorf("%s: %v, %s: %v", theirs, got, ours, want)
			}
		}
	}
	for name, f := range all {
		if !strings.HasPrefix(name, "vllm:") {
			continue
		}
		if same[name] == "" && name != "vllm:kv_cache_usage_perc" {
			t.Errorf("%s is not checked", name)
		}
		for _, m := range f.GetMetric() {
			want := map[string]string{"model_name": "fable", "engine": labels(m)["engine"]}
			if name == "vllm:request_success_total" {
				want["finished_reason"] = labels(m)["finished_reason"]
			}
			if got := labels(m); len(got) != len(want) || got["model_name"] != "fable" || got["engine"] == "" {
				t.Errorf("%s has the labels %v", name, got)
			}
		}
	}
	usage := all["vllm:kv_cache_usage_perc"].GetMetric()
	if len(usage) != 2 || usage[0].GetGauge().GetValue()+usage[1].GetGauge().GetValue() != .25+.5 {
		t.Errorf("%v", usage)
	}
	reasons := map[string]float64{}
	for _, m := range all["vllm:request_success_total"].GetMetric() {
		reasons[labels(m)["finished_reason"]] = m.GetCounter().GetValue()
	}
	if len(reasons) != 4 || reasons["stop"] != 1 || reasons["length"] != 2 || reasons["abort"] != 3 || reasons["error"] != 4 {
		t.Errorf("%v", reasons)
	}
}

// A process without a router, or without workers, shows what it has.
func TestVLLMViewOfWhatIsThere(t *testing.T) {
	for name := range byName(t, telemetry.WithVLLM(prometheus.NewRegistry(), "fable")) {
		t.Errorf("%s comes from nowhere", name)
	}
	registry := prometheus.NewRegistry()
	blocks := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tandem_worker_kv_blocks", Help: "x", ConstLabels: prometheus.Labels{"worker": "d1"}}, []string{"state"})
	registry.MustRegister(blocks)
	blocks.WithLabelValues("total").Set(0)
	all := byName(t, telemetry.WithVLLM(registry, "fable"))
	if u := all["vllm:kv_cache_usage_perc"].GetMetric(); len(all) != 2 || len(u) != 1 || math.IsNaN(u[0].GetGauge().GetValue()) || labels(u[0])["engine"] != "d1" {
		t.Errorf("%v", all)
	}
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := busy(t).Gather()
		return families, errors.Join(err, errors.New("one collector failed"))
	})
	families, err := telemetry.WithVLLM(broken, "fable").Gather()
	if err == nil || len(families) < 20 {
		t.Errorf("%d families, %v", len(families), err)
	}
}

// scrape is the page, and its type, that a client gets who asks for a format.
func scrape(t *testing.T, accept string) (page, kind string) {
	t.Helper()
	registry := busy(t)
	q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	q.Header.Set("Accept", accept)
	r := httptest.NewRecorder()
	telemetry.Handler(registry, telemetry.WithVLLM(registry, "fable")).ServeHTTP(r, q)
	if r.Code != http.StatusOK {
		t.Fatalf("status %d: %s", r.Code, r.Body)
	}
	return r.Body.String(), r.Header().Get("Content-Type")
}

func TestParsersTakeThePage(t *testing.T) {
	for _, accept := range []string{"", "text/plain;version=0.0.4", "text/plain;version=1.0.0;escaping=allow-utf-8", "text/plain;version=1.0.0;escaping=underscores"} {
		page, _ := scrape(t, accept)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(page))
		if err != nil {
			t.Fatalf("%q: %v", accept, err)
		}
		if n := families["vllm:time_to_first_token_seconds"].GetMetric()[0].GetHistogram().GetSampleCount(); n != 14 {
			t.Errorf("%q: %d requests", accept, n)
		}
		if f := families["vllm:request_success_total"]; f.GetType() != dto.MetricType_COUNTER || len(f.GetMetric()) != 4 {
			t.Errorf("%q: %v", accept, f)
		}
	}
}

// openMetricsLine is a line of the OpenMetrics text format, section "ABNF", of
// what we show.
var openMetricsLine = regexp.MustCompile(`^(# (TYPE|HELP|UNIT) [a-zA-Z_:][a-zA-Z0-9_:]* .*|# EOF|[a-zA-Z_:][a-zA-Z0-9_:]*(\{([a-zA-Z_][a-zA-Z0-9_]*="([^"\\\n]|\\.)*",?)*\})? [^ ]+)$`)

func TestOpenMetricsHasTheNames(t *testing.T) {
	for _, accept := range []string{"application/openmetrics-text;version=1.0.0", "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text;version=1.0.0;escaping=underscores"} {
		page, kind := scrape(t, accept)
		if !strings.HasPrefix(kind, "application/openmetrics-text") || !strings.HasSuffix(page, "# EOF\n") {
			t.Errorf("%q: %q", accept, kind)
		}
		for line := range strings.Lines(page) {
			if !openMetricsLine.MatchString(strings.TrimSuffix(line, "\n")) {
				t.Errorf("%q: line %q", accept, line)
			}
		}
		for _, want := range []string{
			"# TYPE vllm:request_success counter\n", `vllm:request_success_total{engine="0",finished_reason="abort",model_name="fable"} 3`,
			"# TYPE vllm:e2e_request_latency_seconds histogram\n", `vllm:e2e_request_latency_seconds_bucket{engine="0",model_name="fable",le="+Inf"} 20`,
			`vllm:prefix_cache_hits_total{engine="d\"2",model_name="fable"} 301`, "# TYPE vllm:num_requests_running gauge\n",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("%q: there is no %q", accept, want)
			}
		}
	}
}
