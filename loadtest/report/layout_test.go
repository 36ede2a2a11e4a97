package report_test

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/report/reporttest"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// inspect finds layout faults: labels over lines, bars or other labels, verdicts and notes
// that are cut off, and a page wider than its window.
const inspect = `
const found = [], shown = b => b.width > 0 && b.height > 0;
const over = (a, b) => a.left < b.right - .5 && b.left < a.right - .5 && a.top < b.bottom - .5 && b.top < a.bottom - .5;
for (const figure of document.querySelectorAll('figure')) {
  const svg = figure.querySelector('svg[role=img]');
  if (figure.hidden) continue;
  const name = figure.querySelector('figcaption').textContent.trim();
  if (!svg || !svg.querySelector('path.line[d*=M], rect.segment')) { found.push(name + ': nothing is drawn'); continue; }
  const labels = [...svg.querySelectorAll('text')].map(node => ({ text: node.textContent, box: node.getBoundingClientRect() })).filter(l => l.text && shown(l.box));
  if (!labels.length) found.push(name + ': no labels');
  const frame = svg.getBoundingClientRect();
  labels.forEach((a, i) => {
    if (a.box.left < frame.left - 1 || a.box.right > frame.right + 1) found.push(name + ': "' + a.text + '" is outside');
    for (const b of labels.slice(i + 1)) if (over(a.box, b.box)) found.push(name + ': "' + a.text + '" is over "' + b.text + '"');
  });
  for (const node of svg.querySelectorAll('line, path, rect.segment, circle')) {
    if (node.getAttribute('visibility') === 'hidden') continue;
    const points = [];
    if (node.tagName === 'rect' || node.tagName === 'circle') {
      const box = node.getBoundingClientRect();
      for (const l of labels) if (shown(box) && over(l.box, box)) found.push(name + ': "' + l.text + '" is over a ' + node.getAttribute('class'));
      continue;
    }
    const matrix = node.getScreenCTM();
    for (let at = 0, end = node.getTotalLength(); at <= end; at += 1) points.push(node.getPointAtLength(at).matrixTransform(matrix));
    for (const l of labels) {
      if (points.some(p => p.x > l.box.left + .5 && p.x < l.box.right - .5 && p.y > l.box.top + .5 && p.y < l.box.bottom - .5)) {
        found.push(name + ': "' + l.text + '" is over a line of ' + node.getAttribute('class'));
      }
    }
  }
}
for (const node of document.querySelectorAll('td.verdict, span.verdict, tr.note div, .headline, .warnings p')) {
  const box = node.getBoundingClientRect(), frame = (node.closest('.scroll') || document.body).getBoundingClientRect();
  if (box.right > frame.right + 1 || box.right > innerWidth + 1 || node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).display !== 'inline') found.push('cut off: ' + node.textContent);
}
if (document.documentElement.scrollWidth > innerWidth) found.push('the page is ' + document.documentElement.scrollWidth + ' wide, its window ' + innerWidth);
document.body.dataset.found = JSON.stringify(found);
document.body.dataset.width = innerWidth;
`

var (
	policyTag = regexp.MustCompile(`<meta http-equiv="Content-Security-Policy"[^>]*>`)
	foundText = regexp.MustCompile(`data-found="([^"]*)"`)
)

// misplaced returns what inspect finds in a page.
func misplaced(t *testing.T, page string, width int) []string {
	t.Helper()
	page = policyTag.ReplaceAllString(page, "") // it forbids other scripts than the page's
	page = strings.Replace(page, "</body>", "<script>{"+inspect+"}</script></body>", 1)
	if keep := os.Getenv("TANDEM_REPORT_PAGES"); keep != "" { // to look at them
		name := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())
		if err := os.WriteFile(fmt.Sprintf("%s/%s.html", keep, name), []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dom, console := openedAt(t, page, width)
	if console != "" {
		t.Errorf("the console says:\n%s", console)
	}
	m := foundText.FindStringSubmatch(dom)
	if m == nil {
		t.Fatal("the page was not inspected")
	}
	var found []string
	if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// pageOf is the report as HTML.
func pageOf(t *testing.T, r *report.Report) string {
	return written(t, func(w io.Writer) error { return report.WriteHTML(w, r) })
}

// crowded is a sweep whose knee and breaking point are close together at the right end,
// and whose client was late at one rate.
func crowded() *report.Report {
	r := reporttest.Sweep("crowded", disaggregated, rates, 20*time.Second)
	r.Search.Knee, r.Search.Breaking = &rates[3], &rates[4]
	limit(r, 2, "requests went out late (p99 12ms after they were due, 1ms is allowed) at 12 of 12 requests/s, while other processes (the server too, if it runs here) used 97% of the client's 2 cores and the client 1%: give it cores of its own, or stop the others")
	return r
}

// limit makes the client the bottleneck of one step.
func limit(r *report.Report, step int, why string) {
	result, runs := *r.Search, r.Runs
	s := &result.Steps[step]
	s.Client, s.Passed, s.Unknown, s.Why = why, false, true, "the client was the bottleneck: "+why
	s.Summary.Verdict, s.Summary.Reason = measure.None, s.Why
	for i := range runs {
		if runs[i].Rate == s.Rate {
			runs[i].Client.Bottleneck, runs[i].Verdict, runs[i].Reason = why, measure.None, s.Why
		}
	}
	r.Warnings = nil
	r.SetSearch(result, runs)
}

// interruptedSweep is a sweep that was interrupted after this many whole steps.
func interruptedSweep(whole int) *report.Report {
	r := reporttest.Sweep("interrupted", disaggregated, rates[:whole+1], 20*time.Second)
	result, runs := *r.Search, r.Runs
	last := &result.Steps[whole]
	last.Interrupted, last.Passed, last.Unknown, last.Why = true, false, true, "interrupted after 12 s"
	result.Breaking, result.Knee, result.MaxRate = nil, nil, nil
	if whole > 0 {
		result.MaxRate = &rates[whole-1]
	}
	r.Interrupted, r.Warnings = true, nil
	r.SetSearch(result, runs)
	return r
}

// At every width nothing is cut off, no label lies over a line or another label, and no
// visible figure is empty.
func TestLayoutInABrowser(t *testing.T) {
	browser(t)
	near := []float64{10, 10.1, 10.2, 10.3, 30}
	nearby := reporttest.Sweep("near", disaggregated, near, 20*time.Second)
	nearby.Search.Knee, nearby.Search.Breaking = &near[1], &near[2]
	void := reporttest.Run(disaggregated, 5, time.Second, 1)
	void.Records, void.From, void.To, void.Interrupted = void.Records[:1], 2*time.Second, 2*time.Second, true
	empty := reporttest.New("nothing yet")
	empty.Interrupted = true
	f := reporttest.Figures(void)
	empty.SetSearch(search.Result{Steps: []search.Step{{Rate: 5, Summary: &f.Summary, Unknown: true, Interrupted: true, Why: "interrupted after 2 s"}}}, []report.Figures{f})
	comparison := func() string {
		a, b := reporttest.Sweep("", aggregated, rates, 20*time.Second), reporttest.Sweep("", disaggregated, rates, 20*time.Second)
		named := []report.Named{{Name: "two workers that do both", Report: a}, {Name: "disaggregated", Report: b}}
		return written(t, func(w io.Writer) error { return report.WriteComparisonHTML(w, "Two", named) })
	}
	for name, page := range map[string]string{
		"sweep":                        pageOf(t, reporttest.Sweep("a sweep", disaggregated, rates, 40*time.Second)),
		"crowded":                      pageOf(t, crowded()),
		"marks beside one another":     pageOf(t, nearby),
		"interrupted in the third":     pageOf(t, interruptedSweep(2)),
		"interrupted in the first":     pageOf(t, interruptedSweep(0)),
		"interrupted in the warm-up":   pageOf(t, empty),
		"one run":                      pageOf(t, reporttest.Single("one run", disaggregated, 10, 20*time.Second)),
		"a comparison with long names": comparison(),
	} {
		for _, width := range []int{1400, 800, 500} { // the narrowest window of a browser
			t.Run(fmt.Sprintf("%s/%d", name, width), func(t *testing.T) {
				for _, what := range misplaced(t, page, width) {
					t.Error(what)
				}
			})
		}
	}
}
