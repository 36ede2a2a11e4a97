package commands

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/pair"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/rig"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/processor"
)

func newBenchSimulatedCommand() *cobra.Command {
	var (
		load           loadtest.Config
		model, profile string
		mode           string
		share          float64
		rounds         int
		pin            bool
	)
	cmd := &cobra.Command{
		Use:   "simulated",
		Short: "Compare the simulated engine with the real one that its profile was taken of",
		Long: `Starts two meshes of one worker with one thread, or with --mode disaggregated of
one prefill and one decode worker: one with the CPU engine, one with the simulated
engine and --profile. Both get the same load in turns, at a share of the real one's
capacity, and the percentiles of both stand side by side.

A simulated worker computes nothing and so leaves more of the machine to the rest of
its mesh than a real one. With --pin the difference is less: each worker has one of
the cores that this process may use to itself, and the router the others.`,
		Example: `  tandem profile --threads 1 --out fable.json
  tandem bench simulated --profile fable.json --prompt-tokens 256 --output-tokens 64`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	load.RegisterRunFlags(fs)
	fs.StringVar(&model, "model", "", "directory of the model (default: the bundled one)")
	fs.StringVar(&profile, "profile", "", "step times of the real engine, as 'tandem profile --out' wrote them")
	fs.StringVar(&mode, "mode", "aggregated", "where the phases run: aggregated or disaggregated")
	oneOf(cmd, "mode", "aggregated", "disaggregated")
	fs.Float64Var(&share, "load", 0.7, "rate, as a share of the capacity of the real engine")
	fs.BoolVar(&pin, "pin", false, "bind each worker to a core of its own, and the router to the others")
	fs.IntVar(&rounds, "rounds", 5, "how often to measure each")
	asJSON := addJSON(cmd, "print one JSON object")
	onlyOnCommandLine(cmd, "profile")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case profile == "":
			return usageError(cmd, "--profile is missing: take one with 'tandem profile --out FILE'")
		case !(share > 0 && share <= 2):
			return usageError(cmd, fmt.Sprintf("--load: %v is outside 0 to 2", share))
		case rounds < 1:
			return usageError(cmd, "--rounds has to be at least 1")
		}
		if _, err := os.Stat(profile); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		if err := load.ValidateRun(); err != nil {
			return usageError(cmd, err.Error())
		}
		wanted, err := benchMode(mode)
		if err != nil {
			return usageError(cmd, err.Error())
		}
		actual := rig.Plan{Decode: 1, Worker: rig.Threads(1), StartTimeout: pairStartTimeout}
		if mode == "disaggregated" {
			actual.Prefill = 1
		}
		if model != "" {
			actual.Arguments = []string{"--model", model}
		}
		if pin {
			cores, workers := processor.Cores(), actual.Prefill+actual.Decode
			if actual.Cores, actual.RouterCores = apart(cores, workers); actual.Cores == nil {
				return usageError(cmd, fmt.Sprintf("--pin: %d cores are too few for %d workers and a router", len(cores), workers))
			}
		}
		simulated := actual
		simulated.Arguments = append([]string{"--engine", "simulated"}, actual.Arguments...)
		simulated.Worker = []string{"--profile", profile}
		defer deferCollector()()
		live := newLoadProgress(cmd.ErrOrStderr())
		result, err := pair.Run(cmd.Context(), [2]pair.Side{
			{Name: "cpu", Plan: actual, Mode: wanted},
			{Name: "simulated", Plan: simulated, Mode: wanted},
		}, pair.Options{Load: load, Share: share, Rounds: rounds}, live)
		live.finish()
		if err != nil {
			return loadFailure(cmd.Context(), err)
		}
		return printSimulated(cmd.OutOrStdout(), result, share, *asJSON)
	}
	return cmd
}

// printSimulated prints what was measured; the error says if that is not all.
func printSimulated(w io.Writer, result *pair.Result, share float64, asJSON bool) error {
	var err error
	if rate := result.Steps[0].Rate; asJSON {
		err = indented(w, map[string]any{
			"rate": rate, "capacity_rps": result.Capacity, "differences": result.Differences(), "interrupted": result.Interrupted,
		})
	} else {
		fmt.Fprintf(w, "%.3g requests a second, %.0f%% of the %.3g that the CPU engine completed with 64 kept running (simulated: %.3g)\n\n",
			rate, 100*share, result.Capacity[0], result.Capacity[1])
		err = result.WriteDifferences(w)
	}
	if err == nil && result.Interrupted {
		err = &exitError{status: exitInterrupted, message: "interrupted: the figures are of the rounds that were whole"}
	}
	return err
}

// apart gives each worker one of the cores to itself and the router the rest; nil if
// there are not that many.
func apart(cores []int, workers int) ([][]int, []int) {
	if len(cores) <= workers {
		return nil, nil
	}
	var each [][]int
	for i := range workers {
		each = append(each, cores[i:i+1])
	}
	return each, cores[workers:]
}
