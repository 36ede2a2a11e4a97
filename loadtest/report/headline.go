package report

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// Headline summarizes the report in one sentence: what the server sustains, where it
// breaks, and which stage the tail comes from.
func (r *Report) Headline() string {
	var parts []string
	if r.Search != nil {
		parts = r.searched()
	} else {
		parts = r.single()
	}
	text := strings.Join(parts, "; ")
	if r.Interrupted {
		return "Interrupted: " + lower(text) + "."
	}
	return text + "."
}

func lower(text string) string { return strings.ToLower(text[:1]) + text[1:] }

// searched returns the parts of a search's headline.
func (r *Report) searched() []string {
	s := r.Search
	within := ""
	if r.HasSLO() {
		within = " within its SLO"
	}
	failed, undecided := above(s)
	against := contradiction(s)
	missed := failed != nil && r.HasSLO() && failed.Summary.Verdict != measure.Overloaded && failed.Summary.Verdict != measure.Backlogged
	var parts []string
	switch {
	case s.MaxRate != nil && len(undecided) > 0:
		parts = append(parts, "Holds at least "+perSecond(*s.MaxRate)+within)
	case s.MaxRate != nil && failed == nil && s.Breaking == nil:
		parts = append(parts, "Holds "+perSecond(*s.MaxRate)+within+", the highest rate tried")
	case s.MaxRate != nil:
		parts = append(parts, "Holds "+perSecond(*s.MaxRate)+within)
	case failed != nil:
		switch all := len(undecided) == 0 && against == ""; {
		case missed && all:
			parts = append(parts, "Misses its SLO at every rate tried, from "+perSecond(failed.Rate)+" on")
		case missed:
			parts = append(parts, "Misses its SLO at "+perSecond(failed.Rate))
		case all:
			parts = append(parts, "Holds none of the rates tried, from "+perSecond(failed.Rate)+" on")
		default:
			parts = append(parts, "Does not hold "+perSecond(failed.Rate))
		}
	case len(undecided) == 0:
		return []string{"No rate was measured"}
	}
	if len(undecided) > 0 {
		parts = append(parts, undecidedText(undecided))
	}
	if failed != nil && s.MaxRate != nil && (s.Breaking == nil || failed.Rate < *s.Breaking) {
		what := "does not hold "
		if missed {
			what = "misses the SLO at "
		}
		parts = append(parts, what+perSecond(failed.Rate))
	}
	if s.Breaking != nil && (s.MaxRate == nil || *s.Breaking > *s.MaxRate) {
		parts = append(parts, "breaks at "+perSecond(*s.Breaking))
	}
	if against != "" {
		parts = append(parts, against)
	}
	// The tail of what did not pass says more than that of what did.
	rate := r.Rate
	if failed != nil {
		rate = failed.Rate
	}
	for _, f := range r.Runs {
		if f.Rate == rate {
			if share := f.TenantShare(); share > 0 {
				return append(parts, fmt.Sprintf("at %s the router refused %s of the requests %s", perSecond(rate), percent(share), ofTenant))
			}
			if text := tailOf(&f, " at "+perSecond(rate)); text != "" {
				return append(parts, text)
			}
		}
	}
	return parts
}

// contradiction names the rates that passed although lower ones failed, and those; empty if
// there are none.
func contradiction(s *search.Result) string {
	if len(s.PassedAbove) == 0 {
		return ""
	}
	var passed, failed []string
	for _, rate := range s.PassedAbove {
		passed = append(passed, number(rate))
	}
	for _, step := range s.Steps {
		// A rate that failed most of its runs may have passed one.
		below := step.Rate < slices.Max(s.PassedAbove) && !slices.Contains(s.PassedAbove, step.Rate)
		if rate := number(step.Rate); below && !step.Passed && !step.Unknown && (s.MaxRate == nil || step.Rate > *s.MaxRate) && !slices.Contains(failed, rate) {
			failed = append(failed, rate)
		}
	}
	return "not conclusive, because " + and(passed) + "/s passed although " + and(failed) + "/s did not"
}

// and lists words as a sentence does.
func and(words []string) string {
	if last := len(words) - 1; last > 0 {
		return strings.Join(words[:last], ", ") + " and " + words[last]
	}
	return strings.Join(words, "")
}

// above returns the lowest rate that failed above the one that is held, nil if there is
// none, and the inconclusive ones between them.
func above(r *search.Result) (failed *search.Step, undecided []search.Step) {
	for i := range r.Steps {
		step := &r.Steps[i]
		switch {
		case r.MaxRate != nil && step.Rate <= *r.MaxRate || step.Passed:
		case step.Unknown:
			undecided = append(undecided, *step)
		default:
			at := func(other search.Step) bool { return other.Rate == step.Rate }
			return step, slices.DeleteFunc(undecided, at)
		}
	}
	return nil, undecided
}

// undecidedText names inconclusive rates, and why if it was the same at each.
func undecidedText(steps []search.Step) string {
	var rates, whys []string
	for _, step := range steps {
		why := ""
		switch {
		case step.Interrupted:
			why = ": it was not measured to its end"
		case step.Client != "":
			why = ": " + record.Culprit(step.Client)
		}
		if rate := number(step.Rate); !slices.Contains(rates, rate) {
			rates = append(rates, rate)
		}
		whys = append(whys, why)
	}
	text, are := and(rates), " is undecided"
	if len(rates) > 1 {
		are = " are undecided"
	}
	if len(slices.Compact(whys)) > 1 {
		return text + "/s" + are
	}
	return text + "/s" + are + whys[0]
}

// single returns the parts of a single run's headline.
func (r *Report) single() []string {
	load := actual(&r.Figures)
	missed := ""
	if i := slices.IndexFunc(r.Objectives, missedObjective); i >= 0 {
		missed = r.Objectives[i].Term
	}
	unmet := slices.IndexFunc(r.Objectives, func(o measure.Objective) bool { return !o.Met })
	undecided := missed == "" && unmet >= 0
	var what string
	switch {
	case r.Requests == 0:
		return []string{"No request was due in the measured window"}
	case r.TenantShare() > 0:
		return []string{fmt.Sprintf("At %s the router refused %s of the requests %s", load, percent(r.TenantShare()), ofTenant)}
	case r.Limit() != "":
		return []string{"At " + load + " there is no verdict on the server: " + record.Culprit(r.Limit())}
	case r.Verdict == measure.Overloaded:
		what = "Is overloaded at " + load
	case r.Verdict == measure.Backlogged:
		what = "Falls behind at " + load
	case r.NoneEnded() && r.Concurrency > 0:
		what = "With " + load + " " + noneEnded(&r.Summary)
	case r.NoneEnded() && r.Verdict == measure.None:
		what = "At " + load + " " + noneEnded(&r.Summary)
	case r.Concurrency > 0:
		what = "Completes " + perSecond(r.CompletedRPS) + " with " + load
	case r.Verdict == measure.None:
		what = "There is no verdict at " + load
	case missed != "":
		what = "Keeps up with " + load
	case r.HasSLO() && !undecided:
		what = "Holds " + load + " within its SLO"
	default:
		what = "Keeps up with " + load
	}
	parts := []string{what}
	switch {
	case missed != "":
		parts = append(parts, "misses "+missed)
	case undecided:
		parts = append(parts, objective(r.Objectives[unmet]))
	case r.Concurrency > 0 && r.HasSLO():
		parts = append(parts, "meets its SLO")
	}
	if text := tailOf(&r.Figures, ""); text != "" {
		parts = append(parts, text)
	}
	return parts
}

// ofTenant says why a router refused requests, and what to do.
const ofTenant = "because their tenant had as many as it may: raise its --router-tenant-max-requests"

func missedObjective(o measure.Objective) bool { return !o.Met && (o.Measured != nil || o.Missed) }

// sloMissed: the server kept up, but missed an objective.
func sloMissed(s *measure.Summary) bool {
	return s.Verdict == measure.Stable && slices.ContainsFunc(s.Objectives, missedObjective)
}

// verdictText is the verdict, which is about the backlog only, with the SLO's if that was
// missed.
func verdictText(s *measure.Summary) string {
	if sloMissed(s) {
		return string(s.Verdict) + ", SLO missed"
	}
	return string(s.Verdict)
}

// verdictClass is the page's class for a verdict.
func verdictClass(s *measure.Summary) string {
	if sloMissed(s) {
		return "MISSED"
	}
	return string(s.Verdict)
}

// stageTexts describe stages as parts of a tail.
var stageTexts = map[tail.Stage]string{
	tail.Dispatch: "the client's own lateness", tail.Tokenize: "tokenizing", tail.Retried: "attempts that failed", tail.Queue: "the prefill queue",
	tail.Decide: "the choice of workers", tail.Reserve: "the reservation of KV blocks", tail.Prefill: "prefill",
	tail.TransferExposed: "the KV transfer", tail.Decode: "decode", tail.Other: "what no stage covers",
}

// tailOf names the stage with the largest part of the highest explained TTFT percentile;
// empty if none is explained.
func tailOf(f *Figures, at string) string {
	if f.Tail == nil {
		return ""
	}
	for _, percentile := range []string{"p99", "p90"} {
		for _, b := range f.Tail.Breakdowns {
			if b.Latency != measure.TTFT || b.Percentile != percentile || !(b.Milliseconds > 0) {
				continue
			}
			var most tail.Stage
			for _, stage := range tail.Stages() {
				if most == "" || b.Stages[stage] > b.Stages[most] {
					most = stage
				}
			}
			share, whole := b.Stages[most]/b.Milliseconds, "the tail is "
			if share < 0.5 {
				whole = "the largest part of the tail is "
			}
			return fmt.Sprintf("%s%s (%.0f%% of TTFT %s%s)", whole, stageTexts[most], 100*share, percentile, at)
		}
	}
	return ""
}

// load describes the load offered in a run.
func load(f *Figures) string {
	switch {
	case f.Concurrency > 0:
		return strconv.Itoa(f.Concurrency) + " at a time"
	case f.Rate > 0:
		return perSecond(f.Rate)
	}
	return perSecond(f.OfferedRPS)
}

// actual is load, but what was sent on average if that is another rate than was asked for, as
// with surges.
func actual(f *Figures) string {
	asked, sent := f.Rate*f.WindowS, f.OfferedRPS*f.WindowS
	const deviations, share = 5, 0.2 // more than chance, and more than a little
	if difference := math.Abs(sent - asked); f.Concurrency > 0 || f.Rate == 0 || difference <= deviations*math.Sqrt(asked) || difference <= share*asked {
		return load(f)
	}
	return perSecond(f.OfferedRPS) + " on average"
}

func perSecond(rate float64) string { return number(rate) + "/s" }
