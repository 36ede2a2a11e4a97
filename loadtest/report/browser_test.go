package report_test

import (
	"context"
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
)

// browser finds a browser, or the one that TANDEM_BROWSER names. Without one the test
// skips, or fails if TANDEM_BROWSER is "required". If it is "off" the test skips anyway.
func browser(t *testing.T) string {
	wanted := os.Getenv("TANDEM_BROWSER")
	if wanted == "off" {
		t.Skip("TANDEM_BROWSER is off")
	}
	if wanted != "" && wanted != "required" {
		path, err := exec.LookPath(wanted)
		if err != nil {
			t.Fatalf("TANDEM_BROWSER: %v", err)
		}
		return path
	}
	names := []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "headless_shell"}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if wanted != "" {
		t.Fatalf("no browser is there: looked for %s", strings.Join(names, ", "))
	}
	t.Skipf("no browser is there to open the page: looked for %s; set TANDEM_BROWSER to one of Chromium's kind", strings.Join(names, ", "))
	return ""
}

// opened returns the page's DOM after its scripts ran, and what they wrote to the
// console.
func opened(t *testing.T, page string) (dom, console string) {
	t.Helper()
	return openedAt(t, page, 1200)
}

// openedAt is opened in a window of this width, pixels.
func openedAt(t *testing.T, page string, width int) (dom, console string) {
	t.Helper()
	path := browser(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "report.html")
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// No sandbox: tests may run as root in a container; the page is our own.
	cmd := exec.CommandContext(ctx, path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "profile"), "--enable-logging=stderr", "--v=0",
		fmt.Sprintf("--window-size=%d,900", width), "--dump-dom", "file://"+file)
	cmd.WaitDelay = 5 * time.Second
	// A D-Bus address that does not answer costs the browser 25 seconds.
	cmd.Env = append(os.Environ(), "DBUS_SESSION_BUS_ADDRESS=disabled:", "DBUS_SYSTEM_BUS_ADDRESS=disabled:")
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", path, err, log.String())
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "CONSOLE") {
			console += line
		}
	}
	return out.String(), console
}

var (
	figureTag = regexp.MustCompile(`(?s)<figure ([^>]*)>(.*?)</figure>`)
	attribute = regexp.MustCompile(`([a-z-]+)="([^"]*)"`)
	pathTag   = regexp.MustCompile(`<path class="line" ([^>]*)>`)
)

// figure is a plot in the page.
type figure struct {
	attributes map[string]string
	inside     string
}

// figures are the visible ones.
func figures(dom string) []figure {
	var out []figure
	for _, m := range figureTag.FindAllStringSubmatch(dom, -1) {
		if regexp.MustCompile(`\bhidden\b`).MatchString(m[1]) {
			continue
		}
		out = append(out, figure{attributesOf(m[1]), m[2]})
	}
	return out
}

func attributesOf(text string) map[string]string {
	out := map[string]string{}
	for _, a := range attribute.FindAllStringSubmatch(text, -1) {
		out[a[1]] = html.UnescapeString(a[2])
	}
	return out
}

// points counts the points of each line of a plot.
func (f figure) points() map[string]int {
	out := map[string]int{}
	for _, m := range pathTag.FindAllStringSubmatch(f.inside, -1) {
		a := attributesOf(m[1])
		out[a["data-series"]] = strings.Count(a["d"], "M") + strings.Count(a["d"], "L")
	}
	return out
}

func (f figure) count(mark string) int { return strings.Count(f.inside, mark) }

// find returns the plot with these attributes, given as name=value.
func find(t *testing.T, all []figure, wanted ...string) figure {
	t.Helper()
next:
	for _, f := range all {
		for _, w := range wanted {
			name, value, _ := strings.Cut(w, "=")
			if f.attributes[name] != value {
				continue next
			}
		}
		return f
	}
	t.Fatalf("no plot %v is shown", wanted)
	return figure{}
}

var (
	disaggregated = reporttest.Server{PrefillPerS: 20, TPOT: 9 * time.Millisecond, Disaggregated: true, QueueLimit: 60}
	aggregated    = reporttest.Server{PrefillPerS: 20, TPOT: 9 * time.Millisecond, QueueLimit: 60}
	rates         = []float64{2, 6, 12, 18, 26}
)

// Each plot of a sweep shows all of its data, without errors.
func TestPageInABrowser(t *testing.T) {
	browser(t)
	r := reporttest.Sweep("a sweep", disaggregated, rates, 40*time.Second)
	dom, console := opened(t, written(t, func(w io.Writer) error { return report.WriteHTML(w, r) }))
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	all := figures(dom)

	for _, latency := range []string{"ttft", "tpot"} {
		f := find(t, all, "data-chart=latency-rate", "data-latency="+latency)
		points, dots := f.points(), 0
		for _, p := range []string{"p50", "p90", "p99"} {
			want := 0
			for _, s := range r.Search.Steps {
				d := s.Summary.TTFT
				if latency == "tpot" {
					d = s.Summary.TPOT
				}
				if d.Percentile(p) != nil {
					want++
				}
			}
			if points[p] != want {
				t.Errorf("%s %s has %d points for %d rates", latency, p, points[p], want)
			}
			dots += want
		}
		if got := f.count(`class="dot"`); got != dots {
			t.Errorf("%s has %d dots, want %d", latency, got, dots)
		}
		for _, mark := range []string{"knee", "breaking point"} {
			if f.count(`data-mark="`+mark+`"`) != 1 {
				t.Errorf("%s does not mark the %s", latency, mark)
			}
		}
	}
	for _, chart := range []string{"throughput", "attainment"} {
		for name, n := range find(t, all, "data-chart="+chart).points() {
			if n != len(rates) && name != "all that is offered" {
				t.Errorf("%s: %s has %d points for %d rates", chart, name, n, len(rates))
			}
		}
	}
	for curves, names := range map[string]map[string]string{
		"ttft_ms ttft_sent_ms e2e_ms":    {"TTFT": "ttft_ms", "TTFT from send": "ttft_sent_ms", "E2E": "e2e_ms"},
		"tpot_ms itl_ms second_token_ms": {"TPOT": "tpot_ms", "ITL": "itl_ms", "second token": "second_token_ms"},
	} {
		points := find(t, all, "data-chart=percentiles", "data-curves="+curves).points()
		for name, key := range names {
			if want := len(r.Curves[key]); want < 20 || points[name] != want {
				t.Errorf("curve %s has %d points of %d", name, points[name], want)
			}
		}
	}
	for kind, series := range map[string]string{"rates": "due", "backlog": "backlog"} {
		if got := find(t, all, "data-chart=time", "data-kind="+kind).points()[series]; got != len(r.Series) {
			t.Errorf("%s over time has %d points for %d seconds", series, got, len(r.Series))
		}
	}
	measured := 0
	for _, p := range r.Series {
		if p.TTFTP50 != nil {
			measured++
		}
	}
	if got := find(t, all, "data-chart=time", "data-kind=ttft").points()["median"]; got != measured {
		t.Errorf("TTFT over time has %d points for %d seconds with requests", got, measured)
	}
	checkBudgets(t, all, r)
}

// checkBudgets counts segments of bars.
func checkBudgets(t *testing.T, all []figure, r *report.Report) {
	t.Helper()
	for _, latency := range []string{"ttft_ms", "e2e_ms"} {
		want := 0
		for _, b := range r.Tail.Breakdowns {
			for _, ms := range b.Stages {
				if string(b.Latency) == latency && ms > 0 {
					want++
				}
			}
		}
		if got := find(t, all, "data-chart=budget", "data-latency="+latency).count(`class="segment"`); want == 0 || got != want {
			t.Errorf("the budget of %s has %d segments, want %d", latency, got, want)
		}
		want, requests := 0, 0
		for _, w := range r.Tail.Slowest {
			if string(w.By) == latency {
				want += len(w.Spans)
				requests++
			}
		}
		if requests == 0 {
			continue
		}
		f := find(t, all, "data-chart=waterfall", "data-latency="+latency)
		if got := f.count(`class="segment"`); got != want {
			t.Errorf("the waterfall by %s has %d spans, want %d", latency, got, want)
		}
		if got := f.count(`class="tick"`); got != requests {
			t.Errorf("the waterfall by %s marks %d first tokens, want %d", latency, got, requests)
		}
	}
	for _, percentile := range []string{"p50", "p99"} {
		rows := map[string]bool{}
		f := find(t, all, "data-chart=budget-rate", "data-percentile="+percentile)
		for _, m := range regexp.MustCompile(`data-row="(\d+)"`).FindAllStringSubmatch(f.inside, -1) {
			rows[m[1]] = true
		}
		want := 0
		for _, run := range r.Runs {
			for _, b := range run.Tail.Breakdowns {
				if b.Latency == "ttft_ms" && b.Percentile == percentile {
					want++
				}
			}
		}
		if want == 0 || len(rows) != want {
			t.Errorf("%s by rate has %d bars, want %d", percentile, len(rows), want)
		}
	}
}

// A report of one run has no plots over rates, and hides figures without data.
func TestPageOfOneRunInABrowser(t *testing.T) {
	browser(t)
	r := reporttest.Single("one run", aggregated, 10, 20*time.Second)
	r.Tail, r.Series = nil, nil
	dom, console := opened(t, written(t, func(w io.Writer) error { return report.WriteHTML(w, r) }))
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	for _, f := range figures(dom) {
		if f.attributes["data-chart"] != "percentiles" {
			t.Errorf("%v is shown without data", f.attributes)
		}
	}
}

// Two reports share their plots.
func TestComparisonInABrowser(t *testing.T) {
	browser(t)
	a := reporttest.Sweep("", aggregated, rates, 40*time.Second)
	b := reporttest.Sweep("", disaggregated, rates, 40*time.Second)
	named := []report.Named{{Name: "aggregated", Report: a}, {Name: "disaggregated", Report: b}}
	dom, console := opened(t, written(t, func(w io.Writer) error { return report.WriteComparisonHTML(w, "Two", named) }))
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	all := figures(dom)
	points := find(t, all, "data-chart=latency-rate", "data-latency=ttft").points()
	budgets := find(t, all, "data-chart=budget", "data-latency=ttft_ms").inside
	for _, n := range named {
		if got := points[n.Name+", p50"]; got != len(rates) {
			t.Errorf("%s has %d points for %d rates", n.Name, got, len(rates))
		}
		if !strings.Contains(budgets, "p50 "+n.Name) {
			t.Errorf("no budget of %s", n.Name)
		}
		// Neither passed anywhere, so they are compared at the lowest rate.
		if got, want := find(t, all, "data-chart=percentiles", "data-curves=ttft_ms").points()[n.Name+", TTFT"], len(n.Report.Runs[0].Curves["ttft_ms"]); want < 20 || got != want {
			t.Errorf("the curve of %s has %d points of %d", n.Name, got, want)
		}
	}
}

// The server's texts and the user's are shown and never run.
func TestHostileTextsInABrowser(t *testing.T) {
	browser(t)
	const mark = `document.title='taken'`
	text := strings.Join([]string{
		`</script><script>` + mark + `</script>`, `<img src=x onerror="` + mark + `">`, `"><svg onload="` + mark + `">`, `<!--<script>`, "\u2028'+" + mark + "+'",
	}, " ")
	dom, console := opened(t, written(t, func(w io.Writer) error { return report.WriteHTML(w, hostile(text)) }))
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	if strings.Contains(dom, "<title>taken") {
		t.Error("a server's text was run")
	}
	if find(t, figures(dom), "data-chart=waterfall", "data-latency=ttft_ms").count(`class="segment"`) == 0 {
		t.Error("the plots are gone")
	}
}

// hostile puts text wherever a server or a user can.
func hostile(text string) *report.Report {
	run := reporttest.Run(disaggregated, 6, 10*time.Second, 1)
	for _, r := range run.Records {
		r.ID, r.Class, r.FinishReason, r.Error = text, text, text, text
		r.Route.Prefill, r.Route.Decode = text, text
	}
	r := reporttest.New(text)
	r.SetRun(reporttest.Figures(run))
	r.Target.Model, r.Target.Server, r.Target.Address = text, text, text
	r.Codes = map[string]int{text: 1}
	r.Command = []string{text}
	r.Workload = []string{text}
	r.Warn(text)
	return r
}
