package commands

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/grammar"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

func newBenchGrammarCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grammar",
		Short: "Measure the token masks of structured output",
		Long: `Draws outputs of common forms, token by token, and times the mask of each step: in a
synthetic vocabulary of each size, for a schema that was just compiled (new) and for one that
other outputs used before (used). Last comes the time from a new schema of 10 kB to its
first mask, the median of nine. On Linux, times are processor time, so other programs do not
count.

With --batch, decodes a batch that is held to a schema (lists of records) and a free one in
turns, with the CPU engine and a worker's driver, in this process. It prints tokens a second
over those of the free batch, the median over the rounds: by time, and by the processor time
of the process. The third contender is the batch with masks that are made when a token is
drawn instead of while the engine computes. Without --model, the command makes a model with
random weights and removes it at the end.`,
		Example: `  tandem bench grammar
  tandem bench grammar --batch 16 --preset bench-200m
  tandem bench grammar --vocabulary 32000 --outputs 5 --json`,
		Args: exactly(),
	}
	plan := grammar.Plan{}
	fs := cmd.Flags()
	fs.IntSliceVar(&plan.Sizes, "vocabulary", []int{32_000, 128_256}, "sizes of the vocabularies, in tokens")
	fs.IntVar(&plan.Outputs, "outputs", 20, "outputs of each form")
	fs.IntVar(&plan.MaxTokens, "max-tokens", 200, "most tokens of an output")
	var rate grammar.RatePlan
	var f measuredFlags
	const batched = "with --batch: "
	fs.IntVar(&rate.Batch, "batch", 0, "measure the rate of a batch of so many sequences instead")
	f.add(cmd, batched)
	fs.IntVar(&rate.Prompt, "prompt", 32, batched+"tokens of a prompt")
	fs.IntVar(&rate.Tokens, "tokens", 64, batched+"tokens generated after each prompt")
	fs.Float32Var(&rate.Temperature, "temperature", 1, batched+"temperature of the tokens")
	fs.IntVar(&rate.Rounds, "rounds", 5, batched+"rounds of each contender")
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("batch") {
			if err := f.check(cmd, rate); err != nil {
				return usageError(cmd, err.Error())
			}
			load := func(m *model.Model) (cpu.Config, error) {
				return cpu.Config{Weights: cpu.BF16, Threads: f.threads}, checkPlan(rate, m.Spec(), "a smaller model, --batch, --prompt or --tokens")
			}
			r, err := measureWith(cmd, f, load, func(weights *cpu.Weights, progress func(done, total int64)) (*grammar.Rate, error) {
				return grammar.MeasureRate(cmd.Context(), weights, rate, progress)
			})
			return measured(cmd, *asJSON, r, err, printGrammarRate)
		}
		for _, size := range plan.Sizes {
			if size < 3_000 || size > 1_000_000 {
				return usageError(cmd, fmt.Sprintf("--vocabulary: %d is outside 3000 to 1000000", size))
			}
		}
		if plan.Outputs < 1 || plan.MaxTokens < 1 {
			return usageError(cmd, "--outputs and --max-tokens must be above 0")
		}
		r, err := grammar.Measure(cmd.Context(), plan)
		return measured(cmd, *asJSON, r, err, printGrammar)
	}
	return cmd
}

func printGrammarRate(out io.Writer, r *grammar.Rate) error {
	_, err := fmt.Fprintf(out, `%s, threads %d, batch %d, temperature %g; rounds %d, in turns

                      tokens/s   over free   over free, by processor time
free                %10.1f
constrained         %10.1f  %10.3f   %10.3f
  masks in the draw %10.1f  %10.3f   %10.3f
`, r.Model, r.Threads, r.Batch, r.Temperature, r.Rounds, r.FreeTokens, r.HeldTokens, r.Held, r.HeldProcessor, r.LateTokens, r.Late, r.LateProcessor)
	return err
}

func printGrammar(out io.Writer, r *grammar.Result) error {
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
