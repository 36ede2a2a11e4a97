package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/gpu"
)

// printBenchGPU writes the result for people.
func printBenchGPU(out io.Writer, r *gpu.Result) error {
	graphs := "decode by graphs"
	if r.NoGraphs {
		graphs = "decode without graphs"
	}
	fmt.Fprintf(out, "%s, weights of %s in %s, KV in %s, %s, driver for CUDA %s, %s; rounds %d, in turns with the limits\n\n",
		r.Model, bytesText(r.WeightBytes), r.Weights, r.KV, r.Device, r.DriverCUDA, graphs, r.Rounds)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tbest\tmedian\t\t")
	row := func(name string, f gpu.Figure, unit string) {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%s\t\n", name, f.Best, f.Median, unit)
	}
	row("limit: copying device memory", r.Limits.CopyGBytes, "GB/s")
	row("limit: reading weights", r.Limits.ReadGBytes, "GB/s")
	row("limit: our product of many rows", r.Limits.ProductGFLOPS, "GFLOP/s")
	if by := r.Limits.CublasLtGFLOPS; by != nil {
		row("limit: the same by cuBLASLt", *by, "GFLOP/s")
	}
	row("limit: host to device", r.Limits.HostToDeviceGBytes, "GB/s")
	row("limit: device to host", r.Limits.DeviceToHostGBytes, "GB/s")
	row("limit: an empty kernel in a graph", r.Limits.GraphKernelUs, "µs")
	row(fmt.Sprintf("prefill of %d by %d", r.PromptTokens, r.ChunkTokens), r.Prefill.Tokens, "tokens/s")
	row("prefill", r.Prefill.GFLOPS, "GFLOP/s")
	for _, d := range r.Decode {
		row(fmt.Sprintf("decode of %d after %d", d.Batch, d.ContextTokens), d.Tokens, "tokens/s")
	}
	for _, k := range r.KVRead {
		row(fmt.Sprintf("KV to the host, readers %d", k.Readers), k.Alone, "GB/s")
		row("the same beside decode", k.Beside, "GB/s")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\nprefill  %.2f of a product of many rows\n", r.Prefill.OfProduct)
	for _, d := range r.Decode {
		fmt.Fprintf(out, "decode   %d after %d: step %.3f ms (p99 %.3f), %.2f of the floor of %s, %.1f µs of it the host's",
			d.Batch, d.ContextTokens, d.StepMs.P50, d.StepMs.P99, d.OfFloor, bytesText(int64(d.StepBytes)), d.HostUs)
		if d.AttentionGBytes > 0 {
			fmt.Fprintf(out, "; attention %.1f GB/s, %.2f of the floor", d.AttentionGBytes, d.AttentionOfFloor)
		}
		fmt.Fprintln(out)
	}
	for _, k := range r.KVRead {
		fmt.Fprintf(out, "copying  readers %d: a step takes %.2f times as long\n", k.Readers, k.DecodeWhileCopying)
	}
	_, err := fmt.Fprintf(out, "start    %.2f s to the first step: %.2f weights, %.2f engine, %.2f the step\n",
		r.Start.TotalSeconds, r.Start.LoadSeconds, r.Start.EngineSeconds, r.Start.FirstStepSeconds)
	return err
}
