package report

import (
	"cmp"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// New makes a report without figures: how it came about, and on which machine. began is the
// wall clock's time, target what was measured, workload in one line each what was sent and
// when. Follow it with SetRun or SetSearch. The caller gives it its Name, Version and Command.
func New(began time.Time, target client.Description, workload []string) *Report {
	return &Report{Schema: Schema, Began: began, Host: ThisHost(), Target: target, Workload: workload}
}

// SetRun gives the report its only run. Interrupted, if so, is set before.
func (r *Report) SetRun(f Figures) {
	r.Figures = f
	r.warnOf(f)
}

// SetSearch gives the report a search and all its runs, in any order. The run that
// stands for it is that of the highest rate that passed, otherwise the first.
// Interrupted, if so, is set before.
func (r *Report) SetSearch(result search.Result, runs []Figures) {
	result.Steps = slices.Clone(result.Steps)
	for i, step := range result.Steps {
		if step.Summary == nil { // it could not be run
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
	for _, f := range r.Runs {
		if result.MaxRate != nil && f.Rate == *result.MaxRate {
			r.Figures = f
		}
	}
	r.warnOf(r.Runs...)
}

// Warn adds what a reader of the figures must know, once.
func (r *Report) Warn(text string) {
	if !slices.Contains(r.Warnings, text) {
		r.Warnings = append(r.Warnings, text)
	}
}

// warnOf warns of what some of the runs have, each matter once.
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
			r.Warn("at " + rates[0] + " requests/s: " + text(last))
		default:
			r.Warn("at " + strings.Join(rates, ", ") + " requests/s; at the last of them: " + text(last))
		}
	}
	r.warnOfClient(runs)
	warn(func(f Figures) bool { return f.Unsent > 0 }, func(f Figures) string {
		return count(f.Unsent, "request was", "requests were") + " due but never sent; the latencies leave them out"
	})
	ended := "the drain timeout ended"
	if r.Interrupted {
		ended = "the run was interrupted"
	}
	warn(func(f Figures) bool { return f.Cancelled > 0 }, func(f Figures) string {
		return count(f.Cancelled, "request", "requests") + " still ran when " + ended + ": percentiles near the top are lower bounds"
	})
}

// warnOfClient warns of runs that the client's side limited. A search says at each step
// what it was, so the warning does not.
func (r *Report) warnOfClient(runs []Figures) {
	var rates []string
	for _, f := range runs {
		if f.Client.Bottleneck != "" && !slices.Contains(rates, number(f.Rate)) {
			rates = append(rates, number(f.Rate))
		}
	}
	switch {
	case len(rates) == 0:
	case r.Search == nil:
		r.Warn(clientLimit + ", so these figures are not the server's and there is no verdict: " + runs[0].Client.Bottleneck)
	default:
		r.Warn("at " + strings.Join(rates, ", ") + " requests/s " + clientLimit + ", so there is no verdict on the server there")
	}
}

// clientLimit is what is said of a run that the server did not limit.
const clientLimit = "the client was the bottleneck"

// ThisHost describes the machine that runs this process. What it cannot find out is
// left empty.
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
