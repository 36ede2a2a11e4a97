package commands

import (
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/telemetry"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/pair"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/rig"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/search"
)

// pairStartTimeout bounds the start of a mesh, the loading of its model included.
const pairStartTimeout = 2 * time.Minute

func newBenchModesCommand() *cobra.Command {
	var (
		load                loadtest.Config
		rates               string
		html, markdown, out string
		model               string
		threads, rounds     int
	)
	cmd := &cobra.Command{
		Use:   "modes",
		Short: "Compare disaggregated with aggregated serving on this machine, at equal cores",
		Long: `Starts two meshes, each part in a process of its own. One has a prefill worker and a
decode worker, the other two workers that do both. All workers have the same number
of threads. Both meshes get the same load, in turns, at rates from idle to past the
breaking point of either.

This process sends the load and embeds etcd and NATS. On a small machine, the cores that
it uses affect both results alike. The report says how much each part used.`,
		Example: `  tandem bench modes --prompt-tokens 256 --output-tokens 64 --report modes.html
  tandem bench modes --rates 5,10,20,40 --duration 60s --markdown latency.md`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	load.RegisterRunFlags(fs)
	fs.StringVar(&rates, "rates", "", "rates to measure in requests per second, such as 5,10,20 (default: around the larger of both capacities)")
	fs.StringVar(&model, "model", "", "directory of the model (default: the bundled one)")
	fs.IntVar(&threads, "threads", 1, "compute threads of each worker")
	fs.IntVar(&rounds, "rounds", 1, "times to measure each rate")
	fs.StringVar(&html, "report", "", "write an HTML page with plots of both to this file")
	fs.StringVar(&markdown, "markdown", "", "write the tables as Markdown to this file")
	fs.StringVar(&out, "out", "", "write both reports as JSON to this file")
	asJSON := addJSON(cmd, "print both reports as JSON instead of a table")
	onlyOnCommandLine(cmd, "report", "markdown", "out")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var given []float64
		if rates != "" {
			var err error
			if given, err = search.ParseRates(rates); err != nil {
				return usageError(cmd, "--rates: "+err.Error())
			}
		}
		if threads < 1 || rounds < 1 {
			return usageError(cmd, "--threads and --rounds must be at least 1")
		}
		if err := load.ValidateRun(); err != nil {
			return settingsError(cmd, err)
		}
		files := func(r *pair.Result) []outputFile {
			return []outputFile{
				{"report", html, func(w io.Writer) error { return r.WriteHTML(w) }},
				{"markdown", markdown, func(w io.Writer) error { return r.WriteMarkdown(w) }},
				{"out", out, func(w io.Writer) error { return r.WriteJSON(w) }},
			}
		}
		if err := checkOutputs(cmd, files(nil)); err != nil {
			return err
		}
		worker := rig.Threads(threads)
		var all []string
		if model != "" {
			all = []string{"--model", model}
		}
		sides := [2]pair.Side{
			{Name: "aggregated", Mode: inferencev1.Mode_MODE_AGGREGATED, Plan: rig.Plan{
				Decode: 2, Worker: worker, Arguments: all, StartTimeout: pairStartTimeout,
			}},
			{Name: "disaggregated", Mode: inferencev1.Mode_MODE_DISAGGREGATED, Plan: rig.Plan{
				Prefill: 1, Decode: 1, Worker: worker, Arguments: all, StartTimeout: pairStartTimeout,
			}},
		}
		defer deferCollector()()
		live := newLoadProgress(cmd.ErrOrStderr())
		result, err := pair.Run(cmd.Context(), sides, pair.Options{Load: load, Rates: given, Rounds: rounds}, live)
		live.finish()
		if err != nil {
			return loadFailure(cmd.Context(), err)
		}
		for i := range result.Outcomes {
			r := result.Outcomes[i].Report
			r.Command, r.Version = command(cmd), telemetry.ReadBuild().String()
		}
		written := files(result)
		errs := []error{writeOutputs(written)}
		defer sayWritten(cmd, errs[0], written[0])
		if *asJSON {
			errs = append(errs, result.WriteJSON(cmd.OutOrStdout()))
		} else {
			errs = append(errs, result.WriteMarkdown(cmd.OutOrStdout()))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if result.Interrupted {
			return &exitError{status: exitInterrupted, message: "interrupted: the report has the rates measured so far"}
		}
		return nil
	}
	return cmd
}
