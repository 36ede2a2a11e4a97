package contenders_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/tail"
	"github.com/tandem-serving/tandem/pkg/longtest"
)

func TestMain(m *testing.M) { benchtest.Main(m) }

var servers = [2]reporttest.Server{
	{PrefillPerS: 20, TPOT: 9 * time.Millisecond, QueueLimit: 60},
	{PrefillPerS: 20, TPOT: 9 * time.Millisecond, QueueLimit: 60, Disaggregated: true},
}

// measured is a result as two loaded servers would leave it.
func measured(rates []float64, rounds int) *contenders.Result {
	const duration = time.Minute // enough requests for a p99
	r := &contenders.Result{Capacity: []float64{18, 19.5}, Outcomes: make([]*loadtest.Outcome, 2)}
	for i, name := range [2]string{"aggregated", "disaggregated"} {
		r.Outcomes[i] = &loadtest.Outcome{Report: reporttest.Sweep(name, servers[i], rates, duration)}
	}
	for round := range rounds {
		for n, rate := range rates {
			step := contenders.Step{Rate: rate, Figures: make([]report.Figures, 2), CPUSeconds: make([]map[string]float64, 2), Seconds: []float64{20, 40}}
			for i := range step.Figures {
				step.Figures[i] = reporttest.Figures(reporttest.Run(servers[i], rate, duration, uint64(10*round+n)))
				step.CPUSeconds[i] = map[string]float64{"router-1": 5, "decode-1": 10}
			}
			r.Steps = append(r.Steps, step)
		}
	}
	return r
}

// distribution is one whose percentiles are given; below 0: there is none.
func distribution(p50, p99 float64) *measure.Distribution {
	d := &measure.Distribution{}
	if p50 >= 0 {
		d.P50 = &p50
	}
	if p99 >= 0 {
		d.P99 = &p99
	}
	return d
}

// rounds is a result of one rate, of TTFT's p50 on both sides.
func rounds(p50 ...[2]float64) *contenders.Result {
	r := measured([]float64{4}, 1)
	r.Steps = nil
	for _, values := range p50 {
		step := contenders.Step{Figures: make([]report.Figures, 2)}
		for i, v := range values {
			step.Figures[i] = report.Figures{Summary: measure.Summary{TTFT: distribution(v, -1), TPOT: distribution(-1, -1)}}
		}
		r.Steps = append(r.Steps, step)
	}
	return r
}

func TestDifferences(t *testing.T) {
	ten, minus := 0.1, -0.5
	for _, c := range []struct {
		name   string
		result *contenders.Result
		want   contenders.Difference
		row    string
	}{
		{"the median, of an odd number", rounds([2]float64{30, 10}, [2]float64{10, 33}, [2]float64{20, 22}),
			contenders.Difference{Milliseconds: [2]float64{20, 22}, Range: [2][2]float64{{10, 30}, {10, 33}}, Relative: &ten, Rounds: 3},
			"| TTFT p50 | 20.0 (10.0 to 30.0) | 22.0 (10.0 to 33.0) | +10.0% |"},
		{"the median, of an even number", rounds([2]float64{200, 60}, [2]float64{100, 90}),
			contenders.Difference{Milliseconds: [2]float64{150, 75}, Range: [2][2]float64{{100, 200}, {60, 90}}, Relative: &minus, Rounds: 2},
			"| TTFT p50 | 150 (100 to 200) | 75.0 (60.0 to 90.0) | -50.0% |"},
		{"rounds without it on one side do not count", rounds([2]float64{1, -1}, [2]float64{10, 11}, [2]float64{-1, 7}),
			contenders.Difference{Milliseconds: [2]float64{10, 11}, Range: [2][2]float64{{10, 10}, {11, 11}}, Relative: &ten, Rounds: 1},
			"| TTFT p50 | 10.0 (10.0 to 10.0) | 11.0 (11.0 to 11.0) | +10.0% |"},
		{"of nothing there is no share", rounds([2]float64{0, 0}),
			contenders.Difference{Rounds: 1}, "| TTFT p50 | 0.00 (0.00 to 0.00) | 0.00 (0.00 to 0.00) | n/a |"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.want.Latency, c.want.Percentile = measure.TTFT, "p50"
			all := c.result.Differences()
			if len(all) != 1 {
				t.Fatalf("%d differences: %+v", len(all), all)
			}
			got, err := json.Marshal(all[0])
			if err != nil {
				t.Fatal(err)
			}
			want, err := json.Marshal(c.want)
			if err != nil {
				t.Fatal(err)
			}
			// The median of 10 and 11 need not be 1.1 to the last bit.
			if c.want.Relative != nil && all[0].Relative != nil && abs(*all[0].Relative-*c.want.Relative) < 1e-12 {
				all[0].Relative = c.want.Relative
				if got, err = json.Marshal(all[0]); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, want) {
				t.Errorf("got %s, want %s", got, want)
			}
			var table strings.Builder
			if err := c.result.WriteDifferences(&table); err != nil || !strings.Contains(table.String(), c.row) || !strings.Contains(table.String(), "| aggregated | disaggregated |") {
				t.Errorf("%v: the table is\n%s", err, table.String())
			}
		})
	}
	if all := measured([]float64{8}, 2).Differences(); len(all) != 4 || all[3].Latency != measure.TPOT || all[3].Percentile != "p99" || all[3].Rounds != 2 || all[3].Milliseconds[0] <= 0 {
		t.Errorf("of what servers leave: %+v", all)
	}
}

func abs(x float64) float64 { return max(x, -x) }

func TestWriteMarkdown(t *testing.T) {
	var text strings.Builder
	if err := measured([]float64{12, 8}, 2).WriteMarkdown(&text); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text.String(), "\n")
	count := func(beginning string) (n, columns int) {
		for _, line := range lines {
			if strings.HasPrefix(line, beginning) {
				n, columns = n+1, strings.Count(line, "|")-1
			}
		}
		return n, columns
	}
	stages := 3 + len(tail.Stages())
	for _, c := range []struct {
		beginning  string
		n, columns int
	}{
		{"- completed with 64 requests kept running: aggregated 18, disaggregated 19.5 requests a second", 1, -1},
		{"| 8 | aggregated |", 3, stages}, // latencies, then p50 and p99 of the budget
		{"| 12 | disaggregated |", 3, stages},
		{"| requests/s | | TTFT p50 |", 1, 11},
		{"| requests/s | | E2E | dispatch |", 1, stages},
		{"| aggregated: cores used | decode-1 | router-1 | client |", 1, 4},
		{"| at 8 requests/s | 0.50 | 0.25 |", 1, 4},  // 10 and 5 of 20 s
		{"| at 12 requests/s | 0.25 | 0.12 |", 1, 4}, // of 40 s
	} {
		if n, columns := count(c.beginning); n != c.n || columns != c.columns {
			t.Errorf("%d lines of %d columns begin with %q, want %d of %d", n, columns, c.beginning, c.n, c.columns)
		}
	}
	if t.Failed() {
		t.Log(text.String())
	}
}

func TestDocument(t *testing.T) {
	r := measured([]float64{4, 8}, 1)
	r.Interrupted = true
	text, err := json.Marshal(r.Document())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Schema  string
		Reports []json.RawMessage
		Steps   []struct {
			Rate       float64
			CPUSeconds [2]map[string]float64 `json:"cpu_s"`
		}
		CapacityRPS []float64 `json:"capacity_rps"`
		Interrupted bool
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != "tandem.bench.pair/1.1" || len(got.Steps) != 2 || got.Steps[1].Rate != 8 || got.Steps[1].CPUSeconds[1]["decode-1"] != 10 ||
		!slices.Equal(got.CapacityRPS, r.Capacity) || !got.Interrupted || len(got.Reports) != 2 {
		t.Errorf("%+v", got)
	}
	for i, one := range got.Reports {
		read, err := report.Read(bytes.NewReader(one))
		if err != nil || read.Name != r.Outcomes[i].Report.Name || len(read.Runs) != 2 {
			t.Errorf("report %d is not one of a benchmark: %v", i, err)
		}
	}
}

func TestWriteHTML(t *testing.T) {
	var page strings.Builder
	if err := contenders.WriteHTML(&page, measured([]float64{4, 8}, 1).Outcomes); err != nil || !strings.Contains(page.String(), "aggregated, disaggregated") {
		t.Errorf("%v, %d bytes", err, page.Len())
	}
}

// silent takes what a run says.
type silent struct {
	began   []string
	planned int
}

func (s *silent) Plan(p loadtest.Plan)               { s.planned += len(p.Steps) }
func (s *silent) Begin(what string, _ time.Duration) { s.began = append(s.began, what) }
func (*silent) Sample(record.Sample)                 {}

func sides() []contenders.Contender {
	arguments := []string{"--engine", "simulated", "--simulated-base-ms", "1"}
	return []contenders.Contender{
		{Name: "aggregated", Mode: inferencev1.Mode_MODE_AGGREGATED, Plan: processes.Plan{Decode: 1, Arguments: arguments, StartTimeout: time.Minute}},
		{Name: "disaggregated", Mode: inferencev1.Mode_MODE_DISAGGREGATED, Plan: processes.Plan{Prefill: 1, Decode: 1, Arguments: arguments, StartTimeout: time.Minute}},
	}
}

func load(t *testing.T) loadtest.Config {
	t.Helper()
	var c loadtest.Config
	fs := pflag.NewFlagSet("load", pflag.ContinueOnError)
	c.RegisterRunFlags(fs)
	if err := fs.Parse([]string{"--duration", "500ms", "--warmup", "100ms", "--prompt-tokens", "8", "--output-tokens", "4"}); err != nil {
		t.Fatal(err)
	}
	return c
}

// Two meshes of processes serve in turns, and are gone afterwards.
func TestRun(t *testing.T) {
	benchtest.Children(t)
	progress := &silent{}
	r, err := contenders.Run(t.Context(), sides(), contenders.Options{Load: load(t), Rates: []float64{40}, Rounds: 2}, progress)
	if err != nil {
		t.Fatal(err)
	}
	if progress.planned != 4 || len(progress.began) != 4 {
		t.Errorf("planned %d runs, began %q", progress.planned, progress.began)
	}
	if len(r.Steps) != 2 || r.Interrupted || r.Capacity != nil {
		t.Fatalf("%d steps, interrupted %v, capacity %v", len(r.Steps), r.Interrupted, r.Capacity)
	}
	for n, step := range r.Steps {
		for i, parts := range [2]int{2, 3} {
			if f := step.Figures[i]; step.Rate != 40 || f.Completed == 0 || step.Seconds[i] <= 0 || len(step.CPUSeconds[i]) != parts || step.CPUSeconds[i]["router-1"] <= 0 {
				t.Errorf("round %d, side %d: rate %v, %d completed in %v s, CPU %v", n, i, step.Rate, f.Completed, step.Seconds[i], step.CPUSeconds[i])
			}
		}
	}
	for i, outcome := range r.Outcomes {
		if outcome.Report.Name != sides()[i].Name || len(outcome.Report.Runs) != 2 || len(outcome.Runs) == 0 {
			t.Errorf("report %d is called %q and has %d runs, the records of %d", i, outcome.Report.Name, len(outcome.Report.Runs), len(outcome.Runs))
		}
		for _, run := range outcome.Runs {
			for _, one := range run.Records {
				if wanted := sides()[i].Mode; one.Outcome == record.Completed && one.Route.GetMode() != wanted {
					t.Fatalf("a request of the %s side ran %s", outcome.Report.Name, one.Route.GetMode())
				}
			}
		}
	}
	// Who goes first changes from round to round.
	order := make([]string, len(progress.began))
	for i, what := range progress.began {
		order[i], _, _ = strings.Cut(what, ",")
	}
	if got := strings.Join(order, " "); got != "aggregated disaggregated disaggregated aggregated" {
		t.Errorf("measured in the order %s", got)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	benchtest.Children(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := contenders.Run(ctx, sides(), contenders.Options{Load: load(t), Rates: []float64{40}, Rounds: 1}, &silent{}); !errors.Is(err, contenders.ErrInterrupted) {
		t.Errorf("it gave %+v, %v although asked to stop", r, err)
	}
}

// ending ends a context when so many runs have begun.
type ending struct {
	silent
	cancel context.CancelFunc
	after  int
}

func (e *ending) Begin(what string, total time.Duration) {
	e.silent.Begin(what, total)
	if len(e.began) == e.after {
		e.cancel()
	}
}

func TestRunInterrupted(t *testing.T) {
	longtest.Only(t)
	benchtest.Children(t)
	for after, whole := range map[int]int{1: 0, 2: 0, 4: 1} {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := contenders.Run(ctx, sides(), contenders.Options{Load: load(t), Rates: []float64{40}, Rounds: 2}, &ending{cancel: cancel, after: after})
		cancel()
		if whole == 0 {
			if !errors.Is(err, contenders.ErrInterrupted) {
				t.Errorf("in run %d: %+v, %v", after, r, err)
			}
			continue
		}
		if err != nil || !r.Interrupted || len(r.Steps) != whole || r.Outcomes[1] == nil {
			t.Errorf("in run %d: %+v, %v", after, r, err)
		}
	}
}

func TestRunNamesTheSideThatFails(t *testing.T) {
	benchtest.Children(t)
	both := sides()
	both[1].Plan.Worker = []string{"--max-batch-tokens", "0"}
	if _, err := contenders.Run(t.Context(), both, contenders.Options{Load: load(t), Rates: []float64{40}, Rounds: 1}, &silent{}); err == nil ||
		!strings.HasPrefix(err.Error(), "disaggregated: ") || !strings.Contains(err.Error(), "--max-batch-tokens") {
		t.Errorf("the error is %v", err)
	}
}
