package commands

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/gpu"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/model"
)

// benchGPUFlags are what `bench engine` is told beside benchEngineFlags where a GPU is
// measured. `profile` has them too, without --chunk.
type benchGPUFlags struct {
	device  string
	plan    gpu.Plan    // without what benchEngineFlags say
	options gpu.Options // without progress
}

// gpuLibraries are flags that an environment may set for whatever is measured, and
// gpuChoices the others for a GPU only.
func gpuLibraries() []string { return []string{"cuda-driver", "cublaslt"} }
func gpuChoices() []string   { return []string{"no-graphs", "cuda-products", "cuda-weights", "cuda-kv"} }

func (g *benchGPUFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&g.device, "device", engines.DeviceCPU, "device to measure: cpu, or a GPU such as cuda:0")
	fs.StringVar(&g.options.Load.Driver, "cuda-driver", "", "path of the CUDA driver's library (default: the system's libcuda.so.1)")
	fs.BoolVar(&g.plan.NoGraphs, "no-graphs", false, "GPU: launch the kernels of a decode step one by one, without a graph")
	fs.StringVar((*string)(&g.plan.Products), "cuda-products", string(cuda.Own), "GPU: kernels for products of more than 64 rows: own or cublaslt")
	fs.StringVar(&g.options.CublasLt, "cublaslt", "", "GPU: path of cuBLASLt 12 or 13, or of its folder; adds its product to the limits (default: the system's libcublasLt.so, with --cuda-products cublaslt)")
	fs.StringVar((*string)(&g.plan.Weights), "cuda-weights", string(cuda.BF16), "GPU: type of the layers' weights: bf16, int8 or fp8")
	fs.StringVar((*string)(&g.plan.KV), "cuda-kv", string(cuda.KVBF16), "GPU: type of keys and values: bf16 or fp8")
	oneOf(cmd, "cuda-weights", texts(cuda.WeightTypes())...)
	oneOf(cmd, "cuda-kv", texts(cuda.KVTypes())...)
	oneOf(cmd, "cuda-products", string(cuda.Own), string(cuda.CublasLt))
	oneOf(cmd, "device", engines.DeviceCPU, "cuda:0")
}

// choose says whether a GPU is measured, and finds flags that are for the other only.
func (g *benchGPUFlags) choose(fs *pflag.FlagSet, forGPU, forCPU []string) (bool, error) {
	number, err := engines.GPU(g.device)
	if err != nil {
		return false, err
	}
	if number < 0 && g.device != engines.DeviceCPU {
		return false, fmt.Errorf("--device: %q is not a device: pass %s or a GPU such as cuda:0", g.device, engines.DeviceCPU)
	}
	g.options.Load.Device = number
	strange, of := forGPU, "a GPU"
	if number >= 0 {
		strange, of = forCPU, "the CPU engine"
	}
	for _, name := range strange {
		if fs.Changed(name) {
			return false, fmt.Errorf("--%s is for %s only: leave it out, or choose another --device", name, of)
		}
	}
	return number >= 0, nil
}

// present says why there is no such GPU. It comes before any work: without a driver or a
// GPU the rest is for nothing.
func (g *benchGPUFlags) present() error {
	if _, err := cuda.Devices(g.options.Load.Driver); err != nil {
		return fmt.Errorf("--device %s: %w", g.device, err)
	}
	return nil
}

// onGPU says whether a GPU is measured, and finds flags that contradict it.
func (f *benchEngineFlags) onGPU(fs *pflag.FlagSet) (bool, error) {
	on, err := f.gpu.choose(fs, slices.Concat(gpuLibraries(), gpuChoices(), []string{"chunk"}), []string{"dtype", "kv", "cpu-weight-cache", "threads", "isa"})
	if err == nil && on && fs.Changed("limits") && f.plan.LimitsFor != 0 {
		err = fmt.Errorf("--limits: %v: a GPU's limits take a fixed time: leave it out, or pass 0s to try the command", f.plan.LimitsFor)
	}
	return on, err
}

func (f *benchEngineFlags) runGPU(cmd *cobra.Command, asJSON bool) error {
	plan := f.gpu.plan
	plan.PromptTokens, plan.DecodeSteps, plan.Rounds = f.plan.PromptTokens, f.plan.DecodeSteps, f.plan.Rounds
	plan.Batches, plan.ContextTokens = f.batches, f.contexts
	if err := f.check(cmd, plan); err != nil {
		return usageError(cmd, err.Error())
	}
	result, err := f.measureGPU(cmd.Context(), cmd.Flags(), cmd.ErrOrStderr(), plan)
	return measured(cmd, asJSON, result, err, printBenchGPU)
}

func (f *benchEngineFlags) measureGPU(ctx context.Context, fs *pflag.FlagSet, stderr io.Writer, plan gpu.Plan) (*gpu.Result, error) {
	if err := f.gpu.present(); err != nil {
		return nil, err
	}
	p := newProgress(stderr)
	defer p.finish()
	m, err := modelForGPU(ctx, f.model, f.preset, p)
	if err != nil {
		return nil, err
	}
	o := f.gpu.options
	if fs.Changed("limits") { // 0s, as onGPU has seen
		o.LimitBytes = 1
	}
	o.Load.Progress = func(done, total int64) { p.report("pack", done, total) }
	o.Progress = func(done, total int64) { p.report("profile", done, total) }
	return gpu.Measure(ctx, m, plan, o)
}

// modelForGPU opens the model that is named; without a name it makes the preset in memory, and
// without either opens the bundled model.
func modelForGPU(ctx context.Context, name, preset string, p *progress) (*model.Model, error) {
	if name != "" || preset == "" {
		dir, err := modeldir.Find(name)
		if err != nil {
			return nil, err
		}
		return model.OpenContext(ctx, dir, model.Options{Progress: p.report})
	}
	shape, err := model.Preset(preset)
	if err != nil {
		return nil, err
	}
	return model.Random(ctx, shape, 0)
}

func printBenchGPU(out io.Writer, r *gpu.Result) error {
	graphs := "decode with graphs"
	if r.NoGraphs {
		graphs = "decode without graphs"
	}
	fmt.Fprintf(out, "%s, weights of %s in %s, KV in %s, %s, driver for CUDA %s, %s; rounds %d, each with the limits\n\n",
		r.Model, bytesText(r.WeightBytes), r.Weights, r.KV, r.Device, r.DriverCUDA, graphs, r.Rounds)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tbest\tmedian\t\t")
	row := func(name string, f gpu.Figure, unit string) {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%s\t\n", name, f.Best, f.Median, unit)
	}
	row("limit: device memory copies", r.Limits.CopyGBytes, "GB/s")
	row("limit: weight reads", r.Limits.ReadGBytes, "GB/s")
	row("limit: product of many rows, own kernels", r.Limits.ProductGFLOPS, "GFLOP/s")
	if by := r.Limits.CublasLtGFLOPS; by != nil {
		row("limit: product of many rows, cuBLASLt", *by, "GFLOP/s")
	}
	row("limit: host to device", r.Limits.HostToDeviceGBytes, "GB/s")
	row("limit: device to host", r.Limits.DeviceToHostGBytes, "GB/s")
	row("limit: an empty kernel in a graph", r.Limits.GraphKernelUs, "µs")
	row(fmt.Sprintf("prefill of %d, %d a step", r.PromptTokens, r.ChunkTokens), r.Prefill.Tokens, "tokens/s")
	row("prefill", r.Prefill.GFLOPS, "GFLOP/s")
	for _, d := range r.Decode {
		row(fmt.Sprintf("decode, batch %d, context %d", d.Batch, d.ContextTokens), d.Tokens, "tokens/s")
	}
	for _, k := range r.KVRead {
		row(fmt.Sprintf("KV to the host, readers %d", k.Readers), k.Alone, "GB/s")
		row("KV to the host, to plain memory", k.Plain, "GB/s")
		row("KV to the host, beside decode", k.Beside, "GB/s")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nprefill  %.2f of a product of many rows\n", r.Prefill.OfProduct)
	for _, d := range r.Decode {
		fmt.Fprintf(out, "decode   batch %d, context %d: step %.3f ms (p99 %.3f), %.2f of the floor for %s, %.1f µs on the host",
			d.Batch, d.ContextTokens, d.StepMs.P50, d.StepMs.P99, d.OfFloor, bytesText(int64(d.StepBytes)), d.HostUs)
		if d.AttentionGBytes > 0 {
			fmt.Fprintf(out, "; attention %.1f GB/s, %.2f of its floor", d.AttentionGBytes, d.AttentionOfFloor)
		}
		fmt.Fprintln(out)
	}
	for _, k := range r.KVRead {
		fmt.Fprintf(out, "copying  readers %d: a decode step takes %.2f times as long\n", k.Readers, k.DecodeWhileCopying)
	}
	_, err := fmt.Fprintf(out, "start    %.2f s to the end of the first step: weights %.2f, engine %.2f, step %.2f\n",
		r.Start.TotalSeconds, r.Start.LoadSeconds, r.Start.EngineSeconds, r.Start.FirstStepSeconds)
	return err
}
