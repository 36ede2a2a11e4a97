// Package overload measures what a mesh does with more than it can serve: how much of its goodput
// it keeps, how soon it refuses the rest, whether it is fair to long requests, and how soon
// latencies are as before once the load has gone.
//
// The command line imports it. Its goroutines are those of package loadtest.
package overload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/loadtest/workload"
)

// Result is what `bench overload` measured.
type Result struct {
	// CapacityRPS is the highest rate found that is stable and meets the SLO, requests per second,
	// and GoodputRPS how many of them met it each second. Both are nil if it was Interrupted before.
	CapacityRPS *float64 `json:"capacity_rps"`
	GoodputRPS  *float64 `json:"goodput_rps"`
	SLO         string   `json:"slo"`
	Steps       []Step   `json:"steps"`
	// RecoveryMs is how long after a burst of the largest Times the first second began in which
	// latencies were as before it: in none of its quarters were more than half of the requests refused,
	// or later with their first token than nine in ten were before the burst. Quarters in which few
	// requests were due are judged together. Nil if it was not measured, or there was no such second.
	RecoveryMs *float64 `json:"recovery_ms"`
	// RecoveryUnknown says why RecoveryMs is nil; it may be empty if Interrupted.
	RecoveryUnknown string `json:"recovery_unknown,omitempty"`
	// WorseBefore and WorseAfter are the shares of such parts before the burst, and after the recovery,
	// that were not so. Where more are after it, latencies did not stay as before.
	WorseBefore float64 `json:"worse_before"`
	WorseAfter  float64 `json:"worse_after"`
	// Interrupted: Ctrl-C ended it early.
	Interrupted bool `json:"interrupted,omitempty"`
}

// Step is the measurement at so many times the capacity.
type Step struct {
	Times float64 `json:"times"`
	// OfferedRPS and GoodputRPS are requests per second, and GoodputOfCapacity is the goodput over
	// that at capacity; nil: the step could not run.
	OfferedRPS        *float64 `json:"offered_rps"`
	GoodputRPS        *float64 `json:"goodput_rps"`
	GoodputOfCapacity *float64 `json:"goodput_of_capacity"`
	// RefuseMsP99 is how long refusals took from when they were sent; nil: there were too few for a p99.
	RefuseMsP99 *float64 `json:"refuse_ms_p99"`
	// AdmittedByLengthQuartile is the share of requests that were not refused, from the shortest
	// quarter to the longest, by what they asked for; nil: all asked for as much.
	AdmittedByLengthQuartile *[4]float64 `json:"admitted_by_length_quartile"`
	// Client says why the client's side limited the step, or why it could not run; empty: neither.
	Client string `json:"client,omitempty"`
}

const (
	// steady is the share of the capacity that is offered before and after the burst.
	steady = 0.5
	// burst is how long it lasts, and calm how long the steady load before it and after it.
	burst, calm = 5 * time.Second, 10 * time.Second
	// leastWarmup is how long the steady load lasts before that, at least: routers do some things in
	// another way for ten seconds after refusals.
	leastWarmup = 15 * time.Second
)

// Run finds the capacity and offers multiples of it, in order. config has an SLO, and neither
// rate nor search.
func Run(ctx context.Context, config loadtest.Config, server client.Client, times []float64, progress loadtest.Progress) (*Result, error) {
	found, next, err := capacity(ctx, config, server, progress)
	if err != nil || found.Interrupted {
		return found, err
	}
	config.FirstStep = next
	session, err := loadtest.NewSession(ctx, config, server, progress)
	if err != nil {
		return nil, err
	}
	for _, n := range times {
		figures, err := session.Step(ctx, fmt.Sprintf("%g times the capacity", n), n**found.CapacityRPS)
		if err != nil { // what was measured before remains
			found.Steps = append(found.Steps, Step{Times: n, Client: err.Error()})
			continue
		}
		found.Steps = append(found.Steps, stepOf(n, *found.GoodputRPS, &figures, session.Last()))
		if found.Interrupted = session.Last().Interrupted || ctx.Err() != nil; found.Interrupted {
			return found, nil
		}
	}
	config.FirstStep = session.NextStep()
	if err := found.recover(ctx, config, server, slices.Max(times), progress); err != nil {
		found.RecoveryUnknown, found.Interrupted = err.Error(), ctx.Err() != nil
	}
	return found, nil
}

// capacity searches for the highest rate that is stable and meets the SLO. next is the FirstStep of what is
// measured after it.
func capacity(ctx context.Context, config loadtest.Config, server client.Client, progress loadtest.Progress) (found *Result, next int, err error) {
	config.FindMax = true
	out, err := loadtest.Run(ctx, config, server, progress)
	if err != nil {
		return nil, 0, err
	}
	found = &Result{SLO: out.Report.SLO, Interrupted: out.Report.Interrupted, Steps: []Step{}}
	if found.Interrupted {
		return found, out.NextStep, nil
	}
	s := out.Report.Search
	if s == nil || s.MaxRate == nil {
		return nil, 0, errors.New("no rate was found that is stable and meets the SLO: ask for less with --slo, or see 'tandem bench serve --find-max'")
	}
	found.CapacityRPS, found.GoodputRPS = s.MaxRate, &out.Report.Goodput // whose figures are of this rate
	return found, out.NextStep, nil
}

// stepOf is what a run at so many times the capacity showed.
func stepOf(times, goodput float64, f *report.Figures, run *record.Run) Step {
	s := Step{Times: times, OfferedRPS: &f.OfferedRPS, GoodputRPS: &f.Goodput, Client: f.Limit()}
	if goodput > 0 {
		s.GoodputOfCapacity = new(f.Goodput / goodput)
	}
	due := slices.Collect(run.Window())
	s.RefuseMsP99, s.AdmittedByLengthQuartile = refuseP99(due), admitted(due)
	return s
}

func refuseP99(records []*record.Record) *float64 {
	var took []time.Duration
	for _, r := range records {
		if r.Outcome == record.Rejected {
			took = append(took, r.End-r.Dispatched)
		}
	}
	if int64(len(took)) < stats.QuantileNeeds(.99) {
		return nil
	}
	return milliseconds(stats.QuantileOf(took, .99))
}

func milliseconds(d time.Duration) *float64 { return new(stats.Milliseconds(d)) }

// admitted is the share that was not refused of each quarter by length; nil: all have one length.
func admitted(records []*record.Record) *[4]float64 {
	byLength := slices.Clone(records)
	slices.SortStableFunc(byLength, func(a, b *record.Record) int { return a.Asked - b.Asked })
	if len(byLength) == 0 || byLength[0].Asked == byLength[len(byLength)-1].Asked {
		return nil
	}
	var shares [4]float64
	for i := range shares {
		quarter := byLength[i*len(byLength)/len(shares) : (i+1)*len(byLength)/len(shares)]
		n := 0
		for _, r := range quarter {
			if r.Outcome != record.Rejected && r.Outcome != record.Unsent {
				n++
			}
		}
		shares[i] = float64(n) / float64(max(len(quarter), 1))
	}
	return &shares
}

// recover measures how soon latencies are as they were after a burst.
func (r *Result) recover(ctx context.Context, config loadtest.Config, server client.Client, times float64, progress loadtest.Progress) error {
	config.Warmup, config.WarmupSet = max(config.Warmup, leastWarmup), true
	began := config.Warmup + calm
	if err := config.Workload.AddSurge(workload.Surge{At: began, For: burst, Factor: times / steady}); err != nil {
		return err
	}
	config.Duration, config.DurationSet, config.MinRequests = 2*calm+burst, true, 0
	session, err := loadtest.NewSession(ctx, config, server, progress)
	if err != nil {
		return err
	}
	figures, err := session.Step(ctx, fmt.Sprintf("a burst of %g times the capacity", times), steady**r.CapacityRPS)
	if err != nil {
		return err
	}
	run, ended := session.Last(), began+burst
	records := slices.Collect(run.Window())
	r.Interrupted, r.RecoveryUnknown = run.Interrupted, figures.Limit()
	// How late the requests of the burst are tells nothing of the others.
	others := slices.DeleteFunc(slices.Clone(records), func(r *record.Record) bool { return r.Due >= began && r.Due < ended })
	if run.Client.LateAlone && !drive.SentLate(others) {
		r.RecoveryUnknown = ""
	}
	if !r.Interrupted && r.RecoveryUnknown == "" {
		r.recovered(records, began, ended)
	}
	return nil
}

const (
	// quarter is the part of the time that is judged at once, and tolerated the share of its requests
	// that may be worse than nine in ten before the burst.
	quarter   = 250 * time.Millisecond
	tolerated = 0.5
	// leastJudged is how many requests that takes: one alone is worse now and then at any load. Where fewer
	// were due, the quarters of up to a second are judged together.
	leastJudged = 4
	// inARow is how many quarters in a row are as before where latencies are: one alone is worse now
	// and then at any load, since requests of one moment wait for each other.
	inARow = int(time.Second / quarter)
)

// part is some quarters that are judged together.
type part struct{ quarters, requests, late int }

func (p part) known() bool { return p.requests >= leastJudged }
func (p part) worse() bool { return float64(p.late) > tolerated*float64(p.requests) }

// parts divides a time. Requests are late that were not served, or later than usual.
func parts(records []*record.Record, from, to, usual time.Duration) (all []part) {
	quarters := make([]part, max((to-from)/quarter, 0))
	for _, r := range records {
		at := int((r.Due - from) / quarter)
		if r.Due < from || at >= len(quarters) {
			continue
		}
		quarters[at].requests++
		if r.Outcome != record.Completed || r.First()-r.Due > usual {
			quarters[at].late++
		}
	}
	for i, q := range quarters {
		if i == 0 || all[len(all)-1].known() || all[len(all)-1].quarters == inARow {
			all = append(all, part{})
		}
		last := &all[len(all)-1]
		*last = part{last.quarters + 1, last.requests + q.requests, last.late + q.late}
	}
	return all
}

// calmed is how many quarters passed until a second in which no part is bad; false: there is none.
func calmed(all []part, bad func(part) bool) (quarters int, is bool) {
	passed, good := 0, 0
	for _, p := range all {
		passed, good = passed+p.quarters, good+p.quarters
		if bad(p) {
			good = 0
		}
		if good >= inARow {
			return passed - good, true
		}
	}
	return passed, false
}

// recovered takes in what came of requests before and after a burst, if enough came to tell.
func (r *Result) recovered(records []*record.Record, began, ended time.Duration) {
	var before []time.Duration
	for _, r := range records {
		if r.Due < began && r.Outcome == record.Completed {
			before = append(before, r.First()-r.Due)
		}
	}
	if len(before) == 0 {
		r.RecoveryUnknown = "no request before the burst was completed"
		return
	}
	usual := stats.QuantileOf(before, 0.9)
	after := parts(records, ended, ended+calm, usual)
	quarters, is := calmed(after, func(p part) bool { return !p.known() || p.worse() })
	if !is {
		r.RecoveryUnknown = fmt.Sprintf("latencies were not as before within %v", calm)
		if _, perhaps := calmed(after, part.worse); perhaps {
			r.RecoveryUnknown = fmt.Sprintf("there was no second after the burst in which enough requests were due to tell: it takes %d, at half of the capacity", leastJudged)
		}
		return
	}
	r.RecoveryMs = milliseconds(time.Duration(quarters) * quarter)
	r.WorseBefore, r.WorseAfter = share(parts(records, began-calm, began, usual), 0), share(after, quarters)
}

// share is how many of the parts that can be judged are worse, from so many quarters on.
func share(all []part, from int) float64 {
	n, worse, passed := 0, 0, 0
	for _, p := range all {
		if passed >= from && p.known() {
			n++
			if p.worse() {
				worse++
			}
		}
		passed += p.quarters
	}
	return float64(worse) / float64(max(n, 1))
}
