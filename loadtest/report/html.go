package report

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// Named is a report of a comparison with the name for its plots.
type Named struct {
	Name   string
	Report *Report
}

//go:embed page/*.html
var templates embed.FS

// Style and script of the page.
var (
	//go:embed page/style.css
	style string
	//go:embed page/plot.js
	plotScript string
	//go:embed page/charts.js
	chartsScript string
)

// page is the template's input.
type page struct {
	Title      string
	Comparison bool
	Reports    []Named
	// At is the rate that a comparison's figures belong to.
	At string
	// Policy allows only the page's own style and script: no network, and no script
	// injected through a server's text.
	Policy       string
	Style        template.CSS
	Script, Data template.JS
	Definitions  []measure.Definition
}

// WriteHTML writes the report as a self-contained page. Its tables need no script; its
// plots do.
func WriteHTML(w io.Writer, r *Report) error {
	title := r.Name
	if title == "" {
		title = strings.TrimSpace("Latency under load: " + r.Target.Model)
	}
	return writePage(w, title, "", []Named{{Name: title, Report: r}})
}

// WriteComparisonHTML writes several reports as one page with overlaid curves and
// adjacent budgets. Their names must differ. Searches are compared at the highest rate
// that passed in all, otherwise at the lowest that all have, otherwise by each report's
// own figures, and the page says which.
func WriteComparisonHTML(w io.Writer, title string, reports []Named) error {
	seen := map[string]bool{}
	for _, n := range reports {
		if n.Report == nil || n.Name == "" || seen[n.Name] {
			return fmt.Errorf("write comparison: each report needs a name of its own; %q is empty or given twice", n.Name)
		}
		seen[n.Name] = true
	}
	if len(reports) < 2 {
		return fmt.Errorf("write comparison: got %d reports; it takes at least two", len(reports))
	}
	at := "each at its own rate"
	if rate, ok := commonRate(reports); ok {
		at = "at " + perSecond(rate)
		reports = atRate(reports, rate)
	}
	return writePage(w, title, at, reports)
}

// commonRate is the rate at which searches are compared.
func commonRate(reports []Named) (rate float64, ok bool) {
	best, least := math.Inf(-1), math.Inf(1)
	for _, f := range reports[0].Report.Runs {
		everywhere, passed := true, true
		for _, n := range reports {
			everywhere = everywhere && slices.ContainsFunc(n.Report.Runs, func(g Figures) bool { return g.Rate == f.Rate })
			passed = passed && n.Report.Search != nil && slices.ContainsFunc(n.Report.Search.Steps, func(s search.Step) bool { return s.Rate == f.Rate && s.Passed })
		}
		if everywhere {
			least = min(least, f.Rate)
		}
		if everywhere && passed {
			best = max(best, f.Rate)
		}
	}
	if !math.IsInf(best, 0) {
		return best, true
	}
	return least, !math.IsInf(least, 0)
}

// atRate returns the reports with the figures of their last run at a rate.
func atRate(reports []Named, rate float64) []Named {
	out := make([]Named, len(reports))
	for i, n := range reports {
		r := *n.Report
		for _, f := range r.Runs {
			if f.Rate == rate {
				r.Figures = f
			}
		}
		out[i] = Named{Name: n.Name, Report: &r}
	}
	return out
}

func writePage(w io.Writer, title, at string, reports []Named) error {
	script := plotScript + chartsScript
	// json escapes <, > and &, so that no text can end its element.
	data, err := json.Marshal(newPlotData(reports))
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	p := page{
		Title: title, Comparison: len(reports) > 1, Reports: reports, At: at,
		Policy: "default-src 'none'; style-src " + hash(style) + "; script-src " + hash(script) + "; base-uri 'none'; form-action 'none'",
		// Style and script are our own files; data cannot leave its element.
		Style: template.CSS(style), Script: template.JS(script), Data: template.JS(data),
		Definitions: measure.Definitions(),
	}
	t, err := template.New("page.html").Funcs(functions).ParseFS(templates, "page/*.html")
	var out bytes.Buffer
	if err == nil {
		err = t.Execute(&out, p)
	}
	if err == nil {
		_, err = w.Write(out.Bytes())
	}
	if err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// hash is a text's hash as a source in a content security policy.
func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

var functions = template.FuncMap{
	"number": number, "duration": duration, "percent": percent, "count": Count,
	"outcomes": outcomes, "failed": failed, "objective": objective, "sendDifference": sendDifference, "severalTokens": severalTokens,
	"stage": stageName, "latency": latencyName,
	"processors": processors, "simulated": simulated, "stepNote": stepNote, "maxRateName": maxRateName,
	"verdictText":   verdictText,
	"verdictClass":  verdictClass,
	"at":            at,
	"verdictMeans":  verdictMeans,
	"within":        func(r *Report) string { return within(&r.Figures) },
	"verdictReason": func(r *Report) string { return verdictReason(&r.Figures) },
	"manyRates":     manyRates,
	"join":          strings.Join,
	"command":       func(arguments []string) string { return quoted(append([]string{"tandem"}, arguments...)) },
	"ms":            orNA,
	"rateOf":        rate, "noneEnded": noneEnded,
	"rate": func(v *float64) string {
		if v == nil {
			return "none"
		}
		return number(*v) + "/s"
	},
	"same":    func(v *float64, rate float64) bool { return v != nil && *v == rate },
	"past":    func(v *float64, rate float64) bool { return v != nil && rate >= *v },
	"GiB":     func(n int64) string { return number(float64(n) / (1 << 30)) },
	"columns": columnNames,
	"rows":    htmlRows,
	"whatIfs": whatIfRows,
	"anySearch": func(all []Named) bool {
		return slices.ContainsFunc(all, func(n Named) bool { return n.Report.Search != nil })
	},
	"anySLO": func(all []Named) bool {
		return slices.ContainsFunc(all, func(n Named) bool { return n.Report.HasSLO() })
	},
	"anyTail": func(all []Named) bool {
		return slices.ContainsFunc(all, func(n Named) bool { return n.Report.Tail != nil })
	},
	"noInterval": func() string { return noInterval },
	"ofClasses":  func() string { return ofClasses },
	"needed":     measure.SamplesNeeded,
	"summary":    func(r *Report) *measure.Summary { return &r.Summary },
}

// verdictMeans says what a verdict is about, if that may be misread.
func verdictMeans(r *Report) string {
	switch {
	case !r.HasSLO():
		return ""
	case r.Verdict == measure.Stable:
		return "STABLE is about the backlog only: the server kept up. Below the latencies stands which objectives it met."
	case r.Verdict == measure.None:
		return ""
	}
	return string(r.Verdict) + " is about the backlog and what was not served, not about the SLO. Below the latencies stands which objectives were met."
}

// at is the load of a report's figures, and whether they decide nothing.
func at(r *Report) string {
	decided := func(s search.Step) bool { return s.Rate == r.Rate && !s.Unknown }
	if r.Search != nil && !slices.ContainsFunc(r.Search.Steps, decided) {
		return load(&r.Figures) + " (undecided)"
	}
	if r.Search == nil {
		return actual(&r.Figures)
	}
	return load(&r.Figures)
}

// stepNote is the note below a row of the table of rates: the rate's role in the search,
// and why it did not pass.
func stepNote(s *search.Result, step search.Step) string {
	var notes []string
	for _, mark := range []struct {
		rate *float64
		name string
	}{{s.MaxRate, strings.Replace(maxRateName(s), "rate ", "", 1)}, {s.Knee, "knee"}, {s.Breaking, "breaking point"}} {
		if mark.rate != nil && *mark.rate == step.Rate {
			notes = append(notes, mark.name)
		}
	}
	if slices.Contains(s.PassedAbove, step.Rate) {
		notes = append(notes, "passed, although a lower rate did not")
	}
	if step.Summary.NoneEnded() {
		notes = append(notes, noneEnded(step.Summary))
	}
	if step.Why != "" {
		notes = append(notes, strings.TrimPrefix(step.Why, string(step.Summary.Verdict)+": "))
	}
	return strings.Join(notes, "; ")
}

// manyRates reports whether at least two rates have figures to plot.
func manyRates(r *Report) bool {
	rates := map[float64]bool{}
	for _, step := range r.Search.Steps {
		if step.Summary.Completed > 0 {
			rates[step.Rate] = true
		}
	}
	return len(rates) > 1
}

// quoted quotes a command for a shell.
func quoted(arguments []string) string {
	out := make([]string, len(arguments))
	for i, a := range arguments {
		plain := a != "" && strings.IndexFunc(a, func(c rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,@%+", c)
		}) < 0
		if plain {
			out[i] = a
		} else {
			out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func columnNames() []string {
	names := make([]string, len(percentiles))
	for i, p := range percentiles {
		names[i] = p.name
	}
	return names
}

// htmlRow is a latency in the page's table.
type htmlRow struct {
	Label, Long string
	Count       int64
	Cells       []htmlCell
}

type htmlCell struct{ Value, Under string }

func htmlRows(s *measure.Summary) []htmlRow {
	var out []htmlRow
	for _, l := range rowsOf(s) {
		d := distribution(s, l.latency)
		row := htmlRow{Label: strings.TrimSpace(l.label), Long: l.long, Count: d.Count}
		if strings.HasPrefix(l.label, " ") {
			row.Label = latencyName(measure.Latency(strings.TrimSuffix(string(l.latency), "_sent_ms")+"_ms")) + " from send"
		}
		for _, p := range percentiles {
			c := htmlCell{Value: "n/a"}
			if v := d.Percentile(p.key); v != nil {
				c.Value = number(*v)
			}
			c.Under = under(d, p.key, func(ci [2]float64) string { return number(ci[0]) + "–" + number(ci[1]) })
			row.Cells = append(row.Cells, c)
		}
		out = append(out, row)
	}
	return out
}

// whatIfRow is one stage of one percentile, twice as fast and removed.
type whatIfRow struct {
	What, Stage       string
	Now, Half, Gone   string
	HalfCut, GoneCut  string
	FirstOfPercentile bool
}

func whatIfRows(e *tail.Explanation) []whatIfRow {
	var out []whatIfRow
	for _, a := range e.Amdahl {
		what := percentileName(a.Percentile) + " " + latencyName(a.Latency)
		i := len(out) - 1
		if i < 0 || out[i].What != what || out[i].Stage != stageName(a.Stage) {
			first := i < 0 || out[i].What != what
			out = append(out, whatIfRow{What: what, Stage: stageName(a.Stage), Now: duration(a.NowMs), FirstOfPercentile: first})
			i++
		}
		cut := ""
		if a.NowMs > 0 {
			cut = "-" + percent(1-a.ThenMs/a.NowMs)
		}
		if a.Speedup == 0 {
			out[i].Gone, out[i].GoneCut = duration(a.ThenMs), cut
		} else {
			out[i].Half, out[i].HalfCut = duration(a.ThenMs), cut
		}
	}
	return out
}
