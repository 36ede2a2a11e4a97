package commands

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/tracing"
)

func newBenchTracingCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tracing",
		Short: "Measure what tracing costs in CPU time per request",
		Long: `Starts two meshes of processes with simulated engines. One traces a share of its
requests to a collector. They take turns with the same requests. The result is the CPU
time that router and workers spend on a request in each mesh, and the difference, with
its 95% confidence interval over the pairs. With --sample 0 neither mesh traces: the
difference then shows the error of the measurement itself.`,
		Example: `  tandem bench tracing
  tandem bench tracing --pairs 30 --sample 0.01 --json`,
		Args: exactly(),
	}
	var o tracing.Options
	cmd.Flags().StringVar(&o.Model, "model", "", "directory of the model (default: the bundled one)")
	cmd.Flags().Float64Var(&o.Share, "sample", 0.01, "share of the requests that one mesh traces, 0 to 1")
	cmd.Flags().IntVar(&o.Pairs, "pairs", 20, "pairs of blocks of requests to measure, at least 6")
	cmd.Flags().IntVar(&o.Requests, "requests", 400, "requests in a block")
	cmd.Flags().IntVar(&o.Concurrency, "concurrency", 8, "requests at a time")
	cmd.Flags().IntVar(&o.PromptTokens, "prompt", 128, "tokens in each prompt")
	cmd.Flags().IntVar(&o.OutputTokens, "output", 32, "tokens in each answer")
	cmd.Flags().Float64Var(&o.StepMs, "step-ms", 1, "step time of the simulated engines, in milliseconds")
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.Validate(); err != nil {
			return usageError(cmd, err.Error())
		}
		if !*asJSON {
			o.Progress = func(pair int, traced, untraced float64) {
				fmt.Fprintf(cmd.ErrOrStderr(), "pair %d of %d: %.3f ms with tracing, %.3f ms without\n", pair, o.Pairs, traced, untraced)
			}
		}
		result, err := tracing.Measure(cmd.Context(), o)
		return measured(cmd, *asJSON, result, err, printTracing)
	}
	return cmd
}

func printTracing(w io.Writer, r *tracing.Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "CPU a request\tmean\t95%% interval\tmedian\n")
	for _, row := range []struct {
		name, unit string
		of         tracing.Interval
	}{
		{fmt.Sprintf("tracing %g%%", r.Share*100), "ms", r.TracedMs},
		{"no tracing", "ms", r.UntracedMs},
		{"apart", "%", r.ApartPercent},
	} {
		fmt.Fprintf(table, "%s\t%.3f %s\t%.3f to %.3f\t%.3f\n", row.name, row.of.Mean, row.unit, row.of.Low, row.of.High, row.of.Median)
	}
	fmt.Fprintf(table, "%s of blocks of %s, %d spans, %.0f s\n", counted(r.Pairs, "pair"), counted(r.RequestsPerBlock, "request"), r.Spans, r.WallSeconds)
	return table.Flush()
}
