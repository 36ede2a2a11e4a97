package telemetry

import (
	"cmp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
)

// WithVLLM adds to what gatherer gathers a second view of the same numbers, under
// the names and labels of vLLM's metrics, for dashboards and autoscalers made for
// it. Nothing is counted twice: a family of the view is made of one of tandem_… at
// the moment of the scrape, and is there when that one is. model is the value of
// the label model_name. The label engine is "0" for what the router measures of
// the whole mesh, and the worker's id for what a worker says of itself.
//
// Names, types and labels are those of vllm/v1/metrics/loggers.py. Buckets are
// ours. docs/metrics.md says where a meaning differs.
func WithVLLM(gatherer prometheus.Gatherer, model string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		// What could be gathered is shown even if something could not.
		families, err := gatherer.Gather()
		all := slices.Concat(families, vllmView(families, model))
		slices.SortFunc(all, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return all, err
	})
}

// vllmFamily is how one family of the view is made.
type vllmFamily struct {
	name, help, source string
	// value turns a worker's samples of the source into the one of the view; nil:
	// the samples are added up.
	value func([]*dto.Metric) *dto.Metric
	// keep are labels that stay, under another name.
	keep map[string]string
}

// vllmFamilies are all of the view.
var vllmFamilies = []vllmFamily{
	{name: "vllm:time_to_first_token_seconds", source: "tandem_time_to_first_token_seconds", help: "Histogram of time to first token in seconds."},
	{name: "vllm:inter_token_latency_seconds", source: "tandem_inter_token_latency_seconds", help: "Histogram of inter-token latency in seconds."},
	{name: "vllm:request_time_per_output_token_seconds", source: "tandem_request_time_per_output_token_seconds", help: "Histogram of time per output token in seconds, per request."},
	{name: "vllm:e2e_request_latency_seconds", source: "tandem_e2e_request_latency_seconds", help: "Histogram of e2e request latency in seconds."},
	{name: "vllm:request_queue_time_seconds", source: "tandem_request_queue_time_seconds", help: "Histogram of time spent in WAITING phase for request."},
	{name: "vllm:request_prefill_time_seconds", source: "tandem_request_prefill_time_seconds", help: "Histogram of time spent in PREFILL phase for request."},
	{name: "vllm:request_decode_time_seconds", source: "tandem_request_decode_time_seconds", help: "Histogram of time spent in DECODE phase for request."},
	{name: "vllm:request_inference_time_seconds", source: "tandem_request_inference_time_seconds", help: "Histogram of time spent in RUNNING phase for request."},
	{name: "vllm:request_prompt_tokens", source: "tandem_request_prompt_tokens", help: "Number of prefill tokens processed."},
	{name: "vllm:request_generation_tokens", source: "tandem_request_generation_tokens", help: "Number of generation tokens processed."},
	{name: "vllm:prompt_tokens_total", source: "tandem_prompt_tokens_total", help: "Number of prefill tokens processed."},
	{name: "vllm:generation_tokens_total", source: "tandem_generation_tokens_total", help: "Number of generation tokens processed."},
	{name: "vllm:num_requests_running", source: "tandem_router_requests_running", help: "Number of requests in model execution batches."},
	{name: "vllm:num_requests_waiting", source: "tandem_router_requests_waiting", help: "Number of requests waiting to be processed."},
	{name: "vllm:request_success_total", source: "tandem_requests_finished_total", help: "Count of successfully processed requests.", keep: map[string]string{"reason": "finished_reason"}},
	{name: "vllm:kv_cache_usage_perc", source: "tandem_worker_kv_blocks", help: "KV-cache usage. 1 means 100 percent usage.", value: blocksInUse},
	{name: "vllm:prefix_cache_queries_total", source: "tandem_worker_prefix_cache_lookup_tokens_total", help: "Prefix cache queries, in terms of number of queried tokens."},
	{name: "vllm:prefix_cache_hits_total", source: "tandem_worker_prefix_cache_hit_tokens_total", help: "Prefix cache hits, in terms of number of cached tokens."},
	{name: "vllm:num_preemptions_total", source: "tandem_worker_preemptions_total", help: "Cumulative number of preemption from the engine."},
}

// blocksInUse is the share of a worker's KV blocks that Allocate could not give.
func blocksInUse(states []*dto.Metric) *dto.Metric {
	var free, total float64
	for _, m := range states {
		switch labelOf(m, "state") {
		case "free":
			free = m.GetGauge().GetValue()
		case "total":
			total = m.GetGauge().GetValue()
		}
	}
	used := 0.0
	if total > 0 { // before the first report it is 0
		used = (total - free) / total
	}
	return &dto.Metric{Gauge: &dto.Gauge{Value: proto.Float64(used)}}
}

func vllmView(families []*dto.MetricFamily, model string) []*dto.MetricFamily {
	byName := make(map[string]*dto.MetricFamily, len(families))
	for _, f := range families {
		byName[f.GetName()] = f
	}
	var view []*dto.MetricFamily
	for _, v := range vllmFamilies {
		source := byName[v.source]
		if source == nil {
			continue
		}
		if v.value == nil {
			v.value = sum
		}
		family := &dto.MetricFamily{Name: proto.String(v.name), Help: proto.String(v.help), Type: source.Type}
		for _, group := range v.groups(source.GetMetric(), model) {
			sample := v.value(group.samples)
			sample.Label = group.labels
			family.Metric = append(family.Metric, sample)
		}
		view = append(view, family)
	}
	return view
}

// group is the samples that become one.
type group struct {
	labels  []*dto.LabelPair
	samples []*dto.Metric
}

// groups puts samples together whose labels in the view are the same, in the
// order in which they come.
func (v *vllmFamily) groups(samples []*dto.Metric, model string) []*group {
	var groups []*group
	byKey := map[string]*group{}
	for _, sample := range samples {
		engine := "0"
		if worker := labelOf(sample, "worker"); worker != "" {
			engine = worker
		}
		labels := map[string]string{"engine": engine, "model_name": model}
		for ours, theirs := range v.keep {
			labels[theirs] = vllmValue(labelOf(sample, ours))
		}
		pairs := make([]*dto.LabelPair, 0, len(labels))
		for name, value := range labels {
			pairs = append(pairs, &dto.LabelPair{Name: proto.String(name), Value: proto.String(value)})
		}
		slices.SortFunc(pairs, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
		var key strings.Builder
		for _, p := range pairs {
			key.WriteString(p.GetValue() + "\xff") // which no label value holds
		}
		g := byKey[key.String()]
		if g == nil {
			g = &group{labels: pairs}
			byKey[key.String()] = g
			groups = append(groups, g)
		}
		g.samples = append(g.samples, sample)
	}
	return groups
}

// vllmValue is what vLLM calls a reason.
func vllmValue(reason string) string {
	if reason == "cancelled" {
		return "abort"
	}
	return reason
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// sum adds up samples of one family. Histograms have the same buckets, since they
// come from one vector.
func sum(samples []*dto.Metric) *dto.Metric {
	out := &dto.Metric{}
	for _, m := range samples {
		switch {
		case m.Counter != nil:
			if out.Counter == nil {
				out.Counter = &dto.Counter{Value: proto.Float64(0)}
			}
			*out.Counter.Value += m.Counter.GetValue()
		case m.Gauge != nil:
			if out.Gauge == nil {
				out.Gauge = &dto.Gauge{Value: proto.Float64(0)}
			}
			*out.Gauge.Value += m.Gauge.GetValue()
		case m.Histogram != nil:
			out.Histogram = addHistogram(out.Histogram, m.Histogram)
		}
	}
	return out
}

// addHistogram adds h to sum, which is nil at first and is returned.
func addHistogram(sum, h *dto.Histogram) *dto.Histogram {
	if sum == nil {
		sum = &dto.Histogram{SampleCount: proto.Uint64(0), SampleSum: proto.Float64(0)}
		for _, b := range h.GetBucket() {
			sum.Bucket = append(sum.Bucket, &dto.Bucket{UpperBound: proto.Float64(b.GetUpperBound()), CumulativeCount: proto.Uint64(0)})
		}
	}
	*sum.SampleCount += h.GetSampleCount()
	*sum.SampleSum += h.GetSampleSum()
	for i, b := range h.GetBucket() {
		*sum.Bucket[i].CumulativeCount += b.GetCumulativeCount()
	}
	return sum
}
