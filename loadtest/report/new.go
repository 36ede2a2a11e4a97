package report

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// New returns a report without figures. began is the wall-clock time, target the server,
// and workload describes the load, one item per line. Follow it with SetRun or SetSearch.
// The caller sets Name, Version and Command.
func New(began time.Time, target client.Description, workload []string) *Report {
	return &Report{Schema: Schema, Began: began, Host: ThisHost(), Target: target, Workload: workload}
}

// SetRun sets the report's only run. Set Interrupted before, if it applies.
func (r *Report) SetRun(f Figures) {
	r.Figures = f
	r.warnOf(f)
}

// SetSearch sets the report's search with its runs, in any order. The representative run
// is that of the search's MaxRate, otherwise of the lowest rate that is decided, otherwise
// the first. Set Interrupted before, if it applies.
func (r *Report) SetSearch(result search.Result, runs []Figures) {
	result.Steps = slices.Clone(result.Steps)
	for i, step := range result.Steps {
		if step.Summary == nil { // it could not run
			result.Steps[i].Summary = &measure.Summary{Verdict: measure.None, Reason: step.Why}
			complete(result.Steps[i].Summary)
		}
	}
	r.Search = &result
	r.Runs = slices.Clone(runs)
	slices.SortStableFunc(r.Runs, func(a, b Figures) int { return cmp.Compare(a.Rate, b.Rate) })
	if len(r.Runs) > 0 {
		r.Figures = r.Runs[0]
	}
	rate := result.MaxRate
	if i := slices.IndexFunc(result.Steps, func(s search.Step) bool { return !s.Unknown }); rate == nil && i >= 0 {
		rate = &result.Steps[i].Rate
	}
	if rate != nil {
		if f, ran := r.At(*rate); ran {
			r.Figures = f
		}
	}
	r.warnOf(r.Runs...)
}

// At is the last run of a search at a rate with a verdict on the server, otherwise the last; false if
// there is none.
func (r *Report) At(rate float64) (last Figures, ran bool) {
	judged := false
	for _, f := range r.Runs {
		if f.Rate != rate {
			continue
		}
		verdict := f.Limit() == "" && f.Verdict != measure.None
		if verdict || !judged {
			last, ran, judged = f, true, verdict
		}
	}
	return last, ran
}

// Warn adds a warning, once.
func (r *Report) Warn(text string) {
	if !slices.Contains(r.Warnings, text) {
		r.Warnings = append(r.Warnings, text)
	}
}

// warnOf adds warnings about runs, each once.
func (r *Report) warnOf(runs ...Figures) {
	warn := func(has func(Figures) bool, text func(Figures) string) {
		var rates []string
		var last Figures
		for _, f := range runs {
			if has(f) {
				rates, last = append(rates, number(f.Rate)), f
			}
		}
		switch {
		case len(rates) == 0:
		case len(runs) == 1:
			r.Warn(text(last))
		case len(rates) == 1:
			r.Warn("at " + rates[0] + "/s: " + text(last))
		default:
			r.Warn("at " + strings.Join(rates, ", ") + " requests/s; at the last of them: " + text(last))
		}
	}
	r.warnOfClient(runs)
	warn(func(f Figures) bool { return f.Unsent > 0 }, func(f Figures) string {
		return Count(f.Unsent, "request was", "requests were") + " due but never sent; the latencies leave them out"
	})
	ended := "the drain timeout ended"
	if r.Interrupted {
		ended = "the run was interrupted"
	}
	warn(func(f Figures) bool { return f.Cancelled > 0 }, func(f Figures) string {
		return Count(f.Cancelled, "request", "requests") + " still ran when " + ended + ": percentiles near the top are lower bounds"
	})
	warn(ratesTooLow, func(f Figures) string {
		return fmt.Sprintf("half of the answers took longer than the warm-up (%s and %s): completed requests/s, goodput and output tokens/s are too low, since few answers end at the beginning of the window; pass --warmup %.0fs",
			duration(*f.E2E.P50), duration(1000*f.WarmupS), math.Ceil(*f.E2E.Max/1000))
	})
}

// ratesTooLow reports whether the window begins before as many answers end as later, and is too
// short for that not to matter. In overload answers are long because they wait, and end as often
// as the server can.
func ratesTooLow(f Figures) bool {
	return f.E2E != nil && f.E2E.P50 != nil && f.E2E.Max != nil && *f.E2E.P50 > 1000*f.WarmupS && f.WindowS < f.WindowNeeded().Seconds() &&
		f.Verdict != measure.Overloaded && f.Verdict != measure.Backlogged && !f.NoneEnded()
}

// warnOfClient warns about runs that the client limited. A search explains each step
// itself.
func (r *Report) warnOfClient(runs []Figures) {
	var rates, culprits []string
	for _, f := range runs {
		if f.Limit() != "" && !slices.Contains(rates, number(f.Rate)) {
			rates, culprits = append(rates, number(f.Rate)), append(culprits, record.Culprit(f.Limit()))
		}
	}
	slices.Sort(culprits)
	switch {
	case len(rates) == 0:
	case r.Search == nil:
		r.Warn("these figures are not the server's, and there is no verdict: " + record.Explain(runs[0].Limit()))
	default:
		r.Warn("there is no verdict on the server at " + strings.Join(rates, ", ") + " requests/s: " + strings.Join(slices.Compact(culprits), " or "))
	}
}

// ThisHost describes the machine of this process, as far as known.
func ThisHost() Host {
	h := Host{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		h.CPU = field(string(text), "model name")
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		kib, _ := strings.CutSuffix(field(string(text), "MemTotal"), " kB")
		if n, err := strconv.ParseInt(kib, 10, 64); err == nil {
			h.Memory = n << 10
		}
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		h.OS += " " + strings.TrimSpace(string(text))
	}
	return h
}

// field is the value of the first line "key : value".
func field(text, key string) string {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
