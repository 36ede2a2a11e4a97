package commands

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/grammarmask"
)

func newBenchGrammarCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grammar",
		Short: "Measure how long it takes to find which tokens a form of output allows",
		Long: `Draws outputs of common forms, token by token, and times the mask of each step: in a
synthetic vocabulary of each size, for a schema that was just compiled (new) and for one that
other outputs used before (used). Last comes the time from a new schema of 10 kB to its
first mask, the median of nine.

On Linux, times are processor time, so other programs do not count.`,
		Example: `  tandem bench grammar
  tandem bench grammar --vocabulary 32000 --outputs 5 --json`,
		Args: exactly(),
	}
	plan := grammarmask.Plan{}
	fs := cmd.Flags()
	fs.IntSliceVar(&plan.Sizes, "vocabulary", []int{32_000, 128_256}, "sizes of the vocabularies, in tokens")
	fs.IntVar(&plan.Outputs, "outputs", 20, "outputs of each form")
	fs.IntVar(&plan.MaxTokens, "max-tokens", 200, "most tokens of an output")
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, size := range plan.Sizes {
			if size < 3_000 || size > 1_000_000 {
				return usageError(cmd, fmt.Sprintf("--vocabulary: %d is outside 3000 to 1000000", size))
			}
		}
		if plan.Outputs < 1 || plan.MaxTokens < 1 {
			return usageError(cmd, "--outputs and --max-tokens must be above 0")
		}
		r, err := grammarmask.Measure(cmd.Context(), plan)
		return measured(cmd, *asJSON, r, err, printGrammar)
	}
	return cmd
}

func printGrammar(out io.Writer, r *grammarmask.Result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "vocabulary\tform\tnew p50\tp99\tmax\tused p50\tp99\tmax\tµs\t")
	for _, f := range r.Forms {
		fmt.Fprintf(w, "%d\t%s\t%.1f\t%.0f\t%.0f\t%.1f\t%.1f\t%.0f\t%d masks\t\n", f.Vocabulary, f.Name, f.New.P50, f.New.P99, f.New.Max, f.Used.P50, f.Used.P99, f.Used.Max, f.Used.Masks)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range r.FirstMask {
		fmt.Fprintf(out, "vocabulary %d: first mask of a new schema of %d bytes after %.1f ms, %.1f of them to compile it; the vocabulary was read in %.0f ms, once\n", f.Vocabulary, f.SchemaBytes, f.Total, f.Compile, f.Read)
	}
	return nil
}
