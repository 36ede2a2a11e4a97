package commands

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

type benchEngineFlags struct {
	measuredFlags
	plan              engine.Plan
	isa, cache        string
	batches, contexts []int // into plan, one of each, or into gpu
	gpu               benchGPUFlags
}

func newBenchEngineCommand() *cobra.Command {
	var f benchEngineFlags
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Measure the CPU or CUDA engine beside what the machine can do",
		Long: `Computes a prompt and decodes tokens with the CPU engine, again and again, in this
process and without a scheduler. Each round also measures the limits of the machine,
on the same threads: multiply-adds in registers, with the instruction set in use, and
reads from memory.

prefill_of_peak is prefill's share of the multiply-add peak. prefill_of_peak_computed
leaves out what the engine need not compute of the last layer. The peak is that of
floating point, for int8 and int4 too. Figures are those of the best rounds. Beside
them stand the median rounds, and how far these are below.

Within a round, decode and memory reads take turns every 50 ms, or every fifth of
--limits if that is less. decode_of_read compares decode with the reads just before
and after it. It is the median over all decode_pairs such windows, so it holds even
if other programs use memory. decode_of_best_read compares the best round of decode
with the best reads, which may come from different moments.

If something disturbed the limits, the result says "valid": false, and why.

Without --model, the command makes a model with random weights and removes it at the end.

With --device cuda:0 it measures the CUDA engine, and the limits of that GPU in the
same rounds: copies of its memory, reads of weights, a large product, copies from and
to the host, and launches in a graph. --batch and --context then take several values;
each batch is measured with each context. decode_of_floor is the shortest time in which
weights and KV can be read, at the higher of the first two limits, as a share of a step.
attention_gbytes_per_s is derived from steps with a short and a long context. The command
also copies pages of the prompt to the host, alone and beside decode. Random weights
exist only in memory here, and start is the time from there to the first step. See
docs/gpu.md for more.`,
		Example: `  tandem bench engine
  tandem bench engine --prompt 4096 --rounds 3 --json
  tandem bench engine --dtype int8
  tandem bench engine --context 4096 --decode 16 --kv int8
  tandem bench engine --model models/fable --batch 8 --context 256
  tandem bench engine --device cuda:0 --preset bench-8b --batch 1,8,64 --context 1024 --prompt 4096`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	f.add(cmd, "")
	fs.StringVar((*string)(&f.plan.DType), "dtype", string(cpu.BF16), "type of the weights: bf16, int8, or int4")
	fs.StringVar((*string)(&f.plan.KV), "kv", string(cpu.KVBF16), "type of keys and values: bf16 or int8")
	fs.StringVar(&f.cache, "cpu-weight-cache", "", "folder that caches packed weights (default: none; weights are packed at each start)")
	fs.IntVar(&f.plan.PromptTokens, "prompt", 512, "tokens in the prompt")
	fs.IntVar(&f.plan.DecodeSteps, "decode", 64, "decode steps in a round")
	fs.IntSliceVar(&f.batches, "batch", []int{1}, "sequences that decode at a time; a GPU takes several values")
	fs.IntSliceVar(&f.contexts, "context", []int{64}, "context tokens of each sequence when a round begins; a GPU takes several values")
	fs.StringVar(&f.isa, "isa", "", "instruction set, such as avx2 or portable (default: the best that this CPU has)")
	fs.IntVar(&f.plan.Rounds, "rounds", 5, "rounds to measure; each has prefill, decode and the limits")
	fs.DurationVar(&f.plan.LimitsFor, "limits", 250*time.Millisecond, "how long a round measures the limits; 0s: a moment, enough to try the command (a GPU takes no other value)")
	fs.IntVar(&f.gpu.plan.ChunkTokens, "chunk", cuda.DefaultMaxBatchTokens, "GPU: most prompt tokens in a step")
	f.gpu.register(cmd)
	oneOf(cmd, "dtype", string(cpu.BF16), string(cpu.Int8), string(cpu.Int4))
	oneOf(cmd, "kv", string(cpu.KVBF16), string(cpu.KVInt8))
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if on, err := f.onGPU(cmd.Flags()); err != nil {
			return usageError(cmd, err.Error())
		} else if on {
			return f.runGPU(cmd, *asJSON)
		}
		if err := f.checkCPU(cmd); err != nil {
			return usageError(cmd, err.Error())
		}
		result, err := measureWith(cmd, f.measuredFlags, f.load, func(weights *cpu.Weights, progress func(done, total int64)) (*engine.Result, error) {
			return engine.Measure(cmd.Context(), weights, f.plan, progress)
		})
		return measured(cmd, *asJSON, result, err, printBenchEngine)
	}
	return cmd
}

func (f *benchEngineFlags) checkCPU(cmd *cobra.Command) error {
	if len(f.batches) != 1 || len(f.contexts) != 1 {
		return errors.New("--batch and --context: the CPU engine takes one value of each: pass one, or choose a GPU with --device")
	}
	f.plan.Batch, f.plan.ContextTokens = f.batches[0], f.contexts[0]
	return f.check(cmd, f.plan)
}

// load says how the weights are loaded, if plan and memory allow.
func (f *benchEngineFlags) load(m *model.Model) (cpu.Config, error) {
	config := cpu.Config{Weights: f.plan.DType, Threads: f.threads, ISA: f.isa, WeightCache: f.cache}
	return config, checkPlan(f.plan, m.Spec(), "a smaller model, --batch, --context or --prompt")
}

func printBenchEngine(out io.Writer, r *engine.Result) error {
	fmt.Fprintf(out, "%s, %s weights of %s, KV in %s, %s, threads %d; rounds %d, each with the limits\n\n",
		r.Model, r.DType, bytesText(r.WeightBytes), r.KV, r.ISA, r.Threads, r.Rounds)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tbest\tmedian\tbelow the best\t\t")
	for _, row := range []struct {
		name                 string
		best, median, spread float64
		unit                 string
	}{
		{fmt.Sprintf("prefill of %d tokens", r.PromptTokens), r.PrefillTokens, r.Median.PrefillTokens, r.Spread.PrefillTokens, "tokens/s"},
		{fmt.Sprintf("decode, batch %d, context %d", r.Batch, r.ContextTokens), r.DecodeTokens, r.Median.DecodeTokens, r.Spread.DecodeTokens, "tokens/s"},
		{"limit: multiply-adds", r.PeakGFLOPS, r.Median.PeakGFLOPS, r.Spread.PeakGFLOPS, "GFLOP/s"},
		{"limit: memory reads", r.ReadGBytes, r.Median.ReadGBytes, r.Spread.ReadGBytes, "GB/s"},
	} {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.0f%%\t%s\t\n", row.name, row.best, row.median, 100*row.spread, row.unit)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nprefill  %.1f GFLOP/s of %.1f: %.2f of peak, %.2f without what need not be computed of the last layer\n",
		r.PrefillGFLOPS, r.PeakGFLOPS, r.PrefillOfPeak, r.PrefillOfPeakComputed)
	fmt.Fprintf(out, "decode   %.2f of memory reads at the same moments (median of %d pairs); each step reads %s\n", r.DecodeOfRead, r.DecodePairs, bytesText(int64(r.DecodeStepBytes)))
	fmt.Fprintf(out, "         best %.1f GB/s, best reads %.1f GB/s: %.2f\n", r.DecodeGBytes, r.ReadGBytes, r.DecodeOfBestRead)
	fmt.Fprintf(out, "step     best %.2f ms, median %.2f ms; %.1f allocations, %.0f bytes in all\n",
		r.DecodeStepMs.Min, r.DecodeStepMs.P50, r.AllocsPerStep, r.AllocBytesPerStep)
	fmt.Fprintf(out, "barrier  %.0f ns\n", r.BarrierNs)
	verdict := "valid: the limits agree, and nothing else used the machine"
	if !r.Valid {
		verdict = "NOT VALID: " + r.Reason
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}
