package mesh_test

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/mesh"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// scrapeMesh is what a mesh exposes once it has served a request of each mode.
func scrapeMesh(t *testing.T, change func(*mesh.UpOptions)) map[string]*dto.MetricFamily {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o := upOptions(t)
	o.Engine.Simulated.StepTime = latency.Model{BaseMs: 1}
	change(&o)
	up, ended := startMesh(ctx, t, o, quiet, telemetry.NewRegistry())
	for _, mode := range []inferencev1.Mode{inferencev1.Mode_MODE_AGGREGATED, inferencev1.Mode_MODE_DISAGGREGATED} {
		generate(t, up, mode)
	}
	_, page := get(t, up.Metrics, "/metrics")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Errorf("the page cannot be read: %v", err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
	return families
}

// generate runs one request of 8 tokens to its end.
func generate(t *testing.T, up mesh.Up, mode inferencev1.Mode) {
	t.Helper()
	conn, err := rpc.Dial(up.Address, rpc.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx := t.Context()
	stream, err := inferencev1.NewInferenceClient(conn).Generate(ctx, &inferencev1.GenerateRequest{
		Model: up.Model, Input: &inferencev1.GenerateRequest_Prompt{Prompt: "Once upon a time"}, MaxTokens: new(uint32(8)), Mode: mode,
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatalf("%v: %v", mode, err)
	}
}

// documented are the metrics in the tables of docs/metrics.md; rows are those that
// have one of their own.
func documented(t *testing.T) (names, rows []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("\\| `((?:tandem_|vllm:)[a-z0-9_:]+)`")
	for line := range strings.Lines(string(text)) {
		for i, match := range name.FindAllStringSubmatch(line, -1) {
			names = append(names, match[1])
			if i == 0 && strings.HasPrefix(line, "| `"+match[1]) {
				rows = append(rows, match[1])
			}
		}
	}
	return names, rows
}

// rare are metrics that a mesh shows once something has happened, and what.
var rare = map[string]string{
	"tandem_auth_refused_total":        "somebody was refused with --auth required",
	"tandem_http_requests_total":       "somebody used the HTTP API",
	"tandem_http_request_seconds":      "somebody used the HTTP API",
	"tandem_gpu_ecc_errors":            "a GPU computes",
	"tandem_gpu_xid_total":             "a GPU reported an error",
	"tandem_router_desired_workers":    "a router has run for some seconds",
	"tandem_router_failed_tries_total": "a worker failed",
	"tandem_signals_dropped_total":     "NATS was away",
	"tandem_signals_malformed_total":   "a stranger sent something",
	"tandem_trace_spans_made_total":    "a request was traced",
	"tandem_trace_spans_total":         "a request was traced",
}

// boundsOf are the bounds of a family's buckets, but the last; none if it is no histogram.
func boundsOf(family *dto.MetricFamily) (bounds []float64) {
	for _, b := range family.GetMetric()[0].GetHistogram().GetBucket() {
		if !math.IsInf(b.GetUpperBound(), 1) {
			bounds = append(bounds, b.GetUpperBound())
		}
	}
	return bounds
}

func TestDocumentNamesEveryMetric(t *testing.T) {
	families := scrapeMesh(t, func(o *mesh.UpOptions) {
		o.Router.Budget.Declared.Totals[latency.TotalTTFT] = time.Second
		o.KVStores = 1
	})
	names, rows := documented(t)
	for name := range families {
		// Those of libraries are described by group.
		library := strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "promhttp_")
		if !library && !slices.Contains(names, name) {
			t.Errorf("docs/metrics.md does not name %s: %s", name, families[name].GetHelp())
		}
		for bounds := boundsOf(families[name]); !library && len(bounds) > 1; bounds = bounds[1:] {
			if math.Abs(bounds[1]/bounds[0]-2) > 1e-3 {
				t.Errorf("a bucket of %s goes from %v to %v, not twice that", name, bounds[0], bounds[1])
			}
		}
	}
	for _, name := range names {
		if families[name] == nil && rare[name] == "" {
			t.Errorf("docs/metrics.md names %s, which a mesh does not show", name)
		}
	}
	seen := map[string]bool{}
	for _, row := range rows {
		if seen[row] {
			t.Errorf("docs/metrics.md has two rows for %s", row)
		}
		seen[row] = true
	}
	for _, pair := range [][2]string{
		{"vllm:generation_tokens_total", "tandem_generation_tokens_total"}, {"vllm:prompt_tokens_total", "tandem_prompt_tokens_total"},
	} {
		theirs, ours := families[pair[0]].GetMetric(), families[pair[1]].GetMetric()
		if len(theirs) != 1 || len(ours) != 1 || ours[0].GetCounter().GetValue() == 0 || theirs[0].GetCounter().GetValue() != ours[0].GetCounter().GetValue() {
			t.Errorf("%s is %v, %s is %v", pair[0], theirs, pair[1], ours)
		}
	}
	for _, name := range []string{"vllm:kv_cache_usage_perc", "vllm:num_preemptions_total", "vllm:prefix_cache_hits_total"} {
		if n := len(families[name].GetMetric()); n != 2 { // one for each worker
			t.Errorf("%s: %d samples", name, n)
		}
	}
}

func TestWithoutTheNamesOfVLLM(t *testing.T) {
	families := scrapeMesh(t, func(o *mesh.UpOptions) { o.MetricsVLLM = false })
	if families["tandem_time_to_first_token_seconds"] == nil {
		t.Error("nothing is shown")
	}
	for name := range families {
		if strings.HasPrefix(name, "vllm:") {
			t.Errorf("%s is shown", name)
		}
	}
}
