package commands

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
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
		pin, virtual   bool
	)
	cmd := &cobra.Command{
		Use:   "simulated",
		Short: "Compare the simulated engine with the real one that its profile describes",
		Long: `Starts two meshes: one with the CPU engine, one with the simulated engine and --profile.
Each has one worker with one thread or, with --mode disaggregated, a prefill and a
decode worker. Both get the same load in turns, at a share of the real engine's capacity.
The result shows the percentiles of both side by side.

With --virtual, the second is no mesh but a cluster on virtual time, as 'tandem simulate'
runs it: the result says how far a simulation is from this machine.

A simulated worker computes nothing, so it leaves more of the machine to the rest of its
mesh than a real one does. --pin makes this difference smaller: of the cores that this
process may use, it gives one to each worker and the others to the router.`,
		Example: `  tandem profile --threads 1 --out fable.json
  tandem bench simulated --profile fable.json --prompt-tokens 256 --output-tokens 64
  tandem bench simulated --profile fable.json --virtual --load 0.5`,
		Args: exactly(),
	}
	fs := cmd.Flags()
	load.RegisterRunFlags(fs)
	fs.StringVar(&model, "model", "", "directory of the model (default: the bundled one)")
	fs.StringVar(&profile, "profile", "", "file with the real engine's step times, from 'tandem profile --out'")
	fs.StringVar(&mode, "mode", "aggregated", "where the phases run: aggregated or disaggregated")
	oneOf(cmd, "mode", "aggregated", "disaggregated")
	fs.Float64Var(&share, "load", 0.7, "request rate, as a share of the real engine's capacity")
	fs.BoolVar(&pin, "pin", false, "bind each worker to a core of its own, and the router to the others")
	fs.BoolVar(&virtual, "virtual", false, "compare with a cluster on virtual time, as 'tandem simulate' runs it")
	fs.IntVar(&rounds, "rounds", 5, "times to measure each engine")
	asJSON := addJSON(cmd, "print one JSON object")
	onlyOnCommandLine(cmd, "profile", "threads")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case profile == "":
			return usageError(cmd, "--profile is missing: make one with 'tandem profile --out FILE'")
		case !(share > 0 && share <= 2):
			return usageError(cmd, fmt.Sprintf("--load: %v is outside 0 to 2", share))
		case rounds < 1:
			return usageError(cmd, "--rounds must be at least 1")
		}
		if _, err := os.Stat(profile); err != nil {
			return fmt.Errorf("--profile: %w", err)
		}
		load.DurationSet, load.WarmupSet = fs.Changed("duration"), fs.Changed("warmup")
		if err := load.ValidateUntimed(); err != nil {
			return settingsError(cmd, err)
		}
		wanted, err := benchMode(mode)
		if err != nil {
			return usageError(cmd, err.Error())
		}
		actual := processes.Plan{Decode: 1, Worker: processes.Threads(1), StartTimeout: meshStartTimeout}
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
		other := contenders.Contender{Name: "simulated", Mode: wanted}
		if virtual {
			dir, err := modeldir.Find(model)
			if err != nil {
				return err
			}
			if other.Virtual, err = (contenders.VirtualPlan{Model: dir, Profile: profile, Mesh: actual, Mode: wanted}).New(); err != nil {
				return err
			}
		} else {
			other.Plan = actual
			other.Plan.Arguments = append([]string{"--engine", "simulated"}, actual.Arguments...)
			other.Plan.Worker = []string{"--profile", profile}
		}
		defer deferCollector()()
		live := newLoadProgress(cmd.ErrOrStderr())
		result, err := contenders.Run(cmd.Context(), []contenders.Contender{
			{Name: "cpu", Plan: actual, Mode: wanted},
			other,
		}, contenders.Options{Load: load, Share: share, Rounds: rounds}, live)
		live.finish()
		failed := loadFailure(cmd.Context(), err)
		if result == nil {
			return failed
		}
		if err := printSimulated(cmd.OutOrStdout(), result, share, *asJSON); failed == nil {
			return err
		}
		return failed
	}
	return cmd
}

// printSimulated prints what was measured; the error says if that is not all.
func printSimulated(w io.Writer, result *contenders.Result, share float64, asJSON bool) error {
	var err error
	if rate := result.Steps[0].Rate; asJSON {
		err = indented(w, map[string]any{
			"rate": rate, "capacity_rps": result.Capacity, "differences": result.Differences(), "interrupted": result.Interrupted,
		})
	} else {
		fmt.Fprintf(w, "%.3g requests a second, %.0f%% of the %.3g that the CPU engine completed with 64 requests running (simulated: %.3g)\n\n",
			rate, 100*share, result.Capacity[0], result.Capacity[1])
		err = result.WriteDifferences(w)
	}
	if err == nil && result.Interrupted {
		err = &exitError{status: exitInterrupted, message: "interrupted: the figures cover the complete rounds"}
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
