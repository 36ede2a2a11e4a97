package cli

import "github.com/spf13/cobra"

// newBenchCommand holds the benchmarks.
func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure servers, engines and this program's own instruments",
		Example: `  tandem bench serve --rate 10 --duration 30s
  tandem bench serve --sweep --slo "ttft:p99<500ms,tpot:p99<30ms" --report sweep.html
  tandem bench client --streams 2000`,
	}
	asGroup(cmd)
	cmd.AddCommand(
		newBenchServeCommand(),
		newBenchModesCommand(),
		newBenchSimulatedCommand(),
		newBenchCompareCommand(),
		newBenchClientCommand(),
		newBenchEngineCommand(),
		newBenchSchedulerCommand(),
		newBenchTokenizerCommand(),
		newBenchTracingCommand(),
		newBenchTransferCommand(),
		newBenchHandoverCommand(),
	)
	return cmd
}
