package compare

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/report"
)

// offeredApart is how far apart offered rates may be before latencies at them are not
// the same question.
const offeredApart = 0.05

// warnings are the reasons for which two reports may not be comparable.
func warnings(a, b *report.Report) []string {
	var all []string
	warn := func(differ bool, format string, args ...any) {
		if differ {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	warn(a.Schema != b.Schema, "the reports' formats differ: %s and %s", a.Schema, b.Schema)
	warn(a.Target.Kind != b.Target.Kind, "the servers speak different protocols: %s and %s", a.Target.Kind, b.Target.Kind)
	warn(a.Target.Model != b.Target.Model, "the models differ: %s and %s", a.Target.Model, b.Target.Model)
	warn(!slices.Equal(a.Workload, b.Workload), "the workloads differ: %q and %q", a.Workload, b.Workload)
	warn(a.SLO != b.SLO, "the objectives differ: %q and %q; goodput and attainment are not comparable", a.SLO, b.SLO)
	warn(a.Host.CPU != b.Host.CPU || a.Host.Cores != b.Host.Cores, "the clients' machines differ: %s with %d cores and %s with %d",
		a.Host.CPU, a.Host.Cores, b.Host.CPU, b.Host.Cores)
	warn((a.Search == nil) != (b.Search == nil), "one report is a search over rates, the other is not; the figures of the step that stands for it are compared")
	warn((a.Concurrency > 0) != (b.Concurrency > 0), "one load was closed loop, the other open")
	warn(a.Concurrency != b.Concurrency && a.Concurrency > 0 && b.Concurrency > 0, "the numbers of requests in flight differ: %d and %d", a.Concurrency, b.Concurrency)
	warn((a.Search == nil || b.Search == nil) && math.Abs(a.OfferedRPS-b.OfferedRPS) > offeredApart*max(a.OfferedRPS, b.OfferedRPS),
		"the offered rates differ: %.4g and %.4g requests/s", a.OfferedRPS, b.OfferedRPS)
	for _, r := range []*report.Report{a, b} {
		warn(r.Interrupted, "%q was interrupted", name(r))
		warn(r.Client.Bottleneck != "", "in %q the client was the bottleneck: %s", name(r), r.Client.Bottleneck)
	}
	return all
}
