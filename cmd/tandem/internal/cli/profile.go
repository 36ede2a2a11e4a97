package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

// profileFlags are what `profile` is told.
type profileFlags struct {
	model, preset, out   string
	cache                string
	weights              cpu.WeightType
	kv                   cpu.KVType
	threads, blockTokens int
	kvMemory             bytesize.Size
	maxContext, maxChunk int
	maxSequences         int
	duration             time.Duration
	layers               bool

	distServe, entry, tensorParallel string
}

func newProfileCommand() *cobra.Command {
	f := profileFlags{kvMemory: 1 << 30}
	cmd := &cobra.Command{
		Use:   "profile [--model DIR | --preset NAME]",
		Short: "Measure how long an engine's steps take, and what it reaches",
		Long: `Measures the CPU engine on this machine: steps of prompt chunks and of single
tokens, of many sizes and contexts, again and again in turn. It fits a model of
their time, compares it with what was measured, and says what the engine reaches
of what the processor can do at most, measured in the same run.

The file that --out writes is what the simulated engine obeys:
tandem up --engine simulated --profile FILE. With --from-distserve it is made of
DistServe's published coefficients instead.

Run it while the machine does nothing else; it says when it finds otherwise.`,
		Example: `  tandem profile --threads 1 --out fable.json
  tandem profile --preset bench-200m --threads 1 --duration 5m --out 200m.json
  tandem profile --layers
  tandem profile --from-distserve profiler.json --entry facebook/opt-13b --tensor-parallel 1 --out a100.json`,
		Args: exactly(),
	}
	flags := cmd.Flags()
	presets := presetNames()
	flags.StringVar(&f.model, "model", "", "directory of the model (default: the bundled one)")
	flags.StringVar(&f.preset, "preset", "", "measure random weights of a shape instead: "+strings.Join(presets, ", "))
	flags.IntVar(&f.threads, "threads", 0, "compute threads (default: as many as the process may use)")
	flags.StringVar((*string)(&f.weights), "cpu-weights", string(cpu.BF16), "type of the weights in memory: bf16, int8, or int4")
	flags.StringVar((*string)(&f.kv), "cpu-kv", string(cpu.KVBF16), "type of keys and values in memory: bf16 or int8")
	flags.StringVar(&f.cache, "cpu-weight-cache", "", "folder that keeps the weights as they are in memory (default: they are packed each time)")
	flags.IntVar(&f.blockTokens, "block-tokens", cpu.DefaultBlockTokens, "tokens in a KV block")
	flags.Var(&f.kvMemory, "kv-memory", "memory for KV blocks; steps that need more are left out")
	flags.IntVar(&f.maxContext, "max-context", 4096, "longest context to measure, in tokens")
	flags.IntVar(&f.maxChunk, "max-chunk", 512, "longest prompt chunk to measure, in tokens")
	flags.IntVar(&f.maxSequences, "max-sequences", 64, "most sequences in a step")
	flags.DurationVar(&f.duration, "duration", time.Minute, "about how long to measure")
	flags.BoolVar(&f.layers, "layers", false, "also say what each layer takes")
	flags.StringVar(&f.out, "out", "", "file to write the profile to")
	flags.StringVar(&f.distServe, "from-distserve", "", "file of DistServe's coefficients to convert, instead of measuring")
	flags.StringVar(&f.entry, "entry", "", "model in that file, such as facebook/opt-13b")
	flags.StringVar(&f.tensorParallel, "tensor-parallel", "1", "degree of tensor parallelism in that file")
	oneOf(cmd, "preset", presets...)
	oneOf(cmd, "cpu-weights", string(cpu.BF16), string(cpu.Int8), string(cpu.Int4))
	oneOf(cmd, "cpu-kv", string(cpu.KVBF16), string(cpu.KVInt8))
	asJSON := addJSON(cmd, "print one JSON object: profile, points, reach, valid")
	onlyOnCommandLine(cmd, "preset", "out", "from-distserve", "entry", "tensor-parallel")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(); err != nil {
			return usageError(cmd, err.Error())
		}
		var report *profileReport
		file := []outputFile{{"out", f.out, func(w io.Writer) error { return report.Profile.Write(w) }}}
		if err := checkOutputs(cmd, file); err != nil {
			return err
		}
		var err error
		if f.distServe != "" {
			report, err = f.convert()
		} else {
			report, err = f.measure(cmd.Context(), cmd.ErrOrStderr())
			err = interruptedOr(cmd.Context(), err)
		}
		if err != nil {
			return err
		}
		if err := writeOutputs(file); err != nil {
			return err
		}
		if *asJSON {
			return json.NewEncoder(cmd.OutOrStdout()).Encode(report)
		}
		report.print(cmd.OutOrStdout(), f.out)
		return nil
	}
	return cmd
}

// check finds mistakes on the command line.
func (f *profileFlags) check() error {
	switch {
	case f.model != "" && f.preset != "":
		return errors.New("--model and --preset are both given: one is measured")
	case f.distServe != "" && f.entry == "":
		return errors.New("--from-distserve needs --entry, a model in the file, such as facebook/opt-13b")
	case f.distServe == "" && f.entry != "":
		return errors.New("--entry needs --from-distserve, the file that it is in")
	case f.weights.Validate() != nil:
		return fmt.Errorf("--cpu-weights: %w", f.weights.Validate())
	case f.kv.Validate() != nil:
		return fmt.Errorf("--cpu-kv: %w", f.kv.Validate())
	case f.threads < 0 || f.threads > 1023:
		return fmt.Errorf("--threads: %d is outside 0 to 1023", f.threads)
	case f.duration < time.Second || f.duration > 24*time.Hour:
		return fmt.Errorf("--duration: %v is outside 1s to 24h", f.duration)
	case f.maxContext < 2:
		return fmt.Errorf("--max-context: %d is less than 2", f.maxContext)
	case f.maxSequences < 1 || f.maxSequences > 4096:
		return fmt.Errorf("--max-sequences: %d is outside 1 to 4096", f.maxSequences)
	case f.maxChunk < 2 || f.maxChunk > 1<<20:
		return fmt.Errorf("--max-chunk: %d is outside 2 to %d", f.maxChunk, 1<<20)
	case f.kvMemory == bytesize.Auto:
		return errors.New("--kv-memory: give a size, such as 1GiB")
	}
	return nil
}

func (f *profileFlags) convert() (*profileReport, error) {
	file, err := os.Open(f.distServe)
	if err != nil {
		return nil, fmt.Errorf("--from-distserve: %w", err)
	}
	defer file.Close()
	converted, err := latency.ReadDistServe(file, f.entry, f.tensorParallel)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.distServe, err)
	}
	return &profileReport{Profile: converted, Valid: true}, nil
}

// measure measures with the model's weights.
func (f *profileFlags) measure(ctx context.Context, stderr io.Writer) (report *profileReport, err error) {
	m := measuredModel{name: f.model, shape: func() (model.Shape, error) { return model.Preset(f.preset) }, load: f.load}
	if f.preset != "" {
		m.name = ""
	}
	err = m.measure(ctx, stderr, func(weights *cpu.Weights, said func(stage string, done, total int64)) error {
		report, err = f.with(ctx, weights, said)
		return err
	})
	return report, err
}

// load says how the weights are loaded.
func (f *profileFlags) load(*model.Model) (cpu.Config, error) {
	return cpu.Config{Weights: f.weights, Threads: f.threads, WeightCache: f.cache}, nil
}

// with profiles an engine on loaded weights.
func (f *profileFlags) with(ctx context.Context, weights *cpu.Weights, said func(stage string, done, total int64)) (_ *profileReport, err error) {
	e, err := weights.NewEngine(cpu.Config{
		KV: f.kv, KVBytes: int64(f.kvMemory), BlockTokens: f.blockTokens, MaxBatchTokens: f.maxChunk + f.maxSequences, MaxSequences: f.maxSequences,
	})
	if err != nil {
		return nil, fmt.Errorf("cpu engine: %w", err)
	}
	defer func() { err = errors.Join(err, e.Close()) }()

	const forLimits = 500 * time.Millisecond // before, meanwhile and after
	var measured []latency.Limits
	measure := func() error {
		limits, err := weights.MeasureLimits(ctx, forLimits)
		measured = append(measured, limits)
		return err
	}
	if err := measure(); err != nil {
		return nil, err
	}
	result, err := profile.Measure(ctx, e, profile.Options{
		Duration: f.duration, MaxContext: f.maxContext, MaxChunk: f.maxChunk, Layers: f.layers, Between: measure, Progress: said,
	})
	if err != nil {
		return nil, err
	}
	if err := measure(); err != nil {
		return nil, err
	}
	limits := profile.Limits(measured...)
	made := result.Profile
	made.Model, made.Engine, made.Threads, made.Limits = e.Model().Name, e.Capacity().Layout.ArithmeticClass, weights.Threads(), &limits
	made.Device, made.Source = weights.ISA(), "tandem profile"
	return newProfileReport(result, weights.Bytes()), nil
}
