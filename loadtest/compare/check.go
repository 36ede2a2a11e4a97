package compare

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
)

// Check reports why reports a and b cannot be compared: one of them measured nothing, or
// they are searches without a common figure. Without it, a regression gate would pass
// when the server is down.
func Check(a, b *report.Report) error {
	searches := a.Search != nil && b.Search != nil
	for _, side := range []struct {
		name string
		*report.Report
	}{{"BEFORE", a}, {"AFTER", b}} {
		if why, ok := empty(side.Report, searches); ok {
			return fmt.Errorf("%s holds no completed requests: nothing to compare%s", side.name, why)
		}
	}
	if searches && len(Reports(a, b, Options{}).Changes) == 0 {
		return errors.New("the two searches have no rate in common and neither found a highest one: nothing to compare; sweep the same rates in both")
	}
	return nil
}

// empty reports whether no compared request completed, and what happened instead.
func empty(r *report.Report, searches bool) (why string, ok bool) {
	all := []*measure.Summary{&r.Summary}
	if searches {
		for i := range r.Runs {
			all = append(all, &r.Runs[i].Summary)
		}
		for _, step := range r.Search.Steps {
			all = append(all, step.Summary)
		}
	}
	for _, s := range all {
		if s != nil && s.Completed > 0 {
			return "", false
		}
	}
	var parts []string
	for _, part := range []struct {
		n    int
		what string
	}{
		{r.Rejected, "rejected"}, {r.Errors, "failed"}, {r.TimedOut, "timed out"}, {r.Cancelled, "cancelled"}, {r.Unsent, "never sent"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", part.n, part.what))
		}
	}
	if len(parts) > 0 {
		why = fmt.Sprintf(" (of %d requests %s)", r.Requests, strings.Join(parts, ", "))
	}
	if r.Interrupted {
		why += " (the run was interrupted)"
	}
	return why, true
}

// offeredApart is the relative difference of offered rates above which latencies are not
// comparable.
const offeredApart = 0.05

// chance begins the lines of a workload that may differ between equal ones: the seed, which is drawn if none is
// given, and how long a search sent each rate.
var chance = []string{"seed: ", "each rate was sent for "}

// linesWithout are the lines of a workload that another lacks.
func linesWithout(lines, others []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return slices.Contains(others, line) || slices.ContainsFunc(chance, func(begin string) bool { return strings.HasPrefix(line, begin) })
	})
}

// warnings are reasons why two reports may not be comparable.
func warnings(a, b *report.Report) []string {
	var all []string
	warn := func(differ bool, format string, args ...any) {
		if differ {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	warn(a.Schema != b.Schema, "the reports' formats differ: %s and %s", a.Schema, b.Schema)
	warn((a.Simulation == nil) != (b.Simulation == nil), "one report is simulated, the other measured")
	warn(a.Simulation == nil && b.Simulation == nil && a.Target.Kind != b.Target.Kind, "the servers speak different protocols: %s and %s", a.Target.Kind, b.Target.Kind)
	warn(a.Target.Model != b.Target.Model, "the models differ: %s and %s", a.Target.Model, b.Target.Model)
	onlyA, onlyB := linesWithout(a.Workload, b.Workload), linesWithout(b.Workload, a.Workload)
	warn(len(onlyA)+len(onlyB) > 0, "the workloads differ: %q and %q", onlyA, onlyB)
	warn(a.SLO != b.SLO, "the objectives differ: %q and %q; goodput and attainment are not comparable", a.SLO, b.SLO)
	warn(a.Simulation == nil && b.Simulation == nil && (a.Host.CPU != b.Host.CPU || a.Host.Cores != b.Host.Cores), "the clients' machines differ: %s with %d cores and %s with %d",
		a.Host.CPU, a.Host.Cores, b.Host.CPU, b.Host.Cores)
	warn((a.Search == nil) != (b.Search == nil), "one report is a search over rates, the other is not; the figures of the step that stands for it are compared")
	warn((a.Concurrency > 0) != (b.Concurrency > 0), "one load was closed loop, the other open")
	warn(a.Concurrency != b.Concurrency && a.Concurrency > 0 && b.Concurrency > 0, "the numbers of requests in flight differ: %d and %d", a.Concurrency, b.Concurrency)
	warn((a.Search == nil || b.Search == nil) && math.Abs(a.OfferedRPS-b.OfferedRPS) > offeredApart*max(a.OfferedRPS, b.OfferedRPS),
		"the offered rates differ: %.4g and %.4g requests/s", a.OfferedRPS, b.OfferedRPS)
	for _, r := range []*report.Report{a, b} {
		warn(r.Interrupted, "%q was interrupted", name(r))
		warn(r.Limit() != "", "in %q %s", name(r), record.Explain(r.Limit()))
	}
	return all
}
