package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/model"
)

type benchEngineFlags struct {
	plan               engine.Plan
	model, preset, isa string
	cache              string
	threads            int
	batches, contexts  []int // into plan, one of each, or into gpu
	gpu                benchGPUFlags
}

func newBenchEngineCommand() *cobra.Command {
	var f benchEngineFlags
	presets := presetNames()
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Measure the CPU or CUDA engine beside what the machine can do",
		Long: `Computes a prompt and decodes tokens with the CPU engine, in this process and without
a scheduler, again and again. In the same rounds, on the same threads, it measures the
limits: multiply-adds of the instruction set in use, in registers alone, and reading
memory. prefill_of_peak is the share of the first that prefill reaches;
prefill_of_peak_computed does not count what the engine need not compute of the last
layer. The peak is that of floating point for int8 and int4 too. Figures are those of the
best rounds; the middle ones and how far they are below stand beside.

Within a round decode and reading memory take turns every 50 ms (every fifth of --limits,
if that is less). decode_of_read is how fast decode reads as a share of reading just
before and after it, the median over all decode_pairs of such windows, so that it holds
where others use memory too. decode_of_best_read is the best round's decode as a share of
the best reading, which need not have seen the same machine.

A run whose limits were disturbed says "valid": false, and why.

Without --model, one of random weights is made first and removed at the end.

With --device cuda:0 it is the CUDA engine, beside what that GPU can do, measured in the
same rounds: copying its memory, reading weights, a large product, copies from and to the
host, launches in a graph. --batch and --context then take several values, each batch
with each context. decode_of_floor is the time that reading weights and KV takes at the
higher of the first two limits, as a share of a step; attention_gbytes_per_s follows from
steps behind a short and a long context. Pages of the prompt are copied to the host alone
and beside decode. docs/gpu.md has more. Random weights are in memory alone here, and
start says how long it takes from there to the first step.`,
		Example: `  tandem bench engine
  tandem bench engine --prompt 4096 --rounds 3 --json
  tandem bench engine --dtype int8
  tandem bench engine --context 4096 --decode 16 --kv int8
  tandem bench engine --model models/fable --batch 8 --context 256
  tandem bench engine --device cuda:0 --preset bench-8b --batch 1,8,64 --context 1024 --prompt 4096`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	fs.StringVar(&f.model, "model", "", "directory of the model (default: one of --preset is made)")
	fs.StringVar(&f.preset, "preset", "bench-200m", "shape of the model that is made: "+strings.Join(presets, ", "))
	fs.StringVar((*string)(&f.plan.DType), "dtype", string(cpu.BF16), "type of the weights: bf16, int8, or int4")
	fs.StringVar((*string)(&f.plan.KV), "kv", string(cpu.KVBF16), "type of keys and values: bf16 or int8")
	fs.StringVar(&f.cache, "cpu-weight-cache", "", "folder that keeps the weights as they are in memory (default: they are packed each time)")
	fs.IntVar(&f.plan.PromptTokens, "prompt", 512, "tokens of the prompt")
	fs.IntVar(&f.plan.DecodeSteps, "decode", 64, "steps of decode in a round")
	fs.IntSliceVar(&f.batches, "batch", []int{1}, "sequences that decode at a time; on a GPU several such numbers")
	fs.IntSliceVar(&f.contexts, "context", []int{64}, "tokens behind each of them when a round begins; on a GPU several such numbers")
	fs.IntVar(&f.threads, "threads", 0, "compute threads (default: as many as the process may use)")
	fs.StringVar(&f.isa, "isa", "", "instruction set, such as avx2 or portable (default: the best one here)")
	fs.IntVar(&f.plan.Rounds, "rounds", 5, "rounds of prefill, decode and limits in turn")
	fs.DurationVar(&f.plan.LimitsFor, "limits", 250*time.Millisecond, "how long a round measures the limits; 0s: a moment, which is enough to try the command (on a GPU: only that)")
	f.gpu.register(cmd)
	oneOf(cmd, "preset", presets...)
	oneOf(cmd, "dtype", string(cpu.BF16), string(cpu.Int8), string(cpu.Int4))
	oneOf(cmd, "kv", string(cpu.KVBF16), string(cpu.KVInt8))
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if on, err := f.onGPU(cmd.Flags()); err != nil {
			return usageError(cmd, err.Error())
		} else if on {
			return f.runGPU(cmd, *asJSON)
		}
		if err := f.check(cmd.Flags().Changed("preset")); err != nil {
			return usageError(cmd, err.Error())
		}
		result, err := f.measure(cmd.Context(), cmd.ErrOrStderr())
		return measured(cmd, *asJSON, result, err, printBenchEngine)
	}
	return cmd
}

func (f *benchEngineFlags) check(presetGiven bool) error {
	if len(f.batches) != 1 || len(f.contexts) != 1 {
		return errors.New("--batch and --context: the CPU engine is measured with one of each: pass one number, or a GPU with --device")
	}
	f.plan.Batch, f.plan.ContextTokens = f.batches[0], f.contexts[0]
	if f.threads < 0 || f.threads > 1023 {
		return fmt.Errorf("--threads: %d is outside 0 to 1023", f.threads)
	}
	return f.checkModel(presetGiven, f.plan)
}

// checkModel checks a plan for the model that is measured, as far as it is known.
func (f *benchEngineFlags) checkModel(presetGiven bool, plan interface {
	Validate() error
	ValidateFor(name string, contextTokens int) error
}) error {
	if f.model != "" {
		if presetGiven {
			return errors.New("--model and --preset are both given: one is measured")
		}
		return plan.Validate()
	}
	shape, err := model.Preset(f.preset)
	if err != nil {
		return fmt.Errorf("--preset: %w", err)
	}
	return plan.ValidateFor(shape.Name, shape.ContextTokens)
}

func (f *benchEngineFlags) measure(ctx context.Context, stderr io.Writer) (result *engine.Result, err error) {
	m := measuredModel{name: f.model, shape: func() (model.Shape, error) { return model.Preset(f.preset) }, load: f.load}
	err = m.measure(ctx, stderr, func(weights *cpu.Weights, report func(stage string, done, total int64)) error {
		result, err = engine.Measure(ctx, weights, f.plan, func(done, total int64) { report("profile", done, total) })
		return err
	})
	return result, err
}

// load says how the weights are loaded, if plan and memory allow.
func (f *benchEngineFlags) load(m *model.Model) (cpu.Config, error) {
	config := cpu.Config{Weights: f.plan.DType, Threads: f.threads, ISA: f.isa, WeightCache: f.cache}
	return config, checkPlan(f.plan, m.Spec(), "a smaller model, --batch, --context or --prompt")
}

func printBenchEngine(out io.Writer, r *engine.Result) error {
	fmt.Fprintf(out, "%s, %s weights of %s, KV in %s, %s, threads %d; rounds %d, in turns with the limits\n\n",
		r.Model, r.DType, bytesText(r.WeightBytes), r.KV, r.ISA, r.Threads, r.Rounds)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tbest\tmedian\tbelow the best\t\t")
	for _, row := range []struct {
		name                 string
		best, median, spread float64
		unit                 string
	}{
		{fmt.Sprintf("prefill of %d tokens", r.PromptTokens), r.PrefillTokens, r.Median.PrefillTokens, r.Spread.PrefillTokens, "tokens/s"},
		{fmt.Sprintf("decode of %d after %d", r.Batch, r.ContextTokens), r.DecodeTokens, r.Median.DecodeTokens, r.Spread.DecodeTokens, "tokens/s"},
		{"limit: multiply-adds", r.PeakGFLOPS, r.Median.PeakGFLOPS, r.Spread.PeakGFLOPS, "GFLOP/s"},
		{"limit: reading memory", r.ReadGBytes, r.Median.ReadGBytes, r.Spread.ReadGBytes, "GB/s"},
	} {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.0f%%\t%s\t\n", row.name, row.best, row.median, 100*row.spread, row.unit)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nprefill  %.1f GFLOP/s of %.1f: %.2f of peak, %.2f by what is computed (of the last layer, only what becomes logits)\n",
		r.PrefillGFLOPS, r.PeakGFLOPS, r.PrefillOfPeak, r.PrefillOfPeakComputed)
	fmt.Fprintf(out, "decode   %.2f of reading in the same moments, the median of pairs: %d; steps of %s\n", r.DecodeOfRead, r.DecodePairs, bytesText(int64(r.DecodeStepBytes)))
	fmt.Fprintf(out, "         %.1f GB/s at best of %.1f at best: %.2f\n", r.DecodeGBytes, r.ReadGBytes, r.DecodeOfBestRead)
	fmt.Fprintf(out, "step     %.2f ms at best, %.2f ms in the middle; %.1f allocations of %.0f bytes together\n",
		r.DecodeStepMs.Min, r.DecodeStepMs.P50, r.AllocsPerStep, r.AllocBytesPerStep)
	fmt.Fprintf(out, "barrier  %.0f ns\n", r.BarrierNs)
	verdict := "valid: the limits agree and had the machine"
	if !r.Valid {
		verdict = "NOT VALID: " + r.Reason
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}
