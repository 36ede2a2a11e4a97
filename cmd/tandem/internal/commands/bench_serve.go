package commands

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/telemetry"
)

// otherThanOfAMesh are flags of a load that 'up' and 'serve' have too, for something else: the
// environment's are theirs.
var otherThanOfAMesh = []string{"class", "context-tokens"}

func newBenchServeCommand() *cobra.Command {
	var (
		config  loadtest.Config
		server  benchTarget
		outputs benchOutputs
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Measure latency under load, of this mesh or of any OpenAI-compatible server",
		Long: `Sends requests and measures what their users would see.

In open loop (--rate, --sweep, --find-max, --trace) a request goes out when it is due,
whatever the server does. Every latency counts from that moment, so it includes the
time that a request waited in the client or the server. In closed loop (--concurrency)
the next request goes out when an earlier one ends.

A percentile is printed only if there are enough samples for it; otherwise n/a. Below it
is its 95% confidence interval. A ~ there means that the run was too short for an
interval: requests that shared a queue are alike, and so count as fewer samples. If this
client or its machine was the bottleneck, the report gives no verdict and says which it
was. If the server sends latency budgets, as Tandem does, the report explains the tail
stage by stage.

Ctrl-C ends the run and reports what was measured; the exit status is then 130.`,
		Example: `  tandem bench serve --rate 10 --duration 30s
  tandem bench serve --sweep --slo "ttft:p99<500ms,tpot:p99<30ms" --report sweep.html
  tandem bench serve --find-max --slo "ttft:p99<200ms" --prompt-tokens 256 --output-tokens 64
  tandem bench serve --trace conversation_trace.jsonl --speed 2 --json
  tandem bench serve --openai http://127.0.0.1:8000 --concurrency 8`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && cmd.Flags().Changed("sweep") {
				return usageError(cmd, fmt.Sprintf("pass the rates in the same argument: --sweep=%s", strings.Join(args, ",")))
			}
			return exactly()(cmd, args)
		},
	}
	config.RegisterFlags(cmd.Flags())
	onlyOnCommandLine(cmd, otherThanOfAMesh...)
	server.add(cmd)
	outputs.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("rate") && config.Rate == 0 && config.Concurrency == 0 && config.Sweep == "" && !config.FindMax && config.Workload.Trace == "" {
			return usageError(cmd, "--rate: 0 sends no requests: pass a rate above 0")
		}
		config.DurationSet = cmd.Flags().Changed("duration")
		config.WarmupSet = cmd.Flags().Changed("warmup")
		config.KeepRecords = outputs.csv != "" || outputs.hdr != ""
		if err := config.Validate(); err != nil {
			return settingsError(cmd, err)
		}
		if err := outputs.check(cmd); err != nil {
			return err
		}
		if err := server.promise(config); err != nil {
			return usageError(cmd, err.Error())
		}
		to, err := server.open() // does not connect yet
		if err != nil {
			return settingsError(cmd, err)
		}
		defer deferCollector()()
		live := newLoadProgress(cmd.ErrOrStderr())
		searches := config.Sweep != "" || config.FindMax
		if !searches && (config.WarmupSet || !config.Workload.OwnTimes()) {
			live.warmup = config.Warmup
		}
		out, err := loadtest.Run(cmd.Context(), config, to, live)
		live.finish()
		if closeErr := to.Close(); err == nil && closeErr != nil {
			err = closeErr
		}
		if err != nil {
			return loadFailure(cmd.Context(), err)
		}
		out.Report.Name, out.Report.Command, out.Report.Version = outputs.name, command(cmd), telemetry.ReadBuild().String()
		if err := outputs.write(cmd, out.Report, out.Runs); err != nil {
			return err
		}
		return benchResult(out.Report, config.FindMax)
	}
	return cmd
}

// benchResult is the exit status that a report deserves: 0 unless nothing was
// completed, it was interrupted, or it is of a search for the highest rate that found none.
func benchResult(r *report.Report, findMax bool) error {
	switch {
	case r.Interrupted:
		return &exitError{status: exitInterrupted, message: "interrupted: the report has what was measured so far"}
	case r.Requests == 0:
		return errors.New("no request was due in the measured window: raise --duration or the rate")
	case r.Completed == 0:
		return fmt.Errorf("no request of %d was completed: the report says what the server answered", r.Requests)
	case findMax && r.Search != nil && r.Search.MaxRate == nil:
		return errors.New("no rate was found that is stable and meets the SLO: the report says why of each that was tried")
	}
	return nil
}
