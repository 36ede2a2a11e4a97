package measure

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/record"
)

// Parameters of the verdict. verdict_test.go measures their error rates on simulated
// queues.
const (
	// batches of the window are regressed on time: enough to see a trend, each long
	// compared with the correlation time of a healthy queue.
	batches = 10
	// studentT8 is the 97.5% quantile of Student's t with batches-2 degrees of freedom.
	studentT8 = 2.306
	// minSamples of the backlog and MinRequests are the least that a verdict takes.
	minSamples  = 2 * batches
	MinRequests = 2 * batches
	// failing is the share of requests that a server may not serve for want of
	// capacity and still count as keeping up.
	failing = 0.01
	// material is the growth, as a share of the offered rate, below which it does not
	// matter. inStep is the share of the backlog's variance that a line must explain for
	// growth in step with time. absorbed is the share of its peak to which a burst's
	// backlog must fall.
	material = 0.01
	inStep   = 0.7
	absorbed = 0.7
	// large is the growth, as a share of the offered rate, that counts even if its
	// interval is too wide to be sure: short runs have wide ones, and calling them stable
	// would be the worse mistake. It must be at least largeLeast requests.
	large      = 0.05
	largeLeast = 20
)

// faults are codes that blame the request itself, not the load.
var faults = []string{"INVALID_ARGUMENT", "InvalidArgument", "UNAUTHENTICATED", "Unauthenticated",
	"PERMISSION_DENIED", "PermissionDenied", "NOT_FOUND", "NotFound", "UNIMPLEMENTED", "Unimplemented",
	"FAILED_PRECONDITION", "FailedPrecondition", "OUT_OF_RANGE", "OutOfRange",
	"HTTP 400", "HTTP 401", "HTTP 403", "HTTP 404", "HTTP 405", "HTTP 413", "HTTP 415", "HTTP 422"}

// unserved says how many requests were not served.
func unserved(s *Summary, share float64) string {
	if s.TenantShare() > 0 {
		return fmt.Sprintf("%.1f%% of the requests were not served: the router refused %d because their tenant had as many as it may", 100*share, s.TenantLimited)
	}
	return fmt.Sprintf("%.1f%% of the requests were not served: %d rejected, %d failed, %d timed out, %d not sent", 100*share, s.Rejected, s.Errors, s.TimedOut, s.Unsent)
}

// verdict returns the verdict and its reason, and sets the backlog's slope.
func verdict(run *record.Run, s *Summary) (Verdict, string) {
	trend, seen := backlog(run, s)
	s.BacklogSlope, s.BacklogSlopeCI = trend.slope, trend.ci
	if run.Client.Bottleneck != "" && s.TenantShare() == 0 {
		return None, record.Explain(run.Client.Bottleneck)
	}
	if s.Requests == 0 && run.Interrupted && run.To <= run.From {
		return None, fmt.Sprintf("interrupted during the warm-up of %v", run.From)
	}
	if s.Requests == 0 {
		return None, "no request was due in the window; make it longer or raise the rate"
	}
	n := float64(s.Requests)
	wrong, most := 0, ""
	for _, code := range faults {
		wrong += s.Codes[code]
		if s.Codes[code] > s.Codes[most] {
			most = code
		}
	}
	refused := s.Rejected + s.Errors + s.TimedOut + s.Unsent - wrong
	if share := float64(refused) / n; share > failing && refused > 1 {
		return Overloaded, unserved(s, share)
	}
	if share := float64(wrong) / n; share > failing {
		return None, fmt.Sprintf("%.1f%% of the requests were refused as invalid (%s); correct the workload", 100*share, most)
	}
	if run.Concurrency > 0 {
		return None, "closed loop: the clients wait for the server, so it cannot fall behind"
	}
	if s.Requests < MinRequests {
		return None, fmt.Sprintf("too few requests to see a trend: %d of the %d that it takes", s.Requests, MinRequests)
	}
	if yes, took := unfinished(run); yes {
		return Overloaded, fmt.Sprintf("%d of %d requests had not ended %v after the last was due; the first took at most %v", s.Cancelled, s.Requests,
			(run.Drained - run.To).Round(time.Millisecond), took.Round(time.Millisecond))
	}
	if seen != "" {
		return None, seen
	}
	percent := 100 * trend.slope / s.OfferedRPS
	grew := trend.ci[0] > 0 && trend.slope > material*s.OfferedRPS && trend.slower
	growth := fmt.Sprintf("%+.3g requests/s (95%% interval %+.3g to %+.3g), %+.1f%% of the offered rate", trend.slope, trend.ci[0], trend.ci[1], percent)
	level := "the backlog stayed level: "
	switch {
	case trend.ci[1] < 0 && trend.slope < -material*s.OfferedRPS:
		level = "the backlog fell: "
	case math.Abs(trend.slope) > large*s.OfferedRPS:
		level = "the backlog varied, but did not grow for sure: "
	}
	switch {
	case grew && trend.fit >= inStep && trend.end >= absorbed*trend.peak:
		return Overloaded, "the backlog grew steadily: " + growth
	case trend.slope > large*s.OfferedRPS && trend.slope*(run.To-run.From).Seconds() > largeLeast && trend.slower && trend.end >= absorbed*trend.peak:
		return Backlogged, "the backlog grew: " + growth + fmt.Sprintf("; %.0f requests waited at the end: a longer run would say more", trend.end)
	case grew:
		return Backlogged, "the backlog grew, but not steadily: " + growth + fmt.Sprintf("; %.0f at its peak, %.0f at the end", trend.peak, trend.end)
	case trend.end > 2*trend.usual+3*math.Sqrt(trend.usual)+3 && trend.end >= absorbed*trend.peak:
		return Backlogged, fmt.Sprintf("%.0f requests waited at the end, %.0f usually: a burst that was not worked off", trend.end, trend.usual)
	case run.Interrupted: // what was seen until then was no sign of trouble
		return None, fmt.Sprintf("interrupted after %.0f s; until then the backlog changed by %s", run.To.Seconds(), growth)
	case trend.peak > 2*trend.usual+3*math.Sqrt(trend.usual)+3:
		return Stable, level + growth + fmt.Sprintf("; a burst of %.0f was worked off", trend.peak)
	}
	return Stable, level + growth
}

// trend is the course of the number of requests due but not ended.
type trend struct {
	slope float64 // requests a second
	ci    [2]float64
	// fit is the share of the batches' variance that the line explains.
	fit float64
	// slower: the waiting time implied by the backlog grew too, so the cause is not just
	// more load late in the run.
	slower bool
	// usual is the median over batches, peak the maximum, end the last.
	usual, peak, end float64
}

// backlog fits a line to the window's backlog, after the time of the first requests,
// during which it grows on any server. The second result says why no line could be
// fitted.
func backlog(run *record.Run, s *Summary) (trend, string) {
	took, _ := filled(run)
	from := max(run.From, took)
	if window := run.To - run.From; run.To-from < window/2 {
		needs := s.WindowNeeded()
		if needs == 0 {
			needs = windowTimes * from
		}
		return trend{}, fmt.Sprintf("the window of %v is too short for requests that take %v; let it last at least %.0f s",
			window.Round(time.Millisecond), from.Round(time.Millisecond), math.Ceil(needs.Seconds()))
	}
	var level, offered, waits [batches]float64
	var count, starts, ends [batches]int
	samples, width := 0, (run.To-from)/batches+1
	for _, sample := range run.Samples {
		if sample.At < from || sample.At > run.To {
			continue
		}
		b := int((sample.At - from) / width)
		if count[b] == 0 {
			starts[b] = sample.Due
		}
		ends[b] = sample.Due
		level[b] += float64(sample.Due - sample.Ended)
		count[b]++
		samples++
	}
	if samples < minSamples || slices.Min(count[:]) == 0 {
		return trend{}, fmt.Sprintf("the window of %v is too short to see a trend; let it last at least 10s", (run.To - run.From).Round(time.Millisecond))
	}
	for b := range level {
		level[b] /= float64(count[b])
		next := ends[b]
		if b+1 < batches {
			next = starts[b+1]
		}
		offered[b] = float64(next - starts[b])
	}
	mean := 0.0
	for _, v := range offered {
		mean += v / batches
	}
	for b := range waits {
		// The level is divided by recent arrivals, so that a batch with few of them by
		// chance does not look slow.
		waits[b] = level[b] / max((offered[b]+offered[max(b-1, 0)])/2, mean/4, 1e-9)
	}
	line, longer := fit(level, width.Seconds()), fit(waits, width.Seconds())
	sorted := slices.Sorted(slices.Values(level[:]))
	line.usual, line.peak, line.end = (sorted[batches/2-1]+sorted[batches/2])/2, sorted[batches-1], level[batches-1]
	line.slower = longer.slope > 0 && (longer.ci[0] > 0 || steady(offered))
	return line, ""
}

// steady reports whether requests arrived at a constant rate: the last third of the
// window had no more than a Poisson process might.
func steady(offered [batches]float64) bool {
	first, last := 0.0, 0.0
	for b := range batches / 2 {
		first += offered[b]
		last += offered[batches-1-b]
	}
	return last-first <= 3*math.Sqrt(first+last)
}

// filled is the time it took to complete the first ten requests. whole reports whether
// there were ten.
func filled(run *record.Run) (took time.Duration, whole bool) {
	const first = 10
	n := 0
	for _, r := range run.Records {
		if r.Outcome != record.Completed {
			continue
		}
		took = max(took, between(r.Due, r.End))
		if n++; n == first {
			break
		}
	}
	return took, n == first
}

// patience are the multiples of the first requests' time after which an unfinished
// request counts, with the share of such requests that is too many: a few may take
// longer, but few much longer.
var patience = []struct{ times, share float64 }{{2, failing}, {1, 0.5}}

// unfinished reports whether too many requests of the window were unfinished at the end
// of the run although they had more time than the first ones took. A server that
// time-shares among all accepted requests may complete hardly any when there are too
// many, so that no backlog is seen to grow. If fewer than ten ended, requests may just be
// long.
func unfinished(run *record.Run) (yes bool, took time.Duration) {
	took, whole := filled(run)
	if !whole || run.Interrupted {
		return false, took
	}
	for _, p := range patience {
		n, of := 0, 0
		for r := range run.Window() {
			if float64(run.Drained-r.Due) < p.times*float64(took) {
				continue
			}
			of++
			if r.Outcome == record.Cancelled {
				n++
			}
		}
		if n > 1 && float64(n) > p.share*float64(of) {
			return true, took
		}
	}
	return false, took
}

// fit is the least-squares line through batch means width seconds apart, with a Student's
// t confidence interval. Correlation between batches is modelled as first-order
// autoregression: the variance grows by (1+ρ)/(1-ρ), with ρ of the residuals corrected
// for their number (M. G. Kendall, Note on bias in the estimation of autocorrelation,
// Biometrika 41, 1954).
func fit(y [batches]float64, width float64) trend {
	var mean, xy, xx, yy float64
	const middle = (batches - 1) / 2.0
	for _, v := range y {
		mean += v / batches
	}
	for i, v := range y {
		x := float64(i) - middle
		xx += x * x
		xy += x * (v - mean)
		yy += (v - mean) * (v - mean)
	}
	slope := xy / xx
	var rest, lagged, last float64
	for i, v := range y {
		e := v - mean - slope*(float64(i)-middle)
		rest += e * e
		if i > 0 {
			lagged += e * last
		}
		last = e
	}
	inflation := 1.0
	if rest > 0 {
		rho := lagged / rest
		rho = min(max(rho+(1+4*rho)/batches, 0), 0.8)
		inflation = (1 + rho) / (1 - rho)
	}
	half := studentT8 * math.Sqrt(rest/(batches-2)/xx*inflation)
	t := trend{slope: slope / width, ci: [2]float64{(slope - half) / width, (slope + half) / width}}
	if yy > 0 {
		t.fit = 1 - rest/yy
	}
	return t
}
