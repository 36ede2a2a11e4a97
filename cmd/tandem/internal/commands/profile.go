package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

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
	gpu                  benchGPUFlags

	distServe, entry, tensorParallel string
}

func newProfileCommand() *cobra.Command {
	f := profileFlags{kvMemory: 1 << 30}
	cmd := &cobra.Command{
		Use:   "profile [--model DIR | --preset NAME]",
		Short: "Measure how long an engine's steps take, and how close it comes to the device's limits",
		Long: `Measures the steps of the CPU engine on this machine: prompt chunks, single tokens, and
drafts that it verifies (--speculate), in many sizes and contexts, in varying order. It
fits a model to their times and prints the error of the fit. It also measures the limits
of the processor in the same run, and prints how close the engine comes to them.

With --device cuda:0 it measures the CUDA engine, with longer chunks and contexts and
larger batches. The limits are a large product and reads of memory; with --cublaslt the
product is the better of the engine's own and cuBLASLt's. Random weights of --preset
exist only in memory. 40 seconds are enough for a model of 8 billion parameters on an H100.

The simulated engine takes its step times from the file that --out writes:
tandem up --engine simulated --profile FILE. With --from-distserve the file holds
DistServe's published coefficients instead of measurements.

Run it while the machine does nothing else. If something else ran, it prints and writes
the results all the same, says NOT VALID, and ends with exit status 1.`,
		Example: `  tandem profile --threads 1 --out fable.json
  tandem profile --preset bench-200m --threads 1 --duration 5m --out 200m.json
  tandem profile --layers
  tandem profile --device cuda:0 --preset bench-8b --duration 60s --out h200.json
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
	flags.StringVar(&f.cache, "cpu-weight-cache", "", "folder that caches packed weights (default: none; weights are packed at each start)")
	flags.IntVar(&f.blockTokens, "block-tokens", cpu.DefaultBlockTokens, "tokens in a KV block")
	flags.Var(&f.kvMemory, "kv-memory", "memory for KV blocks; steps that need more are left out (default on a GPU: auto, most of what is free)")
	flags.IntVar(&f.maxContext, "max-context", 4096, fmt.Sprintf("longest context to measure, in tokens (default on a GPU: %d)", gpuProfile.maxContext))
	flags.IntVar(&f.maxChunk, "max-chunk", 512, fmt.Sprintf("longest prompt chunk to measure, in tokens (default on a GPU: %d)", gpuProfile.maxChunk))
	flags.IntVar(&f.maxSequences, "max-sequences", 64, fmt.Sprintf("most sequences in a step (default on a GPU: %d)", gpuProfile.maxSequences))
	flags.DurationVar(&f.duration, "duration", time.Minute, "about how long to measure")
	flags.BoolVar(&f.layers, "layers", false, "also print the time of each layer")
	flags.StringVar(&f.out, "out", "", "file to write the profile to")
	flags.StringVar(&f.distServe, "from-distserve", "", "file of DistServe's coefficients to convert, instead of measuring")
	flags.StringVar(&f.entry, "entry", "", "model in that file, such as facebook/opt-13b")
	flags.StringVar(&f.tensorParallel, "tensor-parallel", "1", "degree of tensor parallelism in that file")
	oneOf(cmd, "preset", presets...)
	oneOf(cmd, "cpu-weights", string(cpu.BF16), string(cpu.Int8), string(cpu.Int4))
	oneOf(cmd, "cpu-kv", string(cpu.KVBF16), string(cpu.KVInt8))
	f.gpu.register(cmd)
	asJSON := addJSON(cmd, "print one JSON object: profile, points, reach, valid")
	onlyOnCommandLine(cmd, append(gpuChoices(), "device", "kv-memory", "max-sequences", "threads")...) // the environment's are of a mesh
	onlyOnCommandLine(cmd, "preset", "out", "from-distserve", "entry", "tensor-parallel")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		onGPU, err := f.onGPU(cmd.Flags())
		if err = cmp.Or(err, f.check()); err != nil {
			return usageError(cmd, err.Error())
		}
		var report *profileReport
		file := []outputFile{{"out", f.out, func(w io.Writer) error { return report.Profile.Write(w) }}}
		if err := checkOutputs(cmd, file); err != nil {
			return err
		}
		switch {
		case f.distServe != "":
			report, err = f.convert()
		case onGPU:
			report, err = f.measureGPU(cmd.Context(), cmd.ErrOrStderr())
			err = interruptedOr(cmd.Context(), err)
		default:
			report, err = f.measure(cmd.Context(), cmd.ErrOrStderr())
			err = interruptedOr(cmd.Context(), err)
		}
		if err != nil {
			return err
		}
		if err := writeOutputs(file); err != nil {
			return err
		}
		err = show(cmd, *asJSON, report, func(w io.Writer, r *profileReport) error { return r.print(w, f.out) })
		if err == nil && !report.Valid {
			err = errors.New("NOT VALID: the machine was disturbed: measure again while nothing else runs")
		}
		return err
	}
	return cmd
}

func (f *profileFlags) check() error {
	_, unknown := model.Preset(f.preset)
	switch {
	case f.model != "" && f.preset != "":
		return errors.New("--model and --preset are both given: pass one of them")
	case f.preset != "" && unknown != nil:
		return fmt.Errorf("--preset: %w", unknown)
	case f.distServe != "" && f.entry == "":
		return errors.New("--from-distserve needs --entry, a model in the file, such as facebook/opt-13b")
	case f.distServe == "" && f.entry != "":
		return errors.New("--entry needs --from-distserve, the file that it is in")
	case f.weights.Validate() != nil:
		return fmt.Errorf("--cpu-weights: %w", f.weights.Validate())
	case f.kv.Validate() != nil:
		return fmt.Errorf("--cpu-kv: %w", f.kv.Validate())
	case f.threads < 0 || f.threads > runtime.NumCPU():
		return fmt.Errorf("--threads: %d is outside 0 to %d, the processors here", f.threads, runtime.NumCPU())
	case f.duration < time.Second || f.duration > 24*time.Hour:
		return fmt.Errorf("--duration: %v is outside 1s to 24h", f.duration)
	case f.maxContext < 2:
		return fmt.Errorf("--max-context: %d is less than 2", f.maxContext)
	case f.maxSequences < 1 || f.maxSequences > 4096:
		return fmt.Errorf("--max-sequences: %d is outside 1 to 4096", f.maxSequences)
	case f.maxChunk < 2 || f.maxChunk > 1<<20:
		return fmt.Errorf("--max-chunk: %d is outside 2 to %d", f.maxChunk, 1<<20)
	case f.kvMemory == bytesize.Auto && f.gpu.device == engines.DeviceCPU:
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

func (f *profileFlags) measure(ctx context.Context, stderr io.Writer) (report *profileReport, err error) {
	m := measuredModel{shape: func() (model.Shape, error) { return model.Preset(f.preset) }, load: f.load}
	if f.preset == "" {
		if m.name, err = modeldir.Find(f.model); err != nil {
			return nil, err
		}
	}
	err = m.measure(ctx, stderr, func(weights *cpu.Weights, said func(stage string, done, total int64)) error {
		report, err = f.with(ctx, weights, said)
		return err
	})
	return report, err
}

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

	const forLimits = 500 * time.Millisecond // each time
	result, measured, err := f.run(ctx, e, profile.Options{Progress: said}, func() (latency.Limits, error) {
		return weights.MeasureLimits(ctx, forLimits)
	})
	if err != nil {
		return nil, err
	}
	limits := profile.Limits(measured...)
	result.Profile.Threads, result.Profile.Limits, result.Profile.Device = weights.Threads(), &limits, weights.ISA()
	return newProfileReport(result, weights.Bytes()), nil
}

// run profiles an engine, and measures the limits of its device before, meanwhile and after.
func (f *profileFlags) run(
	ctx context.Context, e engine.Engine, o profile.Options, limits func() (latency.Limits, error),
) (_ *profile.Result, measured []latency.Limits, _ error) {
	o.Duration, o.MaxContext, o.MaxChunk, o.Layers = f.duration, f.maxContext, f.maxChunk, f.layers
	o.Between = func() error {
		l, err := limits()
		measured = append(measured, l)
		return err
	}
	if err := o.Between(); err != nil {
		return nil, nil, err
	}
	result, err := profile.Measure(ctx, e, o)
	if err == nil {
		err = o.Between()
	}
	if err != nil {
		return nil, nil, err
	}
	made := result.Profile
	made.Model, made.Engine, made.Source = e.Model().Name, e.Capacity().Layout.ArithmeticClass, "tandem profile"
	return result, measured, nil
}

// profileReport is what `profile` prints, with --json as it is here.
type profileReport struct {
	Profile *latency.Profile `json:"profile"`
	// Points are the steps that were measured; none if a profile was converted.
	Points  []*profile.Point `json:"points,omitempty"`
	LeftOut int              `json:"left_out,omitempty"`
	Reach   *profileReach    `json:"reach,omitempty"`
	Valid   bool             `json:"valid"`
}

// profileReach is what the engine reached; the limits were measured in the same
// run, on the same threads.
type profileReach struct {
	PrefillGFLOPS float64 `json:"prefill_gflops"`
	PeakGFLOPS    float64 `json:"peak_gflops"`
	PrefillOfPeak float64 `json:"prefill_of_peak"`
	DecodeGBytes  float64 `json:"decode_gbytes_per_s"`
	ReadGBytes    float64 `json:"read_gbytes_per_s"`
	DecodeOfRead  float64 `json:"decode_of_read"`
	// WeightBytes is the size of the packed weights: what fits into a cache can be
	// read faster than memory.
	WeightBytes int64 `json:"weight_bytes"`
}

func newProfileReport(result *profile.Result, weightBytes int64) *profileReport {
	limits := result.Profile.Limits
	return &profileReport{
		Profile: result.Profile, Points: result.Points, LeftOut: result.LeftOut, Valid: limits.Valid,
		Reach: &profileReach{
			PrefillGFLOPS: result.FLOPsPerSecond / 1e9, PeakGFLOPS: limits.FLOPsPerSecond / 1e9,
			PrefillOfPeak: result.FLOPsPerSecond / limits.FLOPsPerSecond,
			DecodeGBytes:  result.ReadBytesPerSecond / 1e9, ReadGBytes: limits.ReadBytesPerSecond / 1e9,
			DecodeOfRead: result.ReadBytesPerSecond / limits.ReadBytesPerSecond,
			WeightBytes:  weightBytes,
		},
	}
}

// print writes the report for people.
func (r *profileReport) print(out io.Writer, file string) error {
	p := r.Profile
	fmt.Fprintf(out, "%s on %s %s", p.Model, p.Engine, p.Device)
	if p.Threads > 0 {
		fmt.Fprintf(out, ", threads %d", p.Threads)
	}
	fmt.Fprintln(out)
	if len(r.Points) > 0 {
		r.printPoints(out)
	}
	printRegimes(out, "prefill", "prompt tokens", p.Prefill)
	printRegimes(out, "decode", "sequences", p.Decode)
	printRegimes(out, "mixed  +", "sequences beside prompts", p.Mixed)
	printRegimes(out, "verify", "tokens, drafts included", p.Verify)
	for _, kind := range []string{profile.Prefill, profile.Decode, profile.Mixed, profile.Verify} {
		if e, measured := p.Errors[kind]; measured && e.Points > 0 {
			fmt.Fprintf(out, "%-8s fitted to %d points: error p50 %.1f%%, p90 %.1f%%, max %.1f%%\n", kind, e.Points, 100*e.Median, 100*e.P90, 100*e.Max)
		}
	}
	if len(p.Verify) == 0 {
		fmt.Fprintln(out, "verify   unknown: no steps with drafts were measured, so this profile simulates no speculation")
	}
	switch {
	case p.Jitter > 0:
		fmt.Fprintf(out, "jitter   %.1f%%\n", 100*p.Jitter)
	case len(r.Points) > 0:
		fmt.Fprintln(out, "jitter   unknown: too few repeats of each step; pass a longer --duration")
	}
	for _, kind := range []string{profile.Prefill, profile.Decode} {
		if l, measured := p.Layers[kind]; measured {
			printLayers(out, kind, l)
		}
	}
	if reach := r.Reach; reach != nil {
		fmt.Fprintf(out, "prefill  %.0f GFLOP/s of %.0f: %.0f%%\n", reach.PrefillGFLOPS, reach.PeakGFLOPS, 100*reach.PrefillOfPeak)
		fmt.Fprintf(out, "decode   %.1f GB/s of %.1f: %.0f%% (weights of %s)\n", reach.DecodeGBytes, reach.ReadGBytes, 100*reach.DecodeOfRead, bytesText(reach.WeightBytes))
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(out, "%d kinds of step were left out: pass a longer --duration or more --kv-memory\n", r.LeftOut)
	}
	if file != "" {
		fmt.Fprintf(out, "written to %s\n", file)
	}
	return nil
}

// drawn is how many tokens a step draws.
func drawn(p *profile.Point) int {
	if p.ChunkSampled {
		return p.Batch + 1
	}
	return p.Batch
}

func (r *profileReport) printPoints(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "step\tchunk\tfrom\tdrawn\tbatch\tcontext\tdrafts\tms\tspread\tfitted ms\terror\trepeats\t")
	for _, p := range r.Points {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.3f\t%.1f%%\t%.3f\t%+.1f%%\t%d\t\n",
			p.Kind, p.Chunk, p.ChunkStart, drawn(p), p.Batch, p.Context, p.Drafts, p.MedianMs, 100*p.Spread, p.FittedMs, 100*p.Error, p.Repeats)
	}
	_ = table.Flush()
}

func printRegimes(out io.Writer, kind, what string, regimes []latency.Regime) {
	for _, r := range regimes {
		upTo := "any number of " + what
		if r.UpTo > 0 {
			upTo = fmt.Sprintf("up to %d %s", r.UpTo, what)
		}
		fmt.Fprintf(out, "%-8s ms = %.4g + %.4g·tokens", kind, r.BaseMs, r.PerTokenMs)
		for _, term := range []struct {
			ms   float64
			name string
		}{{r.PerSquareMs, "Σ(end²−start²)"}, {r.PerContextTokenMs, "Σcontext"}, {r.PerSampleMs, "drawn"}} {
			if term.ms > 0 {
				fmt.Fprintf(out, " + %.4g·%s", term.ms, term.name)
			}
		}
		fmt.Fprintf(out, "   (%s)\n", upTo)
	}
}

func printLayers(out io.Writer, kind string, l latency.LayerTimes) {
	total := l.HeadMs
	for _, ms := range l.LayersMs {
		total += ms
	}
	share := func(ms float64) float64 { return 100 * ms / max(total, 1e-9) }
	fmt.Fprintf(out, "%s of %d tokens, context %d: %.3f ms\n", kind, l.Tokens, l.Context, total)
	for i, ms := range l.LayersMs {
		fmt.Fprintf(out, "  layer %-4d %8.3f ms  %4.1f%%\n", i, ms, share(ms))
	}
	fmt.Fprintf(out, "  head       %8.3f ms  %4.1f%%\n", l.HeadMs, share(l.HeadMs))
}
