package cli

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/scheduler"
)

// printBenchScheduler writes the result for people: tables of one row a policy.
func printBenchScheduler(out io.Writer, r *scheduler.Result) error {
	if r.Scenario == scheduler.LongPrompt {
		fmt.Fprintf(out, "%d sequences decode after prompts of %d tokens; after %d steps a prompt of %d comes", r.Decodes, r.ShortTokens, r.BeforeSteps, r.LongTokens)
	} else {
		fmt.Fprintf(out, "%d requests, %g a second; prompts of about %d tokens, %g%% of about %d; outputs of about %d", r.Requests, r.Rate, r.ShortTokens, 100*r.LongShare, r.LongTokens, r.OutputTokens)
	}
	fmt.Fprintf(out, "; %d blocks of %d; steps of %d tokens, %d sequences\n", r.Blocks, r.BlockTokens, r.BatchTokens, r.Sequences)
	if r.Clock == "real" {
		fmt.Fprintf(out, "real time: %s on %s, threads %d\n", r.Model, r.ISA, r.Threads)
	} else {
		fmt.Fprintf(out, "virtual time, seed %d\n", r.Seed)
	}
	t := newPolicyTable(out, r)
	if r.Scenario == scheduler.LongPrompt {
		t.write("ITL ms\tbefore p50\tp99\tmeanwhile p50\tp99\tp99.9\tmax\tp99 rises by\tlong TTFT", func(row *scheduler.Row) string {
			l := row.Long
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", ms(l.Before.P50), ms(l.Before.P99),
				ms(l.During.P50), ms(l.During.P99), ms(l.During.P999), ms(l.During.Max), ms(l.RiseP99Ms), ms(row.TTFTLong.Max))
		})
	} else {
		t.write("TTFT ms\tp50\tp90\tp99\tp99.9\tshort p50\tp99\tlong p50\tp99\ttokens/s", func(row *scheduler.Row) string {
			return fmt.Sprintf("%s\t%s\t%s\t%.1f", four(row.TTFT), two(row.TTFTShort), two(row.TTFTLong), row.OutputRate)
		})
		t.write("ITL ms\tp50\tp90\tp99\tp99.9\tmax", func(row *scheduler.Row) string {
			return four(row.ITL) + "\t" + ms(row.ITL.Max)
		})
	}
	t.write("stalled ms\tp50\tp90\tp99\tp99.9\tmax\tof all gaps", func(row *scheduler.Row) string {
		return fmt.Sprintf("%s\t%s\t%.1f%%", four(row.Stall), ms(row.Stall.Max), 100*row.StalledShare)
	})
	t.write("prompts add ms\tp50\tp99\tmax\tof steps\tover budget\tat worst by\tpreempted\tcomputed\tagain", func(row *scheduler.Row) string {
		return fmt.Sprintf("%s\t%s\t%d of %d\t%d\t%s\t%d\t%d\t%d", two(row.Added), ms(row.Added.Max), row.MixedSteps, row.Steps,
			row.OverBudget, ms(row.WorstOverMs), row.Preemptions, row.ComputedTokens, row.ComputedAgain)
	})
	if r.Clock == "real" {
		t.write("between steps µs\tp50\tp99\tmax", func(row *scheduler.Row) string {
			return fmt.Sprintf("%.0f\t%.0f\t%.0f", row.BetweenUs.P50, row.BetweenUs.P99, row.BetweenUs.Max)
		})
	} else {
		t.write("scheduler µs a step\tp50\tp99\tmax\twith arrivals\tsequences\tallocations\tdecode alone", func(row *scheduler.Row) string {
			s := row.Scheduler
			return fmt.Sprintf("%.1f\t%.1f\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f", s.StepNs.P50/1e3, s.StepNs.P99/1e3, s.StepNs.Max/1e3,
				s.NsPerStep/1e3, row.SequencesPerStep, s.AllocsPerStep, s.AllocsPerDecodeStep)
		})
	}
	return t.err
}

// policyTable writes tables of one row a policy.
type policyTable struct {
	out    io.Writer
	result *scheduler.Result
	err    error
}

func newPolicyTable(out io.Writer, r *scheduler.Result) *policyTable {
	return &policyTable{out: out, result: r}
}

func (p *policyTable) write(heads string, row func(*scheduler.Row) string) {
	fmt.Fprintln(p.out)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s\t\n", heads)
	for i := range p.result.Rows {
		r := &p.result.Rows[i]
		fmt.Fprintf(t, "%s\t%s\t\n", policyName(r), row(r))
	}
	if err := t.Flush(); p.err == nil {
		p.err = err
	}
}

// policyName says what a policy is.
func policyName(r *scheduler.Row) string {
	budget := "no budget"
	if r.StepBudgetMs > 0 {
		budget = "budget " + time.Duration(r.StepBudgetMs*float64(time.Millisecond)).String()
	}
	return fmt.Sprintf("%s, chunks of %d, share %g", budget, r.ChunkTokens, r.OutputShare)
}

func ms(x float64) string { return fmt.Sprintf("%.1f", x) }

func two(p scheduler.Percentiles) string { return ms(p.P50) + "\t" + ms(p.P99) }

func four(p scheduler.Percentiles) string {
	return ms(p.P50) + "\t" + ms(p.P90) + "\t" + ms(p.P99) + "\t" + ms(p.P999)
}
