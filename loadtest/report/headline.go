package report

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// Headline is the report in one sentence: what the server holds, where it breaks, and
// which stage the tail comes from.
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

// searched is the headline of a search in its parts.
func (r *Report) searched() []string {
	s := r.Search
	within := ""
	if r.SLO != "" {
		within = " within its SLO"
	}
	failed, untold := above(s)
	var parts []string
	switch {
	case s.MaxRate != nil && untold != nil:
		parts = append(parts, "Holds at least "+perSecond(*s.MaxRate)+within, nothingTold(untold))
	case s.MaxRate != nil:
		parts = append(parts, "Holds "+perSecond(*s.MaxRate)+within)
	case failed != nil && r.SLO != "" && failed.Summary.Verdict != measure.Overloaded && failed.Summary.Verdict != measure.Backlogged:
		parts = append(parts, "Misses its SLO at every rate tried, from "+perSecond(failed.Rate)+" on")
	case failed != nil:
		parts = append(parts, "Holds none of the rates tried, from "+perSecond(failed.Rate)+" on")
	case untold != nil:
		return []string{upper(nothingTold(untold))}
	default:
		return []string{"No rate was measured"}
	}
	if failed != nil && s.MaxRate != nil && (s.Breaking == nil || failed.Rate < *s.Breaking) {
		parts = append(parts, "misses the SLO at "+perSecond(failed.Rate))
	}
	switch {
	case s.Breaking != nil && (s.MaxRate == nil || *s.Breaking > *s.MaxRate):
		parts = append(parts, "breaks at "+perSecond(*s.Breaking))
	case failed == nil && untold == nil && s.MaxRate != nil:
		parts = append(parts, "no rate tried was too much for it")
	}
	// The tail of what did not pass says more than that of what did.
	rate := r.Rate
	if failed != nil {
		rate = failed.Rate
	}
	for _, f := range r.Runs {
		if f.Rate == rate {
			if text := tailOf(&f, " at "+perSecond(rate)); text != "" {
				return append(parts, text)
			}
		}
	}
	return parts
}

// above is the least rate that failed above the highest that passed, and the least of
// which nothing could be told below that; nil if there is none.
func above(r *search.Result) (failed, untold *search.Step) {
	for i := range r.Steps {
		step := &r.Steps[i]
		switch {
		case r.MaxRate != nil && step.Rate <= *r.MaxRate || step.Passed:
		case step.Unknown:
			if untold == nil {
				untold = step
			}
		default:
			return step, untold
		}
	}
	return nil, untold
}

func nothingTold(step *search.Step) string {
	switch {
	case step.Interrupted:
		return perSecond(step.Rate) + " was not measured to its end"
	case step.Client != "":
		return "at " + perSecond(step.Rate) + " " + clientLimit
	}
	return "at " + perSecond(step.Rate) + " there is no verdict"
}

// single is the headline of one run in its parts.
func (r *Report) single() []string {
	load := load(&r.Figures)
	missed := ""
	for _, o := range r.Objectives {
		if !o.Met && (o.Measured != nil || o.Missed) {
			missed = o.Term
			break
		}
	}
	untold := missed == "" && r.SLO != "" && !allMet(r.Objectives)
	var what string
	switch {
	case r.Requests == 0:
		return []string{"No request was due in the measured window"}
	case r.Client.Bottleneck != "":
		return []string{"At " + load + " " + clientLimit + ", not the server"}
	case r.Verdict == measure.Overloaded:
		what = "Breaks at " + load
	case r.Verdict == measure.Backlogged:
		what = "Falls behind at " + load
	case r.Concurrency > 0:
		what = "Completes " + perSecond(r.CompletedRPS) + " with " + load
	case r.Verdict == measure.None:
		what = "There is no verdict on " + load
	case missed != "":
		what = "Keeps up with " + load
	case r.SLO != "" && !untold:
		what = "Holds " + load + " within its SLO"
	default:
		what = "Keeps up with " + load
	}
	parts := []string{what}
	switch {
	case missed != "":
		parts = append(parts, "misses "+missed)
	case untold:
		parts = append(parts, "too few requests to judge its SLO")
	case r.Concurrency > 0 && r.SLO != "":
		parts = append(parts, "meets its SLO")
	}
	if text := tailOf(&r.Figures, ""); text != "" {
		parts = append(parts, text)
	}
	return parts
}

func allMet(objectives []measure.Objective) bool {
	for _, o := range objectives {
		if !o.Met {
			return false
		}
	}
	return true
}

// stageTexts are the stages as what a tail is made of.
var stageTexts = map[tail.Stage]string{
	tail.Dispatch: "the client's own lateness", tail.Tokenize: "tokenizing", tail.Queue: "the prefill queue",
	tail.Decide: "the choice of workers", tail.Reserve: "the reservation of KV blocks", tail.Prefill: "prefill",
	tail.TransferExposed: "the KV transfer", tail.Decode: "decode", tail.Other: "what no stage covers",
}

// tailOf says which stage has the most of the highest percentile of TTFT that is
// explained; empty if none is.
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

// load is how much was offered in a run.
func load(f *Figures) string {
	switch {
	case f.Concurrency > 0:
		return strconv.Itoa(f.Concurrency) + " at a time"
	case f.Rate > 0:
		return perSecond(f.Rate)
	}
	return perSecond(f.OfferedRPS)
}

func perSecond(rate float64) string { return number(rate) + "/s" }

func upper(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
