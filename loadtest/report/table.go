package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tandem-serving/tandem/loadtest/measure"
)

const (
	minWidth, maxWidth = 80, 100
	labelWidth         = 14
)

// WriteTable writes the report for a terminal of so many columns; it uses 80 to 100.
func (r *Report) WriteTable(w io.Writer, width int) error {
	t := &table{width: min(max(width, minWidth), maxWidth)}
	t.head(r)
	if r.Search != nil {
		t.search(r)
	}
	t.figures(&r.Figures)
	t.tail(r.Tail)
	t.foot(r)
	if _, err := io.WriteString(w, t.text.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// table gathers lines.
type table struct {
	width int
	text  strings.Builder
}

// line writes text, indented and broken into lines as needed, those after the first
// indented by two more.
func (t *table) line(indent, format string, args ...any) {
	t.text.WriteString(wrapped(printable(fmt.Sprintf(format, args...)), t.width, indent, indent+"  "))
	t.text.WriteByte('\n')
}

// raw writes a line as it is, without spaces at its end.
func (t *table) raw(format string, args ...any) {
	t.text.WriteString(strings.TrimRight(printable(fmt.Sprintf(format, args...)), " ") + "\n")
}

func (t *table) gap() { t.text.WriteByte('\n') }

func (t *table) head(r *Report) {
	t.line("", "%s", r.Headline())
	t.gap()
	what := r.Target.Model
	if what == "" {
		what = r.Target.Kind
	}
	name := ""
	if r.Name != "" {
		name = r.Name + ": "
	}
	t.line("", "%s%s at %s (%s)", name, what, r.Target.Address, strings.TrimSpace(r.Target.Kind+" "+r.Target.Server))
	for _, s := range r.Workload {
		t.line("", "%s", s)
	}
	for _, s := range r.Warnings {
		t.line("", "WARNING: %s", s)
	}
	t.gap()
}

func (t *table) search(r *Report) {
	s := r.Search
	const format = "%-8s %8s %8s %8s %7s %8s %7s  %-10s %s"
	t.raw(format, "asked/s", "done/s", "good/s", "TTFT p50", "p99", "TPOT p50", "p99", "verdict", "")
	same := func(a *float64, rate float64) bool { return a != nil && *a == rate }
	of := func(v *float64) string {
		if v == nil {
			return "n/a"
		}
		return number(*v)
	}
	for _, step := range s.Steps {
		note := ""
		switch {
		case same(s.Breaking, step.Rate):
			note = "breaks"
		case same(s.MaxRate, step.Rate):
			note = "max"
		case same(s.Knee, step.Rate):
			note = "knee"
		}
		m := step.Summary
		t.raw(format, number(step.Rate), number(m.CompletedRPS), number(m.Goodput),
			of(m.TTFT.Percentile("p50")), of(m.TTFT.Percentile("p99")), of(m.TPOT.Percentile("p50")), of(m.TPOT.Percentile("p99")), m.Verdict, note)
	}
	t.gap()
	for _, step := range s.Steps {
		switch {
		case step.Why == "":
		case step.Unknown:
			t.line("", "%s/s is undecided: %s", number(step.Rate), step.Why)
		default:
			t.line("", "%s/s did not pass: %s", number(step.Rate), step.Why)
		}
	}
	switch {
	case s.MaxRate != nil && s.Bracket != nil:
		t.line("", "highest rate that passed: %s/s, in the bracket %s to %s/s", number(*s.MaxRate), number(s.Bracket[0]), number(s.Bracket[1]))
	case s.MaxRate != nil:
		t.line("", "highest rate that passed: %s/s", number(*s.MaxRate))
	default:
		t.line("", "no rate passed")
	}
	if s.Knee != nil {
		t.line("", "knee, where latency begins to rise faster than the rate: %s/s", number(*s.Knee))
	}
	if s.Breaking != nil {
		t.line("", "breaking point, the lowest rate that was not stable: %s/s", number(*s.Breaking))
	}
	if s.MaxGoodput != nil {
		t.line("", "most goodput at %s/s", number(*s.MaxGoodput))
	}
	t.gap()
	t.line("", "At %s/s:", number(r.Rate))
}

func (t *table) figures(f *Figures) {
	load := number(f.OfferedRPS) + " requests/s were due"
	if f.Concurrency > 0 {
		load = strconv.Itoa(f.Concurrency) + " at a time"
	}
	t.line("", "%s for %s s, after %s s of warm-up: %s; %s", load, number(f.WindowS), number(f.WarmupS),
		count(f.Requests, "request", "requests"), outcomes(&f.Summary))
	for _, failure := range f.Failures {
		t.line("  ", "%s", failed(failure))
	}
	t.line("", "completed %s/s, output %s tokens/s (mean %s a request), prompts %s tokens/s (mean %s, of which %s cached)",
		number(f.CompletedRPS), number(f.OutputTokensPerS), number(f.OutputTokensMean), number(f.PromptTokensPerS),
		number(f.PromptTokensMean), number(f.CachedTokensMean))
	t.gap()
	t.latencies(&f.Summary)
	if text := sendDifference(&f.Summary); text != "" {
		t.line("", "%s", text)
	}
	t.gap()
	if f.SLO != "" {
		t.line("", "goodput %s requests/s for %s: met by %s of the requests offered, %s of those admitted, %s of those completed",
			number(f.Goodput), f.SLO, percent(f.SLOAttainment), percent(f.SLOAttainmentAdmitted), percent(f.SLOAttainmentCompleted))
		for _, o := range f.Objectives {
			t.line("  ", "%s", objective(o))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Classes)) {
		c := f.Classes[name]
		t.line("", "class %s: %s, goodput %s/s, %s met", name, count(c.Requests, "request", "requests"), number(c.Goodput), percent(c.SLOAttainment))
	}
	t.line("", "verdict %s: %s", f.Verdict, verdictReason(f))
	t.line("", "client: %s, dispatch delay p99 %s, longest pause of the collector %s, at most %s in flight",
		processors(f.Client), orNA(f.DispatchDelay.Percentile("p99")),
		duration(f.Client.GCPauseMaxMs), count(f.Client.InFlightMax, "request", "requests"))
}

// verdictReason is what the verdict follows from; of a run that the client's side
// limited it stands in the warnings, or beside the rate.
func verdictReason(f *Figures) string {
	if f.Client.Bottleneck != "" {
		return clientLimit + ", as said above"
	}
	return f.Reason
}

// processors says who used the client's cores.
func processors(c Client) string {
	text := percent(c.CPUShare) + " of " + count(c.Cores, "core", "cores")
	if c.OthersShare != nil {
		text += " (others " + percent(*c.OthersShare) + ")"
	}
	return text
}

// orNA is milliseconds for people, if there are any.
func orNA(ms *float64) string {
	if ms == nil {
		return "n/a"
	}
	return duration(*ms)
}

// outcomes says how requests ended, without what did not happen.
func outcomes(s *measure.Summary) string {
	text := fmt.Sprintf("%d completed", s.Completed)
	for _, o := range []struct {
		n    int
		name string
	}{
		{s.Rejected, "rejected"}, {s.Errors, "failed"}, {s.TimedOut, "timed out"}, {s.Cancelled, "cancelled at the end"}, {s.Unsent, "never sent"},
	} {
		if o.n > 0 {
			text += fmt.Sprintf(", %d %s", o.n, o.name)
		}
	}
	codes := slices.Sorted(maps.Keys(s.Codes))
	for i, code := range codes {
		codes[i] = fmt.Sprintf("%s %d", code, s.Codes[code])
	}
	if len(codes) > 0 {
		text += " (" + strings.Join(codes, ", ") + ")"
	}
	return text
}

// failed says how often requests ended with a code, and what was said with it.
func failed(f measure.Failure) string {
	text := fmt.Sprintf("%s, %s", f.Code, count(f.Count, "request", "requests"))
	if f.Example == "" {
		return text
	}
	if f.Count > 1 {
		text += ", the first"
	}
	return text + ": " + f.Example
}

// objective is one term of an SLO with what was measured.
func objective(o measure.Objective) string {
	text := o.Term
	if o.Class != "" {
		text += " for " + o.Class
	}
	switch {
	case o.Missed:
		return text + ": NOT met: " + o.Why
	case o.Measured == nil && o.Why != "":
		return text + ": undecided: " + o.Why
	case o.Measured == nil: // a report from before there was a reason
		return text + ": too few samples"
	}
	text += ": " + duration(*o.Measured)
	if o.CI != nil {
		text += " (" + number(o.CI[0]) + " to " + number(o.CI[1]) + ")"
	}
	switch {
	case !o.Met:
		return text + ", NOT met"
	case o.Early:
		return text + ", met, and confirmed for the true percentile with 99% confidence"
	case o.NeedsRequests > 0:
		return text + fmt.Sprintf(", met by this sample; confirming it for the true percentile takes %d requests", o.NeedsRequests)
	}
	return text + ", met by this sample"
}

// latencies is the table: under each percentile its confidence interval or how many
// samples that needs.
func (t *table) latencies(s *measure.Summary) {
	column := (t.width - labelWidth) / len(percentiles)
	write := func(label string, cells []string) {
		var row strings.Builder
		row.WriteString(label + strings.Repeat(" ", labelWidth-utf8.RuneCountInString(label)))
		for _, c := range cells {
			row.WriteString(strings.Repeat(" ", max(column-utf8.RuneCountInString(c), 1)) + c)
		}
		t.raw("%s", row.String())
	}
	write("milliseconds", columnNames())
	intervals, missing := false, false
	for _, l := range latencyRows {
		d := distribution(s, l.latency)
		if d.Count == 0 {
			continue
		}
		var values, below []string
		for _, p := range percentiles {
			value, under := "n/a", ""
			if v := d.Percentile(p.key); v != nil {
				value = number(*v)
			} else {
				missing = true
			}
			if ci, ok := d.CI[p.key]; ok {
				under, intervals = interval(ci, column-1), true
			} else if n := d.Needs[p.key]; n > 0 {
				intervals = true
				under = "needs " + strconv.FormatInt(n, 10)
				if len(under) >= column {
					under = "n>=" + strconv.FormatInt(n, 10)
				}
			}
			values, below = append(values, value), append(below, under)
		}
		write(l.label, values)
		if strings.Join(below, "") != "" {
			write("", below)
		}
	}
	if intervals {
		t.line("", "Under each percentile is its 95%% confidence interval, or the number of samples that one needs.")
	}
	if missing {
		t.line("", "n/a: too few samples for this percentile.")
	}
}

// interval is a confidence interval in at most width characters.
func interval(ci [2]float64, width int) string {
	text := number(ci[0]) + "-" + number(ci[1])
	if len(text) > width {
		text = number(ci[0]/1000) + "-" + number(ci[1]/1000) + "s"
	}
	return text
}

// sendDifference says what counting from the send would hide; empty if nothing that
// shows.
func sendDifference(s *measure.Summary) string {
	for _, p := range []int{3, 2, 1, 0} { // p99 if there is one, otherwise less
		due, sent := s.TTFT.Percentile(percentiles[p].key), s.TTFTSent.Percentile(percentiles[p].key)
		if due == nil || sent == nil {
			continue
		}
		name := percentiles[p].name
		if *due-*sent < 0.005**due {
			return fmt.Sprintf("Latencies count from when a request was due. Counted from the send, as other tools do, TTFT's %s is the same within 0.5%%.", name)
		}
		return fmt.Sprintf("Latencies count from when a request was due. Counted from the send, as other tools do, TTFT's %s would read %s instead of %s: that leaves out %s of waiting before the send.",
			name, duration(*sent), duration(*due), duration(*due-*sent))
	}
	return ""
}

func (t *table) foot(r *Report) {
	t.gap()
	machine := fmt.Sprintf("client on %s, %s, %s", r.Host.CPU, count(r.Host.Cores, "core", "cores"), r.Host.OS)
	if r.Host.Memory > 0 {
		machine += fmt.Sprintf(", %s GiB", number(float64(r.Host.Memory)/(1<<30)))
	}
	t.line("", "%s; tandem %s; %s", machine, r.Version, r.Began.UTC().Format("2006-01-02 15:04:05 UTC"))
}

// WriteDefinitions writes what each figure is and what other tools call it, for a
// terminal of so many columns.
func WriteDefinitions(w io.Writer, width int) error {
	t := &table{width: min(max(width, minWidth), maxWidth)}
	for _, d := range measure.Definitions() {
		t.raw("%s", d.Name)
		t.line("  ", "%s", d.Text)
		for _, other := range []struct{ tool, name string }{
			{"vllm bench serve", d.VLLM}, {"AIPerf", d.AIPerf}, {"SGLang", d.SGLang}, {"MLPerf", d.MLPerf},
		} {
			if other.name != "" {
				t.line("    ", "%s: %s", other.tool, other.name)
			}
		}
	}
	if _, err := io.WriteString(w, t.text.String()); err != nil {
		return fmt.Errorf("write definitions: %w", err)
	}
	return nil
}
