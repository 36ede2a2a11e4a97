package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/speculation"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

func newBenchSpeculationCommand() *cobra.Command {
	var f measuredFlags
	var plan speculation.Plan
	cmd := &cobra.Command{
		Use:   "speculation",
		Short: "Measure speculative decoding beside plain decoding",
		Long: `Decodes with the CPU engine and a worker's scheduler, in this process, with and
without draft tokens (--speculate ngram) in turns, and fails if the tokens differ.

In each round the model first writes new passages, one for each sequence. A prompt is the
passage --repeats times and its beginning, so that the text repeats itself, as in editing
or retrieval. Of the
drafts, --keep says which share stays as it is. The others are made wrong: --keep 0.8
stands for a source of drafts of which each is right in 80 of 100 cases at most, and
--keep 0 for texts in which every draft is wrong.

With --draft-model a smaller model makes the drafts (--speculate draft). drafting is its
share of the time.

gain is the median over the rounds of tokens a second with drafts over those without,
of steps that decode alone. acceptance is the share of right ones among the drafts
before which no other was wrong.

Without --model, the command makes a model with random weights and removes it at the end.`,
		Example: `  tandem bench speculation --model models/fable
  tandem bench speculation --model models/fable --keep 0 --batch 8 --json
  tandem bench speculation --model models/fable --draft-model models/fable-draft --repeats 1
  tandem bench speculation --preset bench-200m --keep 0.8 --passage 64 --tokens 48 --rounds 3`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	f.add(cmd, "")
	fs.StringVar((*string)(&plan.DType), "dtype", string(cpu.BF16), "type of the weights: bf16, int8, or int4")
	fs.StringVar((*string)(&plan.KV), "kv", string(cpu.KVBF16), "type of keys and values: bf16 or int8")
	fs.IntVar(&plan.Batch, "batch", 1, "sequences that decode at a time")
	fs.IntVar(&plan.PassageTokens, "passage", 160, "tokens of the passage that a prompt repeats")
	fs.IntVar(&plan.Repeats, "repeats", 2, "how often a prompt has its passage")
	fs.Float32Var(&plan.PassageTemperature, "passage-temperature", 0, "temperature of the passage")
	fs.IntVar(&plan.Tokens, "tokens", 96, "tokens generated after each prompt")
	fs.IntVar(&plan.MaxDrafts, "speculate-tokens", 8, "maximum draft tokens of one sequence in a step")
	fs.StringVar(&plan.DraftModel, "draft-model", "", "directory of a smaller model with the same tokenizer, which makes the drafts (default: n-grams)")
	fs.Float64Var(&plan.Keep, "keep", 1, "share of the drafts that are left as they are")
	fs.Float32Var(&plan.Temperature, "temperature", 0, "temperature of the tokens after the prompt")
	fs.IntVar(&plan.Rounds, "rounds", 7, "rounds, each with and without drafts")
	fs.BoolVar(&plan.ProcessorTime, "processor-time", false, "with --threads 1: seconds of processor time, so that other programs do not count")
	oneOf(cmd, "dtype", string(cpu.BF16), string(cpu.Int8), string(cpu.Int4))
	oneOf(cmd, "kv", string(cpu.KVBF16), string(cpu.KVInt8))
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(cmd, plan); err != nil {
			return usageError(cmd, err.Error())
		}
		if plan.ProcessorTime && f.threads != 1 {
			return usageError(cmd, "--processor-time: counts one thread: pass --threads 1")
		}
		if plan.DraftModel != "" && f.model == "" {
			return usageError(cmd, "--draft-model: makes drafts for a model of --model: pass both or none")
		}
		load := func(m *model.Model) (cpu.Config, error) {
			return cpu.Config{Weights: plan.DType, Threads: f.threads}, checkPlan(plan, m.Spec(), "a smaller model, --batch, --passage or --tokens")
		}
		result, err := measureWith(cmd, f, load, func(weights *cpu.Weights, progress func(done, total int64)) (result *speculation.Result, err error) {
			draft, err := loadDraft(cmd.Context(), f.model, plan, weights)
			if err != nil {
				return nil, err
			}
			if draft != nil {
				defer func() { err = errors.Join(err, draft.Close()) }()
			}
			return speculation.Measure(cmd.Context(), weights, draft, plan, progress)
		})
		return measured(cmd, *asJSON, result, err, printBenchSpeculation)
	}
	return cmd
}

// loadDraft loads the draft model of a plan for a model with such weights, if there is one.
func loadDraft(ctx context.Context, of string, plan speculation.Plan, weights *cpu.Weights) (*cpu.Weights, error) {
	if plan.DraftModel == "" {
		return nil, nil
	}
	dir, err := modeldir.Named(plan.DraftModel, "--draft-model")
	if err != nil {
		return nil, err
	}
	if err := tokenizer.CheckSame(of, dir); err != nil {
		return nil, fmt.Errorf("--draft-model: %w", err)
	}
	m, err := model.OpenContext(ctx, dir, model.Options{})
	if err != nil {
		return nil, fmt.Errorf("--draft-model: %w", err)
	}
	draft, err := cpu.Load(ctx, m, cpu.Config{Weights: plan.DType, Threads: weights.Threads(), Beside: weights})
	return draft, errors.Join(err, m.Close())
}

func printBenchSpeculation(out io.Writer, r *speculation.Result) error {
	_, err := fmt.Fprintf(out, `%s, %s weights, KV in %s, %s, threads %d, batch %d; rounds %d, in turns; the tokens are the same

plain        %10.1f tokens/s
speculative  %10.1f tokens/s
gain         %10.2f (%.2f to %.2f by text)
acceptance   %10.2f (%d of %d drafts were right)
tokens/step  %10.2f
drafting     %10.2f of the time with drafts
`, r.Model, r.DType, r.KV, r.ISA, r.Threads, r.Batch, r.Rounds, r.PlainTokens, r.SpeculativeTokens, r.Gain, slices.Min(r.Gains), slices.Max(r.Gains), r.Acceptance, r.Accepted, r.Drafts, r.TokensPerStep, r.DraftingShare)
	return err
}
