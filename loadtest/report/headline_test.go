package report_test

import (
	"fmt"
	"html"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// step is a step of a search.
func step(rate float64, change func(*search.Step)) search.Step {
	s := search.Step{Rate: rate, Passed: true, Summary: &measure.Summary{Requests: 500, Completed: 500, Verdict: measure.Stable, SLO: "ttft:p99<500ms"}}
	if change != nil {
		change(&s)
	}
	return s
}

func missed(s *search.Step) {
	s.Passed, s.Why = false, "ttft:p99<500ms: measured 800 ms"
	s.Summary.Objectives = []measure.Objective{{Term: "ttft:p99<500ms", Measured: pointer(800.0)}}
}

func broke(s *search.Step) {
	s.Passed, s.Why, s.Summary.Verdict = false, "OVERLOADED: 9% were not served", measure.Overloaded
}

func behind(s *search.Step) {
	s.Passed, s.Why, s.Summary.Verdict = false, "BACKLOGGED: the backlog grew", measure.Backlogged
}

func noSLO(change func(*search.Step)) func(*search.Step) {
	return func(s *search.Step) {
		s.Summary.SLO = ""
		if change != nil {
			change(s)
		}
	}
}

func late(s *search.Step) { s.Passed, s.Unknown, s.Client = false, true, "it was late" }

func busy(s *search.Step) { late(s); s.Client = record.MachineBusy + ": they used 99%" }

func short(s *search.Step) { s.Passed, s.Unknown, s.Why = false, true, "too short" }

func cut(s *search.Step) {
	s.Passed, s.Unknown, s.Interrupted, s.Why = false, true, true, "interrupted after 12 s"
}

func TestHeadlineOfASearch(t *testing.T) {
	for _, c := range []struct {
		want  string
		steps []search.Step
		queue float64 // the queue's share of the tail
	}{
		{"Holds 35/s within its SLO; breaks at 60/s; the tail is the prefill queue (81% of TTFT p99 at 60/s).", []search.Step{step(20, nil), step(35, nil), step(60, broke)}, .81},
		{"Holds 35/s within its SLO; misses the SLO at 45/s; breaks at 60/s; the largest part of the tail is the prefill queue (40% of TTFT p99 at 45/s).", []search.Step{step(35, nil), step(45, missed), step(60, broke)}, .4},
		{"Holds 35/s within its SLO, the highest rate tried.", []search.Step{step(20, nil), step(35, nil)}, 0},
		{"Holds 20/s within its SLO; misses the SLO at 35/s.", []search.Step{step(20, nil), step(35, missed)}, 0},
		{"Holds 20/s within its SLO; does not hold 35/s.", []search.Step{step(20, nil), step(35, behind)}, 0},
		{"Holds 20/s; does not hold 35/s; breaks at 60/s.", []search.Step{step(20, noSLO(nil)), step(35, noSLO(behind)), step(60, noSLO(broke))}, 0},
		{"Holds at least 20/s within its SLO; 35/s is undecided: the client was the bottleneck.", []search.Step{step(20, nil), step(35, late)}, 0},
		{"Holds at least 20/s within its SLO; 35/s is undecided; breaks at 60/s.", []search.Step{step(20, nil), step(35, short), step(60, broke)}, 0},
		{"Holds 35/s within its SLO; breaks at 60/s.", []search.Step{step(20, short), step(35, nil), step(60, broke)}, 0},
		{"Misses its SLO at every rate tried, from 20/s on; breaks at 60/s.", []search.Step{step(20, missed), step(60, broke)}, 0},
		{"Holds none of the rates tried, from 20/s on; breaks at 20/s.", []search.Step{step(20, broke), step(60, broke)}, 0},
		{"20 and 60/s are undecided: the client was the bottleneck.", []search.Step{step(20, late), step(60, late)}, 0},
		{"Interrupted: holds at least 20/s within its SLO; 35/s is undecided: it was not measured to its end.", []search.Step{step(20, nil), step(35, cut)}, 0},
		{"Interrupted: 20/s is undecided: it was not measured to its end.", []search.Step{step(20, cut)}, 0},
		{"Misses its SLO at 40/s; 2 and 10/s are undecided: this machine was busy with other processes.", []search.Step{step(2, busy), step(10, busy), step(40, missed)}, 0},
		{"Misses its SLO at 40/s; 2, 5 and 10/s are undecided.", []search.Step{step(2, busy), step(5, short), step(10, late), step(40, missed)}, 0},
		{"Holds at least 2/s within its SLO; 3/s is undecided; breaks at 4/s; not conclusive, because 6 and 9/s passed although 4 and 5/s did not.",
			[]search.Step{step(2, nil), step(3, short), step(4, broke), step(5, broke), step(6, nil), step(7, short), step(9, nil)}, 0},
		{"Does not hold 4/s; breaks at 4/s; not conclusive, because 6/s passed although 4/s did not.", []search.Step{step(4, broke), step(6, nil), step(8, broke)}, 0},
		{"Misses its SLO at 4/s; not conclusive, because 6/s passed although 4/s did not.", []search.Step{step(4, missed), step(6, nil)}, 0},
		{"Does not hold 40/s; 2/s is undecided; breaks at 40/s.", []search.Step{step(2, short), step(40, broke)}, 0},
	} {
		var runs []report.Figures
		failed, searching := false, search.Result{Steps: c.steps}
		for i, s := range c.steps {
			f := report.Figures{Rate: s.Rate, Summary: *s.Summary}
			if c.queue > 0 {
				f.Tail = &tail.Explanation{Breakdowns: []tail.Breakdown{{Latency: measure.TTFT, Percentile: "p99", Milliseconds: 800, Stages: map[tail.Stage]float64{tail.Queue: 800 * c.queue, tail.Prefill: 100}}}}
			}
			runs = append(runs, f)
			failed = failed || !s.Passed && !s.Unknown
			switch {
			case s.Passed && failed:
				searching.PassedAbove = append(searching.PassedAbove, s.Rate)
			case s.Passed:
				searching.MaxRate = &c.steps[i].Rate
			}
			if s.Summary.Verdict == measure.Overloaded && searching.Breaking == nil {
				searching.Breaking = &c.steps[i].Rate
			}
		}
		r := reporttest.New("")
		r.Interrupted = c.steps[len(c.steps)-1].Interrupted
		r.SetSearch(searching, runs)
		if got := r.Headline(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

func TestHeadlineOfOneRun(t *testing.T) {
	const ms = 1.0
	met, over, few := measure.Objective{Term: "ttft:p99<500ms", Met: true, Measured: pointer(300 * ms)}, measure.Objective{Term: "ttft:p99<500ms", Measured: pointer(800 * ms)}, measure.Objective{Term: "ttft:p99<500ms", Why: "78 are too few for it"}
	ofChat := measure.Objective{Term: "ttft:p99<500ms", Class: "chat", Why: "9 were cut off too early to tell"}
	for _, c := range []struct {
		want    string
		figures report.Figures
	}{
		{"Holds 20/s within its SLO.", figuresWith(20, 0, measure.Stable, met)},
		{"Keeps up with 20/s; misses ttft:p99<500ms.", figuresWith(20, 0, measure.Stable, met, over)},
		{"Keeps up with 20/s; ttft:p99<500ms: undecided: 78 are too few for it.", figuresWith(20, 0, measure.Stable, met, few)},
		{"Keeps up with 20/s; ttft:p99<500ms for chat: undecided: 9 were cut off too early to tell.", figuresWith(20, 0, measure.Stable, ofChat)},
		{"Keeps up with 20/s.", figuresWith(20, 0, measure.Stable)},
		{"Holds 32/s on average within its SLO.", surging(figuresWith(20, 0, measure.Stable, met))},
		{"Falls behind at 20/s.", figuresWith(20, 0, measure.Backlogged)},
		{"Is overloaded at 20/s; misses ttft:p99<500ms.", figuresWith(20, 0, measure.Overloaded, over)},
		{"There is no verdict at 20/s.", figuresWith(20, 0, measure.None)},
		{"Completes 7.50/s with 8 at a time; meets its SLO.", figuresWith(0, 8, measure.None, met)},
	} {
		r := reporttest.New("")
		r.SetRun(c.figures)
		if got := r.Headline(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// Objectives are shown also where only classes have them.
func TestSLOsOfClasses(t *testing.T) {
	run := reporttest.Run(disaggregated, 2, 300*time.Second, 1)
	for _, r := range run.Records {
		r.Class = "chat"
	}
	summary := measure.Summarize(run, measure.Options{ClassSLO: map[string]measure.SLO{"chat": reporttest.SLO}})
	r := reporttest.New("")
	r.SetRun(report.NewFigures(run, summary, nil))
	if !r.HasSLO() || !strings.HasSuffix(strings.Split(r.Headline(), ";")[0], " within its SLO.") {
		t.Errorf("%q", r.Headline())
	}
	for form, text := range map[string]string{"table": tableOf(t, r, 100), "page": html.UnescapeString(tags.ReplaceAllString(pageOf(t, r), " "))} {
		for _, want := range []string{"for the SLOs of classes: met by", "ttft:p99<500ms for chat: "} {
			if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
				t.Errorf("the %s lacks %q:\n%s", form, want, text)
			}
		}
	}
}

// refusedFor makes a run of 5 requests a second on a busy machine, all refused, with these
// reasons in turn.
func refusedFor(reasons ...string) *record.Run {
	run := reporttest.Run(aggregated, 5, 20*time.Second, 1)
	run.Client.Bottleneck = record.MachineBusy + ": they used 99%"
	counted := 0
	for _, r := range run.Records {
		if r.Outcome, r.Code, r.Error, r.Arrivals = record.Rejected, "RESOURCE_EXHAUSTED", "not now", nil; r.Due >= run.From {
			r.Reason = reasons[counted%len(reasons)]
			counted++
		}
	}
	run.Records = run.Records[:len(run.Records)-counted%len(reasons)]
	return run
}

// Refusals for the tenant's limit are said to be that, whoever else was busy meanwhile. The
// reason tells, whatever the message.
func TestHeadlineOfATenantAtItsLimit(t *testing.T) {
	const want = "At 5/s the router refused %s of the requests because their tenant had as many as it may: raise its --router-tenant-max-requests."
	const full, limit, overHTTP = "QUEUE_FULL", "TENANT_LIMIT", "tenant_limit"
	for _, c := range []struct {
		name    string
		reasons []string
		want    string
	}{
		{"all of them", []string{limit}, fmt.Sprintf(want, "100%")},
		{"all of them, over HTTP", []string{overHTTP}, fmt.Sprintf(want, "100%")},
		{"most of them", []string{limit, limit, limit, full}, fmt.Sprintf(want, "75%")},
		{"few of them", []string{full, full, full, limit}, "At 5/s there is no verdict on the server: this machine was busy with other processes."},
		{"no reason", []string{""}, "At 5/s there is no verdict on the server: this machine was busy with other processes."},
	} {
		r := reporttest.New("")
		r.SetRun(reporttest.Figures(refusedFor(c.reasons...)))
		if got := r.Headline(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		table, page := tableOf(t, r, 80), pageOf(t, r)
		if strings.Contains(table, "tokens/s") || strings.Contains(page, "<dt>tokens</dt>") {
			t.Errorf("%s: it has tokens of no request:\n%s", c.name, table)
		}
		busy := strings.Contains(c.want, record.MachineBusy)
		if strings.Contains(table, record.MachineBusy) != busy || strings.Contains(page, record.MachineBusy+":") != busy || (r.Verdict == measure.None) != busy {
			t.Errorf("%s: want one cause:\n%s", c.name, table)
		}
	}
}

// A report from before the figure was kept can be read.
func TestReadWithoutTenantLimited(t *testing.T) {
	r := reporttest.New("")
	r.SetRun(reporttest.Figures(refusedFor("TENANT_LIMIT")))
	text := written(t, r.WriteJSON)
	for _, c := range []struct {
		text string
		want int
	}{
		{text, r.Rejected},
		{regexp.MustCompile(`\s*"tenant_limited": \d+,`).ReplaceAllString(text, ""), 0},
	} {
		if got, err := report.Read(strings.NewReader(c.text)); err != nil || got.TenantLimited != c.want {
			t.Errorf("%v; read %+v, want %d refused for the limit", err, got, c.want)
		}
	}
}

// longAnswers makes a run whose answers all end after its window.
func longAnswers(concurrency int) *record.Run {
	run := reporttest.Run(reporttest.Server{PrefillPerS: 100, TPOT: 20 * time.Second, Disaggregated: true, QueueLimit: 1000}, 5, time.Second, 1)
	run.Concurrency = concurrency
	return run
}

// A window that is shorter than each answer says nothing of the rate of completions: it
// is not 0.
func TestNoAnswerEndedWithinTheWindow(t *testing.T) {
	for concurrency, begins := range map[int]string{2: "With 2 at a time", 0: "At 5/s"} {
		run := longAnswers(concurrency)
		figures := reporttest.Figures(run)
		text := fmt.Sprintf("no answer ended within the window: answers took up to %.0f s, so make it at least ", *figures.E2E.Max/1000)
		single, sweep := reporttest.New(""), reporttest.New("")
		single.SetRun(figures)
		sweep.SetSearch(search.Result{Steps: []search.Step{{Rate: 5, Summary: &figures.Summary, Unknown: true}}}, []report.Figures{figures})
		if got := single.Headline(); !strings.HasPrefix(got, begins+" "+text) {
			t.Errorf("%q, want %q", got, begins+" "+text)
		}
		for name, r := range map[string]*report.Report{"one run": single, "a sweep": sweep} {
			table := strings.Join(strings.Fields(tableOf(t, r, 100)), " ")
			page := html.UnescapeString(tags.ReplaceAllString(pageOf(t, r), " "))
			for form, got := range map[string]string{"table": table, "page": page} {
				if !strings.Contains(got, text) {
					t.Errorf("the %s of %s does not say: %s\n%s", form, name, text, got)
				}
				if m := regexp.MustCompile(`(?i)(completed|completes|goodput) 0|\b0/s completed`).FindString(got); m != "" {
					t.Errorf("the %s of %s says %q", form, name, m)
				}
			}
		}
		if !regexp.MustCompile(`(?m)^5 +n/a `).MatchString(tableOf(t, sweep, 100)) {
			t.Errorf("the rate has a rate of completions:\n%s", tableOf(t, sweep, 100))
		}
	}
}

// The host of a simulation says nothing of the simulated cluster, whose ids are short
// enough to be shown whole.
func TestSimulatedRun(t *testing.T) {
	run := reporttest.Run(aggregated, 5, 20*time.Second, 1)
	for i, r := range run.Records {
		r.ID = fmt.Sprintf("request-%d", 1234+i)
	}
	r := reporttest.New("")
	r.SetRun(reporttest.Figures(run))
	r.Simulation = &report.Simulation{Workers: 3}
	page, table := pageOf(t, r), tableOf(t, r, 80)
	if strings.Contains(page, "<dt>machine</dt>") || !strings.Contains(page, "<dt>cluster</dt><dd>3 workers, simulated</dd>") {
		t.Error("the page names the machine instead of the cluster")
	}
	for _, w := range r.Tail.Slowest[:3] {
		if !strings.Contains(table, fmt.Sprintf("#%d %s ", w.Index, w.ID)) {
			t.Errorf("no whole id %s in\n%s", w.ID, table)
		}
	}
	if strings.Contains(table, "…") {
		t.Errorf("it explains ids that are whole:\n%s", table)
	}
}

func figuresWith(rate float64, concurrency int, verdict measure.Verdict, objectives ...measure.Objective) report.Figures {
	f := report.Figures{Rate: rate, Concurrency: concurrency, Summary: measure.Summary{Requests: 100, Completed: 100, CompletedRPS: 7.5, OfferedRPS: rate, Verdict: verdict, Objectives: objectives}}
	if len(objectives) > 0 {
		f.SLO = "ttft:p99<500ms"
	}
	return f
}

// surging has figures of a rate that rose for a while.
func surging(f report.Figures) report.Figures {
	f.WindowS, f.OfferedRPS = 100, 1.6*f.Rate
	return f
}

// A verdict is explained by its own name.
func TestPageExplainsItsVerdict(t *testing.T) {
	for _, verdict := range []measure.Verdict{measure.Stable, measure.Overloaded, measure.Backlogged} {
		r := reporttest.Single("", aggregated, 5, 20*time.Second)
		r.Verdict = verdict
		means := regexp.MustCompile(`<p class="quiet">(\w+) is about the backlog`).FindStringSubmatch(pageOf(t, r))
		if len(means) != 2 || means[1] != string(verdict) {
			t.Errorf("%s is explained by %q", verdict, means)
		}
	}
}

// The rate of what ended within the window is not that of its completed requests.
func TestRatesSayWhatTheyCount(t *testing.T) {
	for completed, want := range map[int]string{
		128: "ended within the window: 4.27/s; output tokens: 559/s; tokens of prompts whose answer began: 900/s a completed",
		479: "900/s. The 479 completed requests were due within the window, but many ended later a completed",
		60:  "The 60 completed requests were due within the window, and earlier ones ended in it too a completed",
	} {
		f := figuresWith(19, 0, measure.Overloaded)
		f.WindowS, f.Completed, f.CompletedRPS, f.OutputTokensPerS, f.PromptTokensPerS = 30, completed, 4.27, 559, 900
		r := reporttest.New("")
		r.SetRun(f)
		if table := strings.Join(strings.Fields(tableOf(t, r, 100)), " "); !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
}

var tags = regexp.MustCompile(`(?s)<script.*?</script>|<style.*?</style>|<[^>]*>`)

// The headline is first in the page and in the table. Each says once what limited the
// client.
func TestEachThingIsSaidOnce(t *testing.T) {
	const why = "requests went out late, while others had its cores"
	single := func() *report.Report {
		run := reporttest.Run(aggregated, 5, 20*time.Second, 1)
		run.Client.Bottleneck = why
		r := reporttest.New("")
		r.SetRun(reporttest.Figures(run))
		return r
	}
	sweep := reporttest.Sweep("", disaggregated, rates, 20*time.Second)
	limit(sweep, 0, why)
	sweep.Search.Limited = "the client was the bottleneck at 2/s: " + why
	for name, r := range map[string]*report.Report{"one run": single(), "a sweep": sweep} {
		page := html.UnescapeString(tags.ReplaceAllString(pageOf(t, r), " "))
		table := strings.Join(strings.Fields(written(t, func(w io.Writer) error { return r.WriteTable(w, 100) })), " ")
		for form, text := range map[string]string{"page": page, "table": table} {
			if n := strings.Count(text, why); n != 1 {
				t.Errorf("the %s of %s says %d times what limited the client", form, name, n)
			}
			if n := strings.Count(text, r.Headline()); n != 1 {
				t.Errorf("the %s of %s has its headline %d times", form, name, n)
			}
			for _, warning := range r.Warnings {
				if n := strings.Count(text, warning); n != 1 {
					t.Errorf("the %s of %s has %d times: %s", form, name, n, warning)
				}
			}
		}
		if !strings.HasPrefix(table, r.Headline()) {
			t.Errorf("the table of %s begins %.80q", name, table)
		}
	}
}

// Each tile names its rate. A percentile of too few samples has no tile.
func TestTilesSayTheirRate(t *testing.T) {
	r := reporttest.Sweep("", disaggregated, rates, 20*time.Second)
	page := pageOf(t, r)
	tiles := regexp.MustCompile(`<div class="tile"><b>[^<]*</b><span>([^<]*)</span>`).FindAllStringSubmatch(page, -1)
	if len(tiles) != 6 {
		t.Fatalf("%d tiles", len(tiles))
	}
	for _, tile := range tiles[1:] {
		if !strings.Contains(tile[1], "at 2/s") {
			t.Errorf("a tile says %q", tile[1])
		}
	}
}

// Headline, table, tiles and figures say the same of a sweep that contradicts itself.
func TestASweepThatContradictsItself(t *testing.T) {
	sweep := reporttest.Sweep("", disaggregated, rates[:3], 20*time.Second)
	s := search.NewSweep(rates[:3])
	for i, step := range sweep.Search.Steps {
		step.Summary.Verdict, step.Summary.Objectives = measure.Stable, nil
		if i == 1 {
			step.Summary.Verdict = measure.Backlogged
		}
		s.Done(step)
	}
	r := reporttest.New("")
	r.SetSearch(s.Result(), sweep.Runs)
	const says = "not conclusive, because 12/s passed although 6/s did not"
	page, table := html.UnescapeString(tags.ReplaceAllString(pageOf(t, r), " ")), strings.Join(strings.Fields(tableOf(t, r, 100)), " ")
	if !strings.HasPrefix(r.Headline(), "Holds 2/s within its SLO; breaks at 6/s; "+says) || r.Rate != 2 {
		t.Errorf("%s The figures are of %v/s", r.Headline(), r.Rate)
	}
	for _, want := range []string{says, "highest rate that passed below all that did not: 2/s, in the bracket 2 to 6/s", "STABLE doubtful"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	for _, want := range []string{says, "2/s highest rate that passed below all that did not", "passed, although a lower rate did not"} {
		if !strings.Contains(strings.Join(strings.Fields(page), " "), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// A rate that kept up but missed its SLO is not shown as a success, and its tiles stand for
// it rather than for a lower rate that nothing is known of.
func TestAMissedSLOIsNoSuccess(t *testing.T) {
	r := reporttest.Sweep("", disaggregated, rates[:2], 20*time.Second)
	result, runs := *r.Search, r.Runs
	busy(&result.Steps[0])
	missed(&result.Steps[1])
	runs[1].Summary = *result.Steps[1].Summary
	result.MaxRate, result.Breaking, result.Knee = nil, nil, nil
	r.SetSearch(result, runs)
	page, table := pageOf(t, r), tableOf(t, r, 80)
	if r.Rate != rates[1] || !strings.Contains(page, `"text verdict MISSED">STABLE, SLO missed<`) || !strings.Contains(page, `<span class="verdict MISSED">STABLE, SLO missed<`) {
		t.Errorf("the tiles are those of %v/s, and the page does not say that it missed its SLO", r.Rate)
	}
	if !regexp.MustCompile(`(?m)^6 .* STABLE, SLO missed$`).MatchString(table) {
		t.Errorf("no missed SLO in\n%s", table)
	}
	busy(&result.Steps[1])
	r.SetSearch(result, runs)
	if !strings.Contains(pageOf(t, r), "/s (undecided)</span>") {
		t.Error("the tiles do not say that their rate is undecided")
	}
}

// An interrupted sweep shows what it measured. With a single rate, nothing is plotted
// over rates.
func TestPageOfAnInterruptedSweep(t *testing.T) {
	for whole, charts := range map[int]bool{0: false, 2: true} {
		page := pageOf(t, interruptedSweep(whole))
		if got := strings.Contains(page, `data-chart="throughput"`); got != charts {
			t.Errorf("after %d whole rates plots over rates: %t", whole, got)
		}
		for _, want := range []string{"Interrupted: ", "was not measured to its end", "interrupted after 12 s", "Latencies at 2/s"} {
			if !strings.Contains(page, want) && (whole == 0 || want != "Latencies at 2/s") {
				t.Errorf("after %d whole rates the page lacks %q", whole, want)
			}
		}
	}
}
