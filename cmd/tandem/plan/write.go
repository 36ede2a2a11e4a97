package plan

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Write writes the plan for people.
func (plan *Plan) Write(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%.4g requests a second of %.0f prompt and %.0f output tokens on average, within %s%s\n",
		plan.Traffic.RatePerSecond, plan.Traffic.PromptTokens, plan.Traffic.OutputTokens, plan.SLO, plan.planner.question.Headroom.ofCalls())
	for _, changed := range plan.Changed {
		fmt.Fprintf(&b, "of a sample, %s\n", changed)
	}
	b.WriteString("\n")
	fmt.Fprintf(&b, "plan: %s, mode %s (%s)\n", plan.Size, plan.Mode, plan.Reason)
	for _, pool := range []string{"prefill", "decode", "both"} {
		if used, is := plan.Utilisation[pool]; is {
			fmt.Fprintf(&b, "  utilisation, %s: %.0f%% of what the workers can serve within the SLO\n", shown(pool), 100*used)
		}
	}
	if plan.HourCost > 0 {
		fmt.Fprintf(&b, "  cost: %.4g an hour, %.3g for a million output tokens\n", plan.HourCost, plan.MillionTokensCost)
	}
	switch {
	case plan.BothPhases > 0:
		fmt.Fprintf(&b, "  fewer suffice: %s (--mode aggregated)\n", Size{Decode: plan.BothPhases})
	case plan.Prefill > 0:
		fmt.Fprintf(&b, "  %s\n", plan.planner.whyNotOneFewer(plan.Size))
	}
	plan.writePrediction(&b)
	plan.writeConstraints(&b)
	plan.writeCalculation(&b)
	plan.writeTrials(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func (plan *Plan) writePrediction(b *strings.Builder) {
	p := plan.Predicted
	fmt.Fprintf(b, "\npredicted by simulation of %d requests (%.0f s after %.0f s of warm-up)\n", p.Requests, p.WindowS, p.WarmupS)
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "ms\tp50\tp90\tp95\tp99\tmax\t")
	for _, row := range []struct {
		name string
		of   *Percentiles
	}{{"TTFT", p.TTFT}, {"TPOT", p.TPOT}, {"ITL", p.ITL}, {"E2E", p.E2E}} {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t\n", row.name, number(row.of.P50), number(row.of.P90), number(row.of.P95), number(row.of.P99), number(row.of.Max))
	}
	_ = table.Flush() // into memory
	fmt.Fprintf(b, "%.1f%% of the requests meet every bound: %.4g requests a second; %.4g output tokens a second\n", 100*p.SLOAttainment, p.GoodputRPS, p.OutputTokensRPS)
}

func (plan *Plan) writeConstraints(b *strings.Builder) {
	if len(plan.Constraints) == 0 {
		return
	}
	fmt.Fprintf(b, "\nconstraints, and the fewest workers that keep them by the formulas (together %s)\n", plan.Calculated)
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, c := range plan.Constraints {
		fmt.Fprintf(table, "  %s\t%s\t%d\t%s\n", shown(c.Pool), c.Name, c.Workers, c.Rule)
	}
	_ = table.Flush()
}

func (plan *Plan) writeCalculation(b *strings.Builder) {
	b.WriteString("\nformulas, for the planned size, and what each assumes\n")
	for _, f := range plan.Calculation {
		value := fmt.Sprintf("%.3g %s", f.Value, f.Unit)
		if f.Unit == "s" {
			value = short(f.Value)
		}
		fmt.Fprintf(b, "  %s: %s: %s\n      %s\n", f.Name, f.Of, strings.TrimSpace(value), f.Assumes)
	}
}

func (plan *Plan) writeTrials(b *strings.Builder) {
	b.WriteString("\nsimulated\n")
	table := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, t := range plan.Trials {
		met := "met"
		if !t.Met {
			met = "missed: " + t.Why
		}
		fmt.Fprintf(table, "  %s\tTTFT p99 %s\tTPOT p99 %s\t%s\n", t.Size, number(t.TTFTP99), number(t.TPOTP99), met)
	}
	_ = table.Flush()
}

// shown is the name of a pool for people.
func shown(pool string) string { return strings.ReplaceAll(pool, "both", "both phases") }

// number is milliseconds with three digits; nil: there are too few samples.
func number(ms *float64) string {
	switch {
	case ms == nil:
		return "n/a"
	case *ms >= 1000:
		return fmt.Sprintf("%.0f", *ms)
	}
	return fmt.Sprintf("%.3g", *ms)
}
