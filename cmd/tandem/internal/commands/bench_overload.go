package commands

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/overload"
	"github.com/tandem-serving/tandem/loadtest"
)

// mostTimes is how many times the capacity is offered at most.
const mostTimes = 100

func newBenchOverloadCommand() *cobra.Command {
	var (
		config loadtest.Config
		server benchTarget
		given  string
	)
	cmd := &cobra.Command{
		Use:   "overload",
		Short: "Measure goodput, refusals and recovery under overload",
		Long: `Finds the capacity: the highest rate that is stable and meets --slo. Then it offers
multiples of it, and says how much of the goodput is left, how long refusals take, and
what share of requests is admitted by length, from the shortest quarter to the longest
(of requests whose lengths differ).
Last it offers half of the capacity with a burst of 5 s in between, and says how long
after the burst the first second began in which latencies were as before.

Each request sends the router the ttft and tpot bounds of --slo, unless --send-slo=false.`,
		Example: `  tandem bench overload --slo "ttft:p90<500ms,tpot:p90<30ms"
  tandem bench overload --slo "ttft:p90<1s,tpot:p90<40ms" --times 2,10 --prompt-tokens lognormal:512,256 --output-tokens lognormal:64,32 --json`,
		Args: exactly(),
	}
	config.RegisterRunFlags(cmd.Flags())
	onlyOnCommandLine(cmd, otherThanOfAMesh...)
	server.add(cmd)
	cmd.Flags().StringVar(&given, "times", "1,2,3,10", "multiples of the capacity to offer")
	cmd.Flags().Lookup("send-slo").DefValue = "true"
	server.sendSLO = true
	asJSON := addJSON(cmd, "print one JSON object: capacity_rps, goodput_rps, slo, steps, recovery_ms, worse_before, worse_after")
	onlyOnCommandLine(cmd, "times")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		times, err := parseNumbers(given, 0, mostTimes)
		if err != nil {
			return usageError(cmd, "--times: "+err.Error())
		}
		if config.SLO == "" && config.Preset == "" {
			return usageError(cmd, "say what the goodput is of: pass --slo, such as --slo ttft:p90<500ms,tpot:p90<30ms")
		}
		if server.openai.URL != "" && !cmd.Flags().Changed("send-slo") {
			server.sendSLO = false // OpenAI's API cannot carry it
		}
		config.DurationSet, config.WarmupSet = cmd.Flags().Changed("duration"), cmd.Flags().Changed("warmup")
		if err := config.ValidateUntimed(); err != nil {
			return settingsError(cmd, err)
		}
		if config.Workload.Surges() {
			return usageError(cmd, "--surge changes the rate, and overload adds a burst of its own: leave it out")
		}
		if err := server.promise(config); err != nil {
			return usageError(cmd, err.Error())
		}
		to, err := server.open()
		if err != nil {
			return settingsError(cmd, err)
		}
		defer to.Close()
		defer deferCollector()()
		live := newLoadProgress(cmd.ErrOrStderr())
		result, err := overload.Run(cmd.Context(), config, to, times, live)
		live.finish()
		if err != nil {
			return loadFailure(cmd.Context(), err)
		}
		if err := show(cmd, *asJSON, result, func(w io.Writer, r *overload.Result) error { return r.WriteTable(w) }); err != nil {
			return err
		}
		if result.Interrupted {
			return &exitError{status: exitInterrupted, message: "interrupted: what was measured so far is above"}
		}
		return nil
	}
	return cmd
}

// parseNumbers reads "1,2,10", each number being above least and up to most.
func parseNumbers(text string, least, most float64) (numbers []float64, err error) {
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(n > least && n <= most) {
			return nil, fmt.Errorf("%q is not a number above %g and up to %g", part, least, most)
		}
		numbers = append(numbers, n)
	}
	return numbers, nil
}
