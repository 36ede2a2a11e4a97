package report_test

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/search"
)

func figuresOf(run *record.Run) report.Figures {
	return report.NewFigures(run, measure.Summarize(run, measure.Options{}), nil)
}

func pointer[T any](v T) *T { return &v }

func TestSeries(t *testing.T) {
	s := time.Second
	answer := func(due, first, last time.Duration) *record.Record {
		return &record.Record{
			Due: due, Sent: due, Admitted: due, End: last, Outcome: record.Completed, OutputTokens: 5,
			Arrivals: []record.Arrival{{At: first, Tokens: 1}, {At: last, Tokens: 4}},
		}
	}
	run := &record.Run{To: 3 * s, Drained: 4 * s, Records: []*record.Record{
		answer(0, s/2, 5*s/2),
		answer(s/4, s/2, 3*s/2),
		{Due: 3 * s / 2, Sent: 3 * s / 2, Admitted: record.Unset, End: 2 * s, Outcome: record.Rejected},
		{Due: 5 * s / 2, Sent: 5 * s / 2, Admitted: 3 * s, End: 4 * s, Outcome: record.TimedOut, Arrivals: []record.Arrival{{At: 3 * s, Tokens: 2}}},
		{Due: 5 * s / 2, Sent: record.Unset, Admitted: record.Unset, End: record.Unset, Outcome: record.Pending},
		{Due: 7 * s / 2, Sent: record.Unset, Admitted: record.Unset, End: record.Unset, Outcome: record.Unsent},
	}}
	want := []report.Point{
		{S: 0, Due: 2, Admitted: 2, Backlog: 2, Tokens: 2, TTFTP50: pointer(250.0), TTFTMax: pointer(500.0), TPOTP50: pointer(250.0), TPOTMax: pointer(500.0)},
		{S: 1, Due: 1, Ended: 1, Backlog: 2, Tokens: 4},
		{S: 2, Due: 2, Ended: 2, Failed: 1, Backlog: 2, Tokens: 4, TTFTP50: pointer(500.0), TTFTMax: pointer(500.0)},
		{S: 3, Due: 1, Admitted: 1, Ended: 2, Failed: 2, Backlog: 1, Tokens: 2},
	}
	if diff := cmp.Diff(want, figuresOf(run).Series); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// A series stays small and loses nothing, however long the run.
func TestLongSeriesIsBounded(t *testing.T) {
	run := &record.Run{To: 30 * time.Hour, Drained: 30 * time.Hour}
	for i := range 3000 {
		at := time.Duration(i) * 36 * time.Second
		run.Records = append(run.Records, &record.Record{Index: i, Due: at, Sent: at, Admitted: record.Unset, End: at, Outcome: record.Failed})
	}
	series := figuresOf(run).Series
	due := 0
	for _, p := range series {
		due += p.Due
	}
	if len(series) > 1800 || due != 3000 {
		t.Errorf("%d points with %d requests, want at most 1800 with 3000", len(series), due)
	}
}

// The backlog is what was due less what ended, and the series holds every request.
func TestSeriesAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := &record.Run{To: 20 * time.Second}
		moment := rapid.Int64Range(0, 30e9)
		n := rapid.IntRange(0, 50).Draw(t, "requests")
		ended, tokens := 0, int64(0)
		for i := range n {
			r := &record.Record{Index: i, Due: time.Duration(rapid.Int64Range(0, 20e9).Draw(t, "due")), Sent: record.Unset, Admitted: record.Unset, End: record.Unset}
			if rapid.Bool().Draw(t, "ended") {
				at := r.Due + time.Duration(moment.Draw(t, "end"))
				r.End, r.Outcome = at, record.Completed
				r.Arrivals = []record.Arrival{{At: at, Tokens: int32(rapid.IntRange(1, 5).Draw(t, "tokens"))}}
				tokens += int64(r.Arrivals[0].Tokens)
				ended++
				run.Drained = max(run.Drained, at)
			}
			run.Records = append(run.Records, r)
		}
		dueSum, endedSum, tokenSum := 0, 0, int64(0)
		for _, p := range figuresOf(run).Series {
			dueSum += p.Due
			endedSum += p.Ended
			tokenSum += p.Tokens
			if p.Backlog != dueSum-endedSum {
				t.Fatalf("at %v the backlog is %d, with %d due and %d ended", p.S, p.Backlog, dueSum, endedSum)
			}
		}
		if dueSum != n || endedSum != ended || tokenSum != tokens {
			t.Fatalf("the series has %d due, %d ended, %d tokens; want %d, %d, %d", dueSum, endedSum, tokenSum, n, ended, tokens)
		}
	})
}

// Curves rise, agree with the percentiles, and end where the sample does.
func TestCurves(t *testing.T) {
	f := reporttest.Figures(reporttest.Run(aggregated, 10, 200*time.Second, 3))
	for name, curve := range f.Curves {
		for i := range curve[1:] {
			if curve[i+1].Quantile <= curve[i].Quantile || curve[i+1].Ms < curve[i].Ms {
				t.Fatalf("%s falls at point %d: %v, %v", name, i+1, curve[i], curve[i+1])
			}
		}
	}
	curve := f.Curves["ttft_ms"]
	if last := curve[len(curve)-1]; math.Abs(last.Quantile-(1-1/float64(f.Completed))) > 1e-9 || last.Ms != *f.TTFT.Max {
		t.Errorf("the curve ends at %v, of %d requests with a maximum of %v", last, f.Completed, *f.TTFT.Max)
	}
	for _, p := range curve {
		if math.Abs(p.Quantile-0.9) < 1e-12 && p.Ms != *f.TTFT.P90 {
			t.Errorf("the curve has %v at p90, the table %v", p.Ms, *f.TTFT.P90)
		}
	}
}

// The figures are those of the highest rate that passed, otherwise of the lowest.
func TestTheRunThatStands(t *testing.T) {
	var runs []report.Figures
	for _, rate := range []float64{8, 2, 16} {
		runs = append(runs, figuresOf(&record.Run{Offered: rate}))
	}
	for _, test := range []struct {
		most *float64
		want float64
	}{{pointer(8.0), 8}, {nil, 2}} {
		r := reporttest.New("")
		r.SetSearch(search.Result{MaxRate: test.most}, runs)
		if r.Rate != test.want {
			t.Errorf("the figures are of %v/s, want %v/s", r.Rate, test.want)
		}
		if got := []float64{r.Runs[0].Rate, r.Runs[1].Rate, r.Runs[2].Rate}; !cmp.Equal(got, []float64{2, 8, 16}) {
			t.Errorf("runs in the order %v", got)
		}
	}
}

// Of several runs at a rate, the last one with a verdict stands.
func TestRunsAtARate(t *testing.T) {
	run := func(requests int, verdict measure.Verdict, limit string) report.Figures {
		f := report.Figures{Rate: 8, Summary: measure.Summary{Requests: requests, Verdict: verdict}}
		f.Client.Bottleneck = limit
		return f
	}
	for _, test := range []struct {
		name string
		runs []report.Figures
		want int
	}{
		{"the last", []report.Figures{run(1, measure.Overloaded, ""), run(2, measure.Stable, "")}, 2},
		{"the client limited the last", []report.Figures{run(1, measure.Stable, ""), run(2, measure.Stable, ""), run(3, measure.None, "late")}, 2},
		{"the last was too short", []report.Figures{run(1, measure.Stable, ""), run(2, measure.None, "")}, 1},
		{"none has a verdict", []report.Figures{run(1, measure.None, "late"), run(2, measure.None, "late")}, 2},
	} {
		r := reporttest.New("")
		r.SetSearch(search.Result{MaxRate: pointer(8.0)}, append(test.runs, report.Figures{Rate: 16}))
		if at, ran := r.At(8); !ran || at.Requests != test.want || r.Requests != test.want {
			t.Errorf("%s: %d of %v, in the report %d, want %d", test.name, at.Requests, ran, r.Requests, test.want)
		}
		if _, ran := r.At(9); ran {
			t.Errorf("%s: nothing ran at 9/s", test.name)
		}
	}
}

// A step that could not be run is shown as such.
func TestAStepWithoutASummary(t *testing.T) {
	r := reporttest.New("")
	f := reporttest.Figures(reporttest.Run(aggregated, 5, 5*time.Second, 1))
	r.SetSearch(search.Result{Steps: []search.Step{{Rate: 5, Summary: &f.Summary}, {Rate: 7, Why: "it was not measured"}}}, []report.Figures{f})
	table := tableOf(t, r, 80)
	page := written(t, func(w io.Writer) error { return report.WriteHTML(w, r) })
	again, err := report.Read(strings.NewReader(written(t, r.WriteJSON)))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"table": table, "page": page, "table of what was read": tableOf(t, again, 80)} {
		if !strings.Contains(text, "it was not measured") || !strings.Contains(text, string(measure.None)) {
			t.Errorf("the %s does not say so:\n%s", name, text)
		}
	}
}

// TestShortWarmup: rates count what ends in the window, so that they are too low if the first
// answers take longer than the warm-up and the window is short.
func TestShortWarmup(t *testing.T) {
	ms := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		name    string
		window  float64 // seconds, after a warm-up of 3
		median  *float64
		verdict measure.Verdict
		warned  bool
	}{
		{"short answers", 30, ms(2900), measure.Stable, false},
		{"long answers", 30, ms(8000), measure.Stable, true},
		{"in a closed loop", 30, ms(8000), measure.None, true},
		{"a long window", 40, ms(8000), measure.Stable, false},
		{"too few for a median", 30, nil, measure.Stable, false},
		{"answers wait", 30, ms(8000), measure.Overloaded, false},
		{"answers wait a little", 30, ms(8000), measure.Backlogged, false},
	} {
		f := report.Figures{WindowS: c.window, WarmupS: 3}
		f.Summary = measure.Summary{Completed: 100, CompletedRPS: 2, Verdict: c.verdict, E2E: &measure.Distribution{P50: c.median, Max: ms(9100)}}
		r := reporttest.New("")
		r.SetRun(f)
		var want []string
		if c.warned {
			want = []string{"half of the answers took longer than the warm-up (8000 ms and 3000 ms): completed requests/s, goodput and output tokens/s are too low, since few answers end at the beginning of the window; pass --warmup 10s"}
		}
		if diff := cmp.Diff(want, r.Warnings); diff != "" {
			t.Errorf("%s: want -, got +\n%s", c.name, diff)
		}
	}
}

func TestWarnings(t *testing.T) {
	run := reporttest.Run(aggregated, 5, 5*time.Second, 1)
	run.Client.Bottleneck = "its two cores were busy"
	run.Records[len(run.Records)-1].Outcome = record.Unsent
	run.Records[len(run.Records)-2].Outcome, run.Records[len(run.Records)-3].Outcome = record.Cancelled, record.Cancelled
	r := reporttest.New("")
	r.SetRun(reporttest.Figures(run))
	r.SetRun(reporttest.Figures(run))
	want := []string{
		"these figures are not the server's, and there is no verdict: the client was the bottleneck: its two cores were busy",
		"1 request was due but never sent; the latencies leave them out",
		"2 requests still ran when the drain timeout ended: percentiles near the top are lower bounds",
	}
	if diff := cmp.Diff(want, r.Warnings); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
	r = reporttest.New("")
	r.Interrupted = true
	r.SetRun(reporttest.Figures(run))
	if got := r.Warnings[2]; got != "2 requests still ran when the run was interrupted: percentiles near the top are lower bounds" {
		t.Errorf("of a run that was interrupted: %s", got)
	}

	// A search gives each warning once, with its rates.
	r = reporttest.New("")
	other := reporttest.Figures(reporttest.Run(aggregated, 7, 5*time.Second, 1))
	busy := other
	busy.Rate, busy.Client.Bottleneck = 9, "all of its cores were busy"
	r.SetSearch(search.Result{}, []report.Figures{busy, other, reporttest.Figures(run)})
	want = []string{
		"there is no verdict on the server at 5, 9 requests/s: the client was the bottleneck",
		"at 5/s: 1 request was due but never sent; the latencies leave them out",
		"at 5/s: 2 requests still ran when the drain timeout ended: percentiles near the top are lower bounds",
	}
	if diff := cmp.Diff(want, r.Warnings); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}
