package report_test

import (
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

func tableOf(t *testing.T, r *report.Report, width int) string {
	t.Helper()
	return written(t, func(w io.Writer) error { return r.WriteTable(w, width) })
}

// No line is wider than requested, whatever the figures.
func TestTableFits(t *testing.T) {
	slow := reporttest.Server{PrefillPerS: 0.5, TPOT: 4 * time.Second, Disaggregated: true, QueueLimit: 1000}
	for name, r := range map[string]*report.Report{
		"sweep":  reporttest.Sweep("a sweep", disaggregated, rates, 40*time.Second),
		"single": reporttest.Single("one run", aggregated, 10, 20*time.Second),
		"slow":   reporttest.Single("minutes of latency", slow, 3, 600*time.Second),
	} {
		for given, want := range map[int]int{0: 80, 80: 80, 90: 90, 300: 100} {
			for line := range strings.Lines(tableOf(t, r, given)) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > want {
					t.Errorf("%s for %d columns: %d in %q", name, given, n, line)
				}
			}
		}
	}
}

func TestTableSays(t *testing.T) {
	r := reporttest.Sweep("a sweep", disaggregated, rates, 40*time.Second)
	r.TTFT = &measure.Distribution{
		Count: 500, P50: pointer(40.0), P90: pointer(99.94), P95: pointer(250.0), P99: pointer(812.4), Max: pointer(12345.0),
		CI: map[string][2]float64{"p50": {38, 41.26}, "p99": {640, 15000}}, Needs: map[string]int64{"p90": 800, "p999": 3688},
	}
	r.Objectives = append(r.Objectives,
		measure.Objective{Term: "e2e:p99<1s", Missed: true, Why: "it falls on the 9 that were not served"},
		measure.Objective{Term: "itl:p99<1s", Why: "no request has this figure"})
	r.Search.Steps[1].Unknown, r.Search.Steps[1].Passed, r.Search.Steps[1].Why = true, false, "NONE: too short"
	r.Search.Limited = "at least 14/s; there is no verdict at 20/s: NONE: too short"
	r.TTFTSent = &measure.Distribution{Count: 500, P50: pointer(40.0), P99: pointer(300.0)}
	r.Tail = &tail.Explanation{
		Joined: 499, Completed: 500, OtherShareMean: 0.004, OtherShareP50: 0.003, OtherShareP99: 0.02,
		Breakdowns: []tail.Breakdown{{Latency: measure.TTFT, Percentile: "p99", Text: "p99 TTFT 812 ms = queue 520 + reserve 60 + prefill 220 + other 12"}},
		Amdahl: []tail.WhatIf{
			{Latency: measure.TTFT, Percentile: "p99", Stage: tail.Queue, Speedup: 2, NowMs: 812, ThenMs: 560},
			{Latency: measure.TTFT, Percentile: "p99", Stage: tail.Queue, Speedup: 0, NowMs: 812, ThenMs: 310},
		},
		Slowest: []tail.Waterfall{{Index: 7, ID: "abc\x1b[31m", By: measure.TTFT, TTFTMs: 500, E2EMs: 1000, Spans: []tail.Span{
			{Stage: tail.Queue, FromMs: 0, ToMs: 500}, {Stage: tail.Decode, FromMs: 500, ToMs: 1000},
		}}},
	}
	got := tableOf(t, r, 80)
	for _, want := range []string{
		`(?m)^26 .* OVERLOADED breaks$`,
		`(?m)^6 .* STABLE +knee$`,
		`(?m)^breaking point, the lowest rate that was not stable: 26/s$`,
		`(?m)^TTFT +40 +99\.9 +250 +812 +n/a +12345$`,
		`(?m)^ +38-41\.3 +~ +640-15000$`,
		`(?m)^~: no interval, because neighbouring requests are alike`,
		`(?m)^n/a: too few samples; it takes 6 for p50, 36 for p90, 72 for p95, 368 for p99,\s+3688\s+for\s+p99\.9\.$`,
		`Counted from the send, as other\s+tools do, TTFT's p99 would read 300 ms instead of 812 ms: that leaves out 512\s+ms of waiting before the send\.`,
		`(?m)^  p99 TTFT 812 ms = queue 520 \+ reserve 60 \+ prefill 220 \+ other 12$`,
		`Time outside all stages: 0\.4% of E2E on average, 0\.3% in the\s+median\s+request,\s+2%\s+in\s+the\s+one\s+at\s+p99\.`,
		`(?m)^  queue +560 +310$`,
		`(?m)^#7 abc\?\[31m +500 +1000 Q{22}d{22}$`,
		`(?m)^goodput [0-9.]+ requests/s for ttft:p99<500ms,tpot:p99<30ms: met by`,
		`(?m)^verdict STABLE, SLO missed: `,
		`(?m)^  e2e:p99<1s: NOT met: it falls on the 9 that were not served$`,
		`(?m)^  itl:p99<1s: undecided: no request has this figure$`,
		`(?m)^6/s is undecided: NONE: too short$`,
		`t tokenize, R retried, Q queue`,
	} {
		if !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.ContainsRune(got, '\x1b') {
		t.Error("a server's text can steer the terminal")
	}
}

// Of a run without requests there is no table of latencies.
func TestTableOfNoRequests(t *testing.T) {
	r := reporttest.New("")
	r.SetRun(figuresOf(&record.Run{Interrupted: true}))
	if table := tableOf(t, r, 80); strings.Contains(table, "milliseconds") || strings.Contains(table, "\n\n\n") {
		t.Errorf("%s", table)
	}
}

// Gaps between tokens and between messages share a row if they are equal. If not, the
// zeros between tokens of one message are explained.
func TestTableOfSeveralTokensInAMessage(t *testing.T) {
	r := reporttest.Single("", aggregated, 5, 5*time.Second)
	for _, test := range []struct {
		tokens, messages int64
		median           float64
		has, lacks       string
	}{
		{100, 100, 0.4, "\nITL  ", "message"},
		{100, 100, 0.001, "ITL's median is about 0 because most tokens arrived together", "message"},
		{400, 100, 0, "ITL, token is 0 between tokens that came in one message, here 75% of the gaps.", "\nITL  "},
	} {
		r.ITL, r.ITLMessage = &measure.Distribution{Count: test.tokens, P50: &test.median}, &measure.Distribution{Count: test.messages}
		table, page := tableOf(t, r, 100), pageOf(t, r)
		if !strings.Contains(table, test.has) || strings.Contains(table, test.lacks) {
			t.Errorf("%d tokens in %d messages: want %q, not %q, in\n%s", test.tokens, test.messages, test.has, test.lacks, table)
		}
		if strings.Contains(page, "between tokens that came in one message") != (test.tokens > test.messages) {
			t.Errorf("%d tokens in %d messages: the page does not say the same", test.tokens, test.messages)
		}
	}
}

func TestDefinitionsFit(t *testing.T) {
	text := written(t, func(w io.Writer) error { return report.WriteDefinitions(w, 80) })
	for _, d := range measure.Definitions() {
		if !strings.Contains(text, d.Name+"\n") {
			t.Errorf("%s is not defined", d.Name)
		}
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(line) > 81 {
			t.Errorf("too wide: %s", line)
		}
	}
}

// Without scripts the page still has every table. It fetches nothing.
func TestPageWithoutScripts(t *testing.T) {
	r := reporttest.Sweep("a sweep", disaggregated, []float64{8, 26}, 60*time.Second)
	page := written(t, func(w io.Writer) error { return report.WriteHTML(w, r) })
	for _, want := range []string{
		"<noscript>", "tandem bench serve --addr 127.0.0.1:9000 --slo &#39;ttft:p99&lt;500ms,tpot:p99&lt;30ms&#39; --sweep 2,4,8",
		"breaking point", "highest that passed", r.Host.OS, "What the words mean", r.Tail.Breakdowns[0].Text,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	if m := regexp.MustCompile(`(src|href|url|@import)\s*[=(]\s*["']?(https?:)?//`).FindString(page); m != "" {
		t.Errorf("the page fetches %s", m)
	}
	if strings.Count(page, "<script") != 2 {
		t.Errorf("the page has %d scripts, want its data and its own", strings.Count(page, "<script"))
	}
}

func TestHostileTextsStayText(t *testing.T) {
	page := written(t, func(w io.Writer) error {
		return report.WriteHTML(w, hostile(`</script><script>alert(1)</script><img src=x>`))
	})
	if strings.Contains(page, "<script>alert") || strings.Contains(page, "<img") {
		t.Error("a server's text became part of the page")
	}
}

// Searches are compared at the highest rate that all of them passed.
func TestComparisonAtOneRate(t *testing.T) {
	sweep := func(passed map[float64]bool, rates ...float64) *report.Report {
		r := reporttest.New("")
		var result search.Result
		var runs []report.Figures
		for _, rate := range rates {
			f := reporttest.Figures(reporttest.Run(aggregated, rate, 5*time.Second, 1))
			result.Steps = append(result.Steps, search.Step{Rate: rate, Summary: &f.Summary, Passed: passed[rate]})
			runs = append(runs, f)
		}
		r.SetSearch(result, runs)
		return r
	}
	a := sweep(map[float64]bool{2: true, 4: true, 6: true}, 2, 4, 6)
	for _, test := range []struct {
		b    *report.Report
		want string
	}{
		{sweep(map[float64]bool{2: true, 4: true}, 2, 4, 6), "Percentiles, at 4/s"},
		{sweep(nil, 4, 6), "Percentiles, at 4/s"},
		{sweep(map[float64]bool{3: true}, 3, 6), "Percentiles, at 6/s"},
		{sweep(map[float64]bool{3: true}, 3), "Percentiles, each at its own rate"},
		{reporttest.Single("", aggregated, 5, 5*time.Second), "Percentiles, each at its own rate"},
	} {
		named := []report.Named{{Name: "a", Report: a}, {Name: "b", Report: test.b}}
		page := written(t, func(w io.Writer) error { return report.WriteComparisonHTML(w, "t", named) })
		if !strings.Contains(page, test.want) {
			t.Errorf("no %q; it has %q", test.want, regexp.MustCompile(`Percentiles, [^<]*`).FindString(page))
		}
	}
	if a.Rate != 2 {
		t.Errorf("the report's own figures changed to those at %v/s", a.Rate)
	}
}

// A comparison has no headings of empty sections.
func TestComparisonOfSingleRuns(t *testing.T) {
	a, b := reporttest.Single("", aggregated, 5, 5*time.Second), reporttest.Single("", disaggregated, 5, 5*time.Second)
	named := []report.Named{{Name: "a", Report: a}, {Name: "b", Report: b}}
	page := func() string {
		return written(t, func(w io.Writer) error { return report.WriteComparisonHTML(w, "t", named) })
	}
	if got := page(); strings.Contains(got, "Latency against rate") || !strings.Contains(got, "Where the time went") {
		t.Error("want the time's whereabouts and no rates")
	}
	a.Tail, b.Tail = nil, nil
	if strings.Contains(page(), "Where the time went") {
		t.Error("where the time went is not known")
	}
}

func TestComparisonNeedsNames(t *testing.T) {
	r := reporttest.Single("", aggregated, 5, 5*time.Second)
	for name, named := range map[string][]report.Named{
		"one":     {{Name: "a", Report: r}},
		"unnamed": {{Name: "a", Report: r}, {Report: r}},
		"twice":   {{Name: "a", Report: r}, {Name: "a", Report: r}},
	} {
		if err := report.WriteComparisonHTML(io.Discard, "t", named); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
