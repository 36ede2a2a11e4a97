package cli

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// profileReport is what `profile` prints, with --json as it is here.
type profileReport struct {
	Profile *latency.Profile `json:"profile"`
	// Points are the steps that were measured; none if a profile was converted.
	Points  []*profile.Point `json:"points,omitempty"`
	LeftOut int              `json:"left_out,omitempty"`
	Reach   *profileReach    `json:"reach,omitempty"`
	// Valid is false if the machine was disturbed.
	Valid bool `json:"valid"`
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

// print writes the report for people. Nobody is left to tell of an error.
func (r *profileReport) print(out io.Writer, file string) {
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
	for _, kind := range []string{profile.Prefill, profile.Decode, profile.Mixed} {
		if e, measured := p.Errors[kind]; measured && e.Points > 0 {
			fmt.Fprintf(out, "%-8s fitted to %d points: error p50 %.1f%%, p90 %.1f%%, max %.1f%%\n", kind, e.Points, 100*e.Median, 100*e.P90, 100*e.Max)
		}
	}
	if len(r.Points) > 0 {
		fmt.Fprintf(out, "jitter   %.1f%%\n", 100*p.Jitter)
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
	if !r.Valid {
		fmt.Fprintln(out, "NOT VALID: the machine was disturbed; measure again while nothing else runs")
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(out, "%d kinds of step were left out: pass a longer --duration or more --kv-memory\n", r.LeftOut)
	}
	if file != "" {
		fmt.Fprintf(out, "written to %s\n", file)
	}
}

func (r *profileReport) printPoints(out io.Writer) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "step\tchunk\tfrom\tbatch\tcontext\tms\tspread\tfitted ms\terror\trepeats\t")
	for _, p := range r.Points {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%.3f\t%.1f%%\t%.3f\t%+.1f%%\t%d\t\n",
			p.Kind, p.Chunk, p.ChunkStart, p.Batch, p.Context, p.MedianMs, 100*p.Spread, p.FittedMs, 100*p.Error, p.Repeats)
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
