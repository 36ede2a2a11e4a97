package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/speculation"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/tokenizer"
)

type benchSpeculationFlags struct {
	plan          speculation.Plan
	model, preset string
	threads       int
}

func newBenchSpeculationCommand() *cobra.Command {
	var f benchSpeculationFlags
	presets := presetNames()
	cmd := &cobra.Command{
		Use:   "speculation",
		Short: "Measure speculative decoding beside plain decoding",
		Long: `Decodes with the CPU engine and a worker's scheduler, in this process, with and
without guessed tokens (--speculate ngram) in turns, and fails if the tokens differ.

The model writes a passage for each sequence first. A prompt is the passage --repeats
times and its beginning, so that the text repeats itself, as in editing or retrieval. Of the
guesses, --keep says which share stays as it is. The others are made wrong: --keep 0.8
stands for a source of guesses of which each is right in 80 of 100 cases at most, and
--keep 0 for texts in which every guess is wrong.

With --draft-model a smaller model guesses (--speculate draft). drafting is its share of
the time.

gain is the median over the rounds of tokens a second with guesses over those without,
of steps that decode alone. acceptance is the share of right ones among the guesses
before which no other was wrong.

Without --model, the command makes a model with random weights and removes it at the end.`,
		Example: `  tandem bench speculation --model models/fable
  tandem bench speculation --model models/fable --keep 0 --batch 8 --json
  tandem bench speculation --model models/fable --draft-model models/fable-draft --repeats 1
  tandem bench speculation --preset bench-200m --keep 0.8 --passage 64 --tokens 48 --rounds 3`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", "directory of the model (default: a random model of --preset)")
	fs.StringVar(&f.preset, "preset", "bench-200m", "shape of the random model: "+strings.Join(presets, ", "))
	fs.StringVar((*string)(&f.plan.DType), "dtype", string(cpu.BF16), "type of the weights: bf16, int8, or int4")
	fs.StringVar((*string)(&f.plan.KV), "kv", string(cpu.KVBF16), "type of keys and values: bf16 or int8")
	fs.IntVar(&f.plan.Batch, "batch", 1, "sequences that decode at a time")
	fs.IntVar(&f.plan.PassageTokens, "passage", 160, "tokens of the passage that a prompt repeats")
	fs.IntVar(&f.plan.Repeats, "repeats", 2, "how often a prompt has its passage")
	fs.Float32Var(&f.plan.PassageTemperature, "passage-temperature", 0, "temperature of the passage")
	fs.IntVar(&f.plan.Tokens, "tokens", 96, "tokens generated after each prompt")
	fs.IntVar(&f.plan.MaxDrafts, "speculate-tokens", 8, "maximum guessed tokens of one sequence in a step")
	fs.StringVar(&f.plan.DraftModel, "draft-model", "", "directory of a smaller model with the same tokenizer, which guesses (default: n-grams)")
	fs.Float64Var(&f.plan.Keep, "keep", 1, "share of the guesses that are left as they are")
	fs.Float32Var(&f.plan.Temperature, "temperature", 0, "temperature of the tokens after the prompt")
	fs.IntVar(&f.plan.Rounds, "rounds", 7, "rounds, each with and without guesses")
	fs.BoolVar(&f.plan.ProcessorTime, "processor-time", false, "with --threads 1: seconds of processor time, so that other programs do not count")
	fs.IntVar(&f.threads, "threads", 0, "compute threads (default: as many as the process may use)")
	oneOf(cmd, "preset", presets...)
	oneOf(cmd, "dtype", string(cpu.BF16), string(cpu.Int8), string(cpu.Int4))
	oneOf(cmd, "kv", string(cpu.KVBF16), string(cpu.KVInt8))
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(cmd.Flags().Changed("preset")); err != nil {
			return usageError(cmd, err.Error())
		}
		result, err := f.measure(cmd.Context(), cmd.ErrOrStderr())
		return measured(cmd, *asJSON, result, err, printBenchSpeculation)
	}
	return cmd
}

func (f *benchSpeculationFlags) check(presetGiven bool) error {
	if f.threads < 0 || f.threads > 1023 {
		return fmt.Errorf("--threads: %d is outside 0 to 1023", f.threads)
	}
	if f.plan.ProcessorTime && f.threads != 1 {
		return errors.New("--processor-time: counts one thread: pass --threads 1")
	}
	if f.model != "" {
		if presetGiven {
			return errors.New("--model and --preset are both given: pass one of them")
		}
		return f.plan.Validate()
	}
	if f.plan.DraftModel != "" {
		return errors.New("--draft-model: guesses for a model of --model: pass both or none")
	}
	shape, err := model.Preset(f.preset)
	if err != nil {
		return fmt.Errorf("--preset: %w", err)
	}
	return f.plan.ValidateFor(shape.Name, shape.ContextTokens)
}

func (f *benchSpeculationFlags) measure(ctx context.Context, stderr io.Writer) (result *speculation.Result, err error) {
	load := func(m *model.Model) (cpu.Config, error) {
		return cpu.Config{Weights: f.plan.DType, Threads: f.threads}, checkPlan(f.plan, m.Spec(), "a smaller model, --batch, --passage or --tokens")
	}
	m := measuredModel{name: f.model, shape: func() (model.Shape, error) { return model.Preset(f.preset) }, load: load}
	err = m.measure(ctx, stderr, func(weights *cpu.Weights, report func(stage string, done, total int64)) (err error) {
		draft, err := loadDraft(ctx, f.model, f.plan, weights)
		if err != nil {
			return err
		}
		if draft != nil {
			defer func() { err = errors.Join(err, draft.Close()) }()
		}
		result, err = speculation.Measure(ctx, weights, draft, f.plan, func(done, total int64) { report("measure", done, total) })
		return err
	})
	return result, err
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
gain         %10.2f (of the best rounds %.2f)
acceptance   %10.2f (%d of %d guesses were right)
tokens/step  %10.2f
drafting     %10.2f of the time with guesses
`, r.Model, r.DType, r.KV, r.ISA, r.Threads, r.Batch, r.Rounds, r.PlainTokens, r.SpeculativeTokens, r.Gain, r.BestGain, r.Acceptance, r.Accepted, r.Drafts, r.TokensPerStep, r.DraftingShare)
	return err
}
