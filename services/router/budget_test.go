package router_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	workerv1 "github.com/tandem-serving/tandem/proto/tandem/worker/v1"

	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/rpc"
	"github.com/tandem-serving/tandem/pkg/worker/workertest"
	"github.com/tandem-serving/tandem/services/router"
	"github.com/tandem-serving/tandem/services/router/latencybudget"
)

// sample is the sample of a family whose label has a value; the only one if label
// is empty.
func (m *mesh) sample(name, label, value string) *dto.Metric {
	m.t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, s := range f.GetMetric() {
			if label == "" || s.GetLabel()[0].GetName() == label && s.GetLabel()[0].GetValue() == value {
				return s
			}
		}
	}
	return nil
}

// slowAt makes workers wait at some stages, by what the prompt is long.
func slowAt(delays map[workertest.Stage]time.Duration, promptTokens int) workertest.Hook {
	return func(ctx context.Context, _ *workertest.Worker, task *workerv1.Task, stage workertest.Stage, _ int) error {
		if len(task.GetTokenIds())-int(task.GetGenerated()) != promptTokens || delays[stage] == 0 {
			return nil
		}
		timer := time.NewTimer(delays[stage])
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// named gives a request an id.
func named(ctx context.Context, id string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, api.HeaderRequestID, id)
}

// What the client is told, what Explain keeps, the histograms and the budget's
// windows are the same nanoseconds, and add up exactly.
func TestResponseMetricsAndBudgetAgree(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		m.start(slowAt(map[workertest.Stage]time.Duration{
			workertest.Reserve: 7003 * time.Microsecond, workertest.Admit: 1301 * time.Microsecond, workertest.Token: 2501 * time.Microsecond,
			workertest.Start: 11 * time.Millisecond, workertest.First: 13001 * time.Microsecond, workertest.Sent: 5 * time.Millisecond,
		}, 9), prefillRecord("p1"), decodeRecord("d1"))
		type sums struct {
			seconds float64 // added up as a histogram does, in the same order
			ns, max int64
			count   uint64
		}
		stages, totals, modes := map[string]*sums{}, map[string]*sums{}, map[string]*sums{}
		add := func(to map[string]*sums, name string, ns int64) {
			if to[name] == nil {
				to[name] = &sums{}
			}
			s := to[name]
			s.seconds += time.Duration(ns).Seconds()
			s.ns += ns
			s.max = max(s.max, ns)
			s.count++
		}
		var gapNs int64
		var gaps uint64
		for i := range 24 {
			mode, label := agg, "aggregated"
			if i%2 == 0 {
				mode, label = dis, "disaggregated"
			}
			q := ask(mode, 4+i%3*5) // 9 tokens are slow
			q.MaxTokens = proto.Uint32(uint32(1 + i%5*7))
			r := m.generate(t.Context(), q)
			if r.err != nil {
				t.Fatal(r.err)
			}
			explained, err := m.control.Explain(t.Context(), &controlv1.ExplainRequest{RequestId: r.accepted.GetRequestId()})
			timings := r.finished.GetTimings()
			if err != nil || !proto.Equal(explained.GetTimings(), timings) {
				t.Errorf("%v: Explain says %v, the response %v", err, explained.GetTimings(), timings)
			}
			rest := int64(r.finished.GetUsage().GetCompletionTokens()) - 1
			for name, ns := range map[string]int64{
				"tokenize": timings.GetTokenizeNs(), "retried": timings.GetRetriedNs(), "queue": timings.GetQueueNs(), "decide": timings.GetDecideNs(), "reserve": timings.GetReserveNs(),
				"prefill": timings.GetPrefillNs(), "transfer_exposed": timings.GetTransferExposedNs(), "decode": timings.GetDecodeNs(),
			} {
				add(stages, name, ns)
				if name != "decode" {
					add(totals, name, ns)
				} else if rest > 0 {
					add(totals, name, ns/rest)
				}
			}
			add(totals, "ttft", timings.GetTtftNs())
			add(totals, "e2e", timings.GetTotalNs())
			add(modes, "tandem_time_to_first_token_seconds "+label, timings.GetTtftNs())
			add(modes, "tandem_e2e_request_latency_seconds "+label, timings.GetTotalNs())
			decode := timings.GetTransferExposedNs() + timings.GetDecodeNs()
			add(modes, "tandem_request_queue_time_seconds "+label, timings.GetQueueNs())
			add(modes, "tandem_request_prefill_time_seconds "+label, timings.GetPrefillNs())
			add(modes, "tandem_request_decode_time_seconds "+label, decode)
			add(modes, "tandem_request_inference_time_seconds "+label, timings.GetPrefillNs()+decode)
			if rest > 0 {
				add(totals, "tpot", timings.GetTpotNs())
				add(modes, "tandem_request_time_per_output_token_seconds "+label, timings.GetTpotNs())
				add(modes, "tandem_second_token_seconds "+label, timings.GetSecondTokenNs())
			}
			gapNs += timings.GetTotalNs() - timings.GetTtftNs()
			gaps += uint64(rest)
		}
		for stage, want := range stages {
			h := m.sample("tandem_router_stage_seconds", "stage", stage).GetHistogram()
			if h.GetSampleSum() != want.seconds || h.GetSampleCount() != want.count {
				t.Errorf("%s: the histogram has %d, %v s; the responses %d, %v s", stage, h.GetSampleCount(), h.GetSampleSum(), want.count, want.seconds)
			}
		}
		for key, want := range modes {
			name, label, _ := strings.Cut(key, " ")
			h := m.sample(name, "mode", label).GetHistogram()
			if h.GetSampleSum() != want.seconds || h.GetSampleCount() != want.count {
				t.Errorf("%s: the histogram has %d, %v s; the responses %d, %v s", key, h.GetSampleCount(), h.GetSampleSum(), want.count, want.seconds)
			}
		}
		var sum float64
		var count uint64
		for _, label := range []string{"aggregated", "disaggregated"} {
			h := m.sample("tandem_inter_token_latency_seconds", "mode", label).GetHistogram()
			sum += h.GetSampleSum()
			count += h.GetSampleCount()
		}
		if int64(math.Round(sum*1e9)) != gapNs || count != gaps {
			t.Errorf("gaps: %d, %v s; the responses %d, %d ns", count, sum, gaps, gapNs)
		}
		budget, err := m.control.GetBudget(t.Context(), &controlv1.GetBudgetRequest{})
		if err != nil || budget.GetRequests() != 24 || len(budget.GetLines()) != 11 {
			t.Fatalf("%v, %v", err, budget)
		}
		for _, line := range budget.GetLines() {
			want := totals[line.GetName()]
			if line.GetSumNs() != want.ns || line.GetMaxNs() != want.max || line.GetCount() != want.count {
				t.Errorf("%s: the window has %d, %d ns, at most %d; the responses %d, %d ns, at most %d", line.GetName(),
					line.GetCount(), line.GetSumNs(), line.GetMaxNs(), want.count, want.ns, want.max)
			}
			s := m.sample("tandem_budget_spent_seconds", "stage", line.GetName()).GetSummary()
			if s.GetSampleSum() != time.Duration(want.ns).Seconds() || s.GetSampleCount() != want.count {
				t.Errorf("%s: the summary has %v", line.GetName(), s)
			}
			for _, q := range s.GetQuantile() {
				if q.GetQuantile() == 1 && q.GetValue() != time.Duration(want.max).Seconds() {
					t.Errorf("%s: the summary's largest is %v", line.GetName(), q.GetValue())
				}
			}
		}
		if f := m.sample("tandem_requests_finished_total", "reason", "length").GetCounter().GetValue(); f != 24 {
			t.Errorf("%v requests ended for length", f)
		}
		if r := m.sample("tandem_latency_p99_p50_ratio", "latency", "ttft").GetGauge().GetValue(); !(r > 1) {
			t.Errorf("ratio %v", r)
		}
	})
}

func TestBudgetNamesWhoBrokeIt(t *testing.T) {
	declare := func(c *router.Config) {
		c.Budget.Window = time.Minute
		c.Budget.Declared.Totals = [latency.NumTotals]time.Duration{latency.TotalTTFT: 500 * time.Millisecond, latency.TotalTPOT: 50 * time.Millisecond}
		c.Budget.Declared.Stages[api.StageReserve] = 20 * time.Millisecond
		c.Budget.Declared.Stages[api.StageTokenize] = 10 * time.Millisecond
	}
	inMesh(t, declare, func(t *testing.T, m *mesh) {
		m.start(slowAt(map[workertest.Stage]time.Duration{workertest.Reserve: 300 * time.Millisecond, workertest.First: 400 * time.Millisecond}, 9),
			prefillRecord("p1"), decodeRecord("d1"))
		slow := named(t.Context(), "slow-one")
		for i := range 20 {
			ctx, tokens := t.Context(), 4
			if i == 7 {
				ctx, tokens = slow, 9
			}
			if r := m.generate(ctx, ask(dis, tokens)); r.err != nil {
				t.Fatal(r.err)
			}
		}
		budget, err := m.control.GetBudget(t.Context(), &controlv1.GetBudgetRequest{})
		if err != nil || budget.GetRequests() != 20 || budget.GetBreaches() != 1 || budget.GetFailed() != 0 || budget.GetWindow().AsDuration() != time.Minute {
			t.Fatalf("%v, %v", err, budget)
		}
		for _, line := range budget.GetLines() {
			want := map[string]uint64{"reserve": 1, "ttft": 1}[line.GetName()]
			declared := map[string]time.Duration{"tokenize": 10e6, "reserve": 20e6, "ttft": 500e6, "tpot": 50e6}[line.GetName()]
			if line.GetBreaches() != want || line.GetDeclared().AsDuration() != declared {
				t.Errorf("%v", line)
			}
			perToken := line.GetName() == "decode" || line.GetName() == "tpot"
			total := line.GetName() == "ttft" || line.GetName() == "tpot" || line.GetName() == "e2e"
			if line.GetPerToken() != perToken || line.GetTotal() != total {
				t.Errorf("%v", line)
			}
		}
		if len(budget.GetOverruns()) != 1 {
			t.Fatalf("%v", budget.GetOverruns())
		}
		// 20 requests: the slowest is their 99th percentile.
		o := budget.GetOverruns()[0]
		if o.GetName() != "ttft" || o.GetPercentile() != 99 || o.GetStage() != "reserve" || o.GetRequestId() != "slow-one" ||
			o.GetStageDeclaredNs() != 20e6 || o.GetStageSpentNs() < 300e6 || o.GetSpentNs() < 700e6 || o.GetDeclaredNs() != 500e6 {
			t.Errorf("%v", o)
		}
		for stage, want := range map[string]float64{"reserve": 1, "queue": 0} {
			if got := m.sample("tandem_budget_breaches_total", "stage", stage).GetCounter().GetValue(); got != want {
				t.Errorf("%s: %v breaches", stage, got)
			}
		}
		if d := m.sample("tandem_budget_declared_seconds", "stage", "ttft").GetGauge().GetValue(); d != .5 {
			t.Errorf("declared %v", d)
		}
		if d := m.sample("tandem_budget_declared_seconds", "stage", "queue"); d != nil {
			t.Errorf("nothing is declared for the queue: %v", d)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		budget, err = m.control.GetBudget(t.Context(), &controlv1.GetBudgetRequest{})
		if err != nil || budget.GetRequests() != 0 || budget.GetBreaches() != 0 || len(budget.GetOverruns()) != 0 {
			t.Errorf("after its time: %v, %v", err, budget)
		}
		s := m.sample("tandem_budget_spent_seconds", "stage", "ttft").GetSummary()
		if s.GetSampleCount() != 20 || !math.IsNaN(s.GetQuantile()[0].GetValue()) {
			t.Errorf("after its time: %v", s)
		}
	})
}

// What failed has no timings, and is told beside those that have.
func TestBudgetCountsFailures(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		if r := m.generate(t.Context(), ask(agg, 4)); status.Code(r.err) != codes.Unavailable {
			t.Fatal(r.err)
		}
		if r := m.generate(t.Context(), ask(agg, window+1)); status.Code(r.err) != codes.InvalidArgument {
			t.Fatal(r.err)
		}
		budget, err := m.control.GetBudget(t.Context(), &controlv1.GetBudgetRequest{})
		if err != nil || budget.GetFailed() != 1 || budget.GetRequests() != 0 {
			t.Errorf("%v, %v", err, budget)
		}
		if n := m.sample("tandem_requests_finished_total", "reason", "error").GetCounter().GetValue(); n != 2 {
			t.Errorf("%v errors", n)
		}
	})
}

func TestExplainSlowest(t *testing.T) {
	inMesh(t, nil, func(t *testing.T, m *mesh) {
		slowest := func(percentile float64, by controlv1.RankBy) (*controlv1.ExplainResponse, error) {
			return m.control.Explain(t.Context(), &controlv1.ExplainRequest{Slowest: &controlv1.Slowest{Percentile: percentile, By: by}})
		}
		if _, err := slowest(99, 0); status.Code(err) != codes.NotFound {
			t.Errorf("without requests: %v", err)
		}
		d := slowAt(map[workertest.Stage]time.Duration{workertest.First: 400 * time.Millisecond}, 9)
		m.start(d, prefillRecord("p1"), decodeRecord("d1"))
		for i := range 99 {
			q := ask(dis, 4)
			q.MaxTokens = proto.Uint32(3)
			ctx := t.Context()
			switch i {
			case 20:
				ctx, q.Input = named(ctx, "late"), ask(dis, 9).GetInput()
			case 50:
				ctx, q.MaxTokens = named(ctx, "long"), proto.Uint32(25)
			}
			if r := m.generate(ctx, q); r.err != nil {
				t.Fatal(r.err)
			}
		}
		for _, test := range []struct {
			percentile float64
			by         controlv1.RankBy
			id         string
			rank       uint32
		}{
			{100, controlv1.RankBy_RANK_BY_TTFT, "late", 1},
			{99, 0, "late", 1}, // the 99th of 99, since the rank is rounded up
			{100, controlv1.RankBy_RANK_BY_E2E, "late", 1},
			{98.9, controlv1.RankBy_RANK_BY_E2E, "long", 2},
		} {
			e, err := slowest(test.percentile, test.by)
			if err != nil || e.GetRequestId() != test.id || e.GetRank() != test.rank || e.GetRanked() != 99 || len(e.GetDecisions()) != 1 || e.GetTimings().GetTotalNs() == 0 {
				t.Errorf("%v: %v, %v", test, err, e)
			}
		}
		for _, test := range []struct {
			q     *controlv1.ExplainRequest
			field string
		}{
			{&controlv1.ExplainRequest{RequestId: "late", Slowest: &controlv1.Slowest{Percentile: 99}}, "slowest"},
			{&controlv1.ExplainRequest{Slowest: &controlv1.Slowest{}}, "slowest.percentile"},
			{&controlv1.ExplainRequest{Slowest: &controlv1.Slowest{Percentile: math.NaN()}}, "slowest.percentile"},
			{&controlv1.ExplainRequest{Slowest: &controlv1.Slowest{Percentile: 99, By: 9}}, "slowest.by"},
		} {
			if _, err := m.control.Explain(t.Context(), test.q); status.Code(err) != codes.InvalidArgument || rpc.Field(err) != test.field {
				t.Errorf("%v: %v", test.q, err)
			}
		}
	})
}

func TestBudgetFlags(t *testing.T) {
	var c latencybudget.Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	c.RegisterFlags(fs, "budget-")
	if err := fs.Parse([]string{"--budget-transfer-exposed", "20ms", "--budget-tpot", "30ms", "--budget-window", "1m"}); err != nil {
		t.Fatal(err)
	}
	if c.Declared.Stages[api.StageTransferExposed] != 20*time.Millisecond || c.Declared.Totals[latency.TotalTPOT] != 30*time.Millisecond || c.Window != time.Minute || c.Validate() != nil {
		t.Errorf("%+v, %v", c, c.Validate())
	}
	c.Window = time.Millisecond
	if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "budget-window is 1ms") {
		t.Errorf("%v", err)
	}
	config := router.DefaultConfig()
	config.Budget.Declared.Stages[api.StageQueue] = -1
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), "budget-queue") {
		t.Errorf("%v", err)
	}
}
