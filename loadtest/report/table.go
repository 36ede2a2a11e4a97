package report

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
)

const (
	minWidth, maxWidth = 80, 100
	labelWidth         = 14
)

// WriteTable writes the report for a terminal of width columns, of which it uses 80 to
// 100.
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

// table collects lines.
type table struct {
	width int
	text  strings.Builder
}

// line writes wrapped text, indented; continuation lines by two more.
func (t *table) line(indent, format string, args ...any) {
	t.text.WriteString(Wrap(printable(fmt.Sprintf(format, args...)), t.width, indent, indent+"  "))
	t.text.WriteByte('\n')
}

// raw writes a line without trailing spaces.
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
	if r.Simulation != nil {
		t.line("", "%s", simulated(r.Simulation))
	}
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
	third := "good/s"
	if !r.HasSLO() { // all that is done is good
		third = "requests"
	}
	t.raw(format, "asked/s", "done/s", third, "TTFT p50", "p99", "TPOT p50", "p99", "verdict", "")
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
		case sloMissed(step.Summary): // the column is full
		case same(s.Breaking, step.Rate):
			note = "breaks"
		case same(s.MaxRate, step.Rate):
			note = "max"
		case same(s.Knee, step.Rate):
			note = "knee"
		case slices.Contains(s.PassedAbove, step.Rate):
			note = "doubtful"
		}
		m := step.Summary
		good := rate(m, m.Goodput)
		if !r.HasSLO() {
			good = strconv.Itoa(m.Requests)
		}
		t.raw(format, number(step.Rate), rate(m, m.CompletedRPS), good,
			of(m.TTFT.Percentile("p50")), of(m.TTFT.Percentile("p99")), of(m.TPOT.Percentile("p50")), of(m.TPOT.Percentile("p99")), verdictText(m), note)
	}
	t.gap()
	for _, step := range s.Steps {
		if step.Summary.NoneEnded() {
			t.line("", "at %s/s %s", number(step.Rate), noneEnded(step.Summary))
		}
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
		t.line("", "%s: %s/s, in the bracket %s to %s/s", maxRateName(s), number(*s.MaxRate), number(s.Bracket[0]), number(s.Bracket[1]))
	case s.MaxRate != nil:
		t.line("", "%s: %s/s", maxRateName(s), number(*s.MaxRate))
	case len(s.PassedAbove) > 0:
		t.line("", "no rate passed below all that did not")
	default:
		t.line("", "no rate passed")
	}
	if text := contradiction(s); text != "" {
		t.line("", "%s", text)
	}
	if s.Knee != nil {
		t.line("", "knee, where latency begins to rise faster than the rate: %s/s", number(*s.Knee))
	}
	if s.Breaking != nil {
		t.line("", "breaking point, the lowest rate that was not stable: %s/s", number(*s.Breaking))
	}
	if s.MaxGoodput != nil && r.HasSLO() && !same(s.MaxRate, *s.MaxGoodput) {
		t.line("", "most goodput at %s/s", number(*s.MaxGoodput))
	}
	t.gap()
	t.line("", "At %s/s:", number(r.Rate))
}

// ofClasses stands for an SLO where only classes have one.
const ofClasses = "the SLOs of classes"

// maxRateName says what a search's MaxRate is.
func maxRateName(s *search.Result) string {
	if len(s.PassedAbove) > 0 {
		return "highest rate that passed below all that did not"
	}
	return "highest rate that passed"
}

func (t *table) figures(f *Figures) {
	load := "offered " + number(f.OfferedRPS) + "/s"
	if f.Concurrency > 0 {
		load = strconv.Itoa(f.Concurrency) + " at a time"
	}
	t.line("", "%s for %s s, after %s s of warm-up: %s; %s", load, number(f.WindowS), number(f.WarmupS),
		Count(f.Requests, "request", "requests"), outcomes(&f.Summary))
	for _, failure := range f.Failures {
		t.line("  ", "%s", failed(failure))
	}
	if f.Completed > 0 {
		t.line("", "%s", within(f))
		t.line("", "a completed request on average: %s output tokens, %s prompt tokens, of which %s cached",
			number(f.OutputTokensMean), number(f.PromptTokensMean), number(f.CachedTokensMean))
	}
	if f.Requests > 0 {
		t.gap()
		t.latencies(&f.Summary)
	}
	if text := sendDifference(&f.Summary); text != "" {
		t.line("", "%s", text)
	}
	t.gap()
	if f.HasSLO() {
		t.line("", "goodput %s requests/s for %s: met by %s of the requests offered, %s of those admitted, %s of those completed",
			rate(&f.Summary, f.Goodput), cmp.Or(f.SLO, ofClasses), percent(f.SLOAttainment), percent(f.SLOAttainmentAdmitted), percent(f.SLOAttainmentCompleted))
		for _, o := range f.Objectives {
			t.line("  ", "%s", objective(o))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Classes)) {
		c := f.Classes[name]
		t.line("", "class %s: %s, goodput %s/s, %s met", name, Count(c.Requests, "request", "requests"), rate(c, c.Goodput), percent(c.SLOAttainment))
	}
	t.line("", "verdict %s: %s", verdictText(&f.Summary), verdictReason(f))
	if f.Client.Cores == 0 {
		return
	}
	t.line("", "client: %s, dispatch delay p99 %s, longest garbage collection %s, at most %s in flight",
		processors(f.Client), orNA(f.DispatchDelay.Percentile("p99")),
		duration(f.Client.GCPauseMaxMs), Count(f.Client.InFlightMax, "request", "requests"))
}

// within says what happened in the window, to any request. Of an overloaded server that is
// another number than that of the window's requests that were completed, late ones included.
func within(f *Figures) string {
	ended := "ended within the window: " + number(f.CompletedRPS) + "/s"
	if f.NoneEnded() {
		ended = noneEnded(&f.Summary)
	}
	text := fmt.Sprintf("%s; output tokens: %s/s; tokens of prompts whose answer began: %s/s", ended, number(f.OutputTokensPerS), number(f.PromptTokensPerS))
	const apart, fewest = 0.1, 10 // of the completed requests, and in all: fewer may be those before and after the window
	if after := float64(f.Completed) - f.CompletedRPS*f.WindowS; !f.NoneEnded() && math.Abs(after) > max(apart*float64(f.Completed), fewest) {
		text += fmt.Sprintf(". The %d completed requests were due within the window, but many ended later", f.Completed)
		if after < 0 {
			text = strings.TrimSuffix(text, "but many ended later") + "and earlier ones ended in it too"
		}
	}
	return text
}

// verdictReason explains the verdict, unless the client's side was the limit: the
// warnings or the rate's row say that.
func verdictReason(f *Figures) string {
	if limit := f.Limit(); limit != "" {
		return record.Culprit(limit) + ", as said above"
	}
	return f.Reason
}

// processors describes who used the client's cores.
func processors(c Client) string {
	text := percent(c.CPUShare) + " of " + Count(c.Cores, "core", "cores")
	if c.OthersShare != nil {
		text += " (other processes " + percent(*c.OthersShare) + ")"
	}
	return text
}

// orNA formats milliseconds, if there are any.
func orNA(ms *float64) string {
	if ms == nil {
		return "n/a"
	}
	return duration(*ms)
}

// outcomes summarizes how requests ended.
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

// failed formats a failure's count, code and message.
func failed(f measure.Failure) string {
	text := fmt.Sprintf("%s, %s", f.Code, Count(f.Count, "request", "requests"))
	if f.Example == "" {
		return text
	}
	if f.Count > 1 {
		text += ", the first"
	}
	return text + ": " + f.Example
}

// objective formats one term of an SLO with its measurement.
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
	case o.Measured == nil: // a report from before reasons were recorded
		return text + ": too few samples"
	}
	text += ": " + duration(*o.Measured)
	if o.CI != nil {
		text += " (95% interval " + number(o.CI[0]) + " to " + number(o.CI[1]) + ")"
	}
	switch {
	case !o.Met:
		return text + ", NOT met"
	case o.Confirmed:
		return text + ", met, with its whole interval"
	case o.CI != nil:
		return text + ", met, but its interval is not: another run may miss it"
	case o.NeedsRequests > 0:
		return text + ", met by this run; neighbouring requests are alike, so it takes a longer run to confirm it"
	}
	return text + ", met by this run"
}

// sendDifference describes what measuring from the send would hide; empty if negligible.
func sendDifference(s *measure.Summary) string {
	for _, p := range []int{3, 2, 1, 0} { // p99, or the next lower one available
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
	if r.Simulation != nil { // there was no client
		t.line("", "tandem %s; %s", r.Version, r.Began.UTC().Format("2006-01-02 15:04:05 UTC"))
		return
	}
	machine := fmt.Sprintf("client on %s, %s, %s", r.Host.CPU, Count(r.Host.Cores, "core", "cores"), r.Host.OS)
	if r.Host.Memory > 0 {
		machine += fmt.Sprintf(", %s GiB", number(float64(r.Host.Memory)/(1<<30)))
	}
	t.line("", "%s; tandem %s; %s", machine, r.Version, r.Began.UTC().Format("2006-01-02 15:04:05 UTC"))
}

// WriteDefinitions writes the definition of each figure and its name in other tools, for
// a terminal of width columns.
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
