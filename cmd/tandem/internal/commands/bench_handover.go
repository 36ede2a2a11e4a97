package commands

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/handover"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/pkg/model"
)

func newBenchHandoverCommand() *cobra.Command {
	var plan handover.Plan
	var dir, preset string
	var arguments []string
	cmd := &cobra.Command{
		Use:   "handover",
		Short: "Measure the path of KV from a prefill worker to a decode worker",
		Long: `Starts a mesh of a router, a prefill worker and a decode worker, each in a process of
its own. It serves prompts that share nothing, one at a time.

For each transport it prints the time from the last layer to the committed KV, the part
of it that the client sees (transfer_exposed, second_token), and the time to the first
token. The model's head and sampling run between the last layer and the first token: the
commit carries the token.

Some prompts run again on one worker, which computes everything itself. The tokens must
be the same. If the times to the first token differ too much, the result says
"valid": false, and why.

Without --model, the command makes a model with random weights and removes it at the end.`,
		Example: `  tandem bench handover
  tandem bench handover --transport tcp --requests 50 --json
  tandem bench handover --model ./bench-200m --prompt 4096`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	fs.StringVar(&dir, "model", "", "directory of the model (default: a random model of --preset)")
	fs.StringVar(&preset, "preset", "bench-200m", "shape of the random model")
	fs.StringSliceVar(&plan.Transports, "transport", []string{"tcp", "unix"}, "transports of KV to measure, each in a mesh of its own")
	fs.IntVar(&plan.PromptTokens, "prompt", 2048, "tokens in each prompt")
	fs.IntVar(&plan.OutputTokens, "output", 8, "tokens in each answer")
	fs.IntVar(&plan.Requests, "requests", 20, "requests to measure with each transport")
	fs.IntVar(&plan.Warmup, "warmup", 2, "requests before these, to warm up; they do not count")
	fs.IntVar(&plan.Checked, "check", 2, "requests to run again on one worker, to compare the tokens")
	fs.Uint64Var(&plan.Seed, "seed", 1, "seed of the prompts")
	fs.StringArrayVar(&arguments, "worker-flag", nil, "extra flag for both workers, such as --worker-flag=--kv-memory=2GiB")
	oneOf(cmd, "transport", "tcp", "unix", "shm")
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		plan.Vocabulary = 2 // until the model is known
		if !cmd.Flags().Changed("check") {
			plan.Checked = min(plan.Checked, plan.Requests)
		}
		if err := plan.Validate(); err != nil {
			return usageError(cmd, err.Error())
		}
		p := newProgress(cmd.ErrOrStderr())
		folder, remove, err := measuredModel{name: dir, shape: func() (model.Shape, error) {
			shape, err := model.Preset(preset)
			if err != nil {
				err = usageError(cmd, "--preset: "+err.Error())
			}
			return shape, err
		}}.directory(cmd.Context(), p)
		p.finish()
		if err != nil {
			return interruptedOr(cmd.Context(), err)
		}
		defer func() { _ = remove() }() // nobody is helped by an error of it
		spec, err := model.LoadSpec(folder, model.Options{})
		if err != nil {
			return err
		}
		plan.Vocabulary = spec.VocabSize
		plan.Mesh = processes.Plan{Arguments: []string{"--model", folder}, Worker: arguments, StartTimeout: meshStartTimeout}
		result, err := handover.Measure(cmd.Context(), plan, progressLines(cmd, *asJSON))
		return measured(cmd, *asJSON, result, err, printHandover)
	}
	return cmd
}

func printHandover(w io.Writer, r *handover.Result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "prompts of %d tokens, answers of %d\n", r.PromptTokens, r.OutputTokens)
	fmt.Fprintln(t, "ms\tp50\tp90\tmax\t")
	for _, way := range r.Ways {
		fmt.Fprintf(t, "%s, %s of %.1f MB\t\t\t\t\n", way.Transport, counted(way.Requests, "request"), float64(way.KVBytes)/1e6)
		for _, row := range []struct {
			name string
			of   handover.Spread
		}{
			{"last layer to committed", way.Tail}, {"last layer to first token", way.Head}, {"transfer exposed", way.Exposed}, {"second token", way.SecondToken},
			{"first token", way.TTFT}, {"whole transfer", way.Transfer},
		} {
			fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t\n", row.name, row.of.P50, row.of.P90, row.of.Max)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "one worker served %d of them again, with the same tokens\n", r.Ways[0].Checked*len(r.Ways))
	if r.Valid != nil && !*r.Valid {
		fmt.Fprintf(w, "\nnot valid: %s\n", r.Reason)
	}
	return err
}
