package commands

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/loadtest/calibrate"
	"github.com/tandem-serving/tandem/loadtest/record"
)

func newBenchClientCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Measure the load generator: its own error and how many streams it can hold",
		Long: `Starts a fake server and a load generator, each in a process of its own, and on a
core of its own if the machine has two. The fake server computes nothing: it sends
tokens at planned times. The command compares what the generator reports with what
the fake server was told to send, and with when it sent it.

--find-max raises the number of streams until the dispatch delay (from when a request
is due to when it is sent) reaches a millisecond at p99.`,
		Example: `  tandem bench client --streams 2000
  tandem bench client --streams 100 --ttft 200ms --itl 100ms --json
  tandem bench client --streams 1000 --find-max`,
		Args: exactly(),
	}
	flags := new(benchClientFlags)
	flags.add(cmd.Flags())
	findMax := cmd.Flags().Bool("find-max", false, "find the most streams that the generator can hold")
	asJSON := addBenchJSON(cmd, "print one JSON object for each measurement")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := flags.complete()
		if err != nil {
			return usageError(cmd, err.Error())
		}
		binary, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find the program to start: %w", err)
		}
		measure := func(ctx context.Context, p calibrate.Plan) (*calibrate.Result, error) {
			r, err := calibrate.Measure(ctx, p, calibrate.Processes{
				Binary: binary,
				Server: func(p calibrate.Plan) []string { return []string{"bench", "client", "server", planArgument(p)} },
				Load: func(p calibrate.Plan, address string) []string {
					return []string{"bench", "client", "load", address, planArgument(p)}
				},
			})
			if err != nil {
				return nil, err
			}
			return r, show(cmd, *asJSON, r, printBenchClient)
		}
		if !*findMax {
			_, err := measure(cmd.Context(), p)
			return interruptedOr(cmd.Context(), err)
		}
		best, all, err := calibrate.FindMax(cmd.Context(), p, measure)
		if err != nil {
			if cmd.Context().Err() != nil && len(all) > 0 {
				return &exitError{status: exitInterrupted, message: "interrupted before the most streams were found: the measurements printed so far are complete", cause: err}
			}
			return interruptedOr(cmd.Context(), err)
		}
		if best == nil {
			return fmt.Errorf("the generator could not hold even %d streams: pass fewer --streams, or stop other programs on this machine", p.Streams)
		}
		if !*asJSON {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nheld: %s of %.3g tokens a second on %s, dispatch delay p99 %.3f ms\n",
				counted(best.Plan.Streams, "stream"), float64(time.Second)/float64(best.Plan.ITL.Mean), counted(best.Cores, "core"), best.DispatchDelay.P99)
		}
		return err
	}
	cmd.AddCommand(newBenchClientPart("server PLAN", "Run the fake server of 'bench client'",
		func(cmd *cobra.Command, p calibrate.Plan, _ []string) error {
			return calibrate.Serve(cmd.Context(), p, cmd.InOrStdin(), cmd.OutOrStdout())
		}, "the PLAN"))
	cmd.AddCommand(newBenchClientPart("load ADDRESS PLAN", "Run the load generator of 'bench client'",
		func(cmd *cobra.Command, p calibrate.Plan, args []string) error {
			return calibrate.Load(cmd.Context(), p, args[0], cmd.OutOrStdout())
		}, "the ADDRESS", "the PLAN"))
	return cmd
}

// newBenchClientPart is a command that `bench client` runs in a process of its own. The
// plan is its last argument.
func newBenchClientPart(
	use, short string, run func(*cobra.Command, calibrate.Plan, []string) error, args ...string,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Hidden: true, Args: exactly(args...),
		RunE: func(cmd *cobra.Command, args []string) error {
			defer deferCollector()()
			p, err := parsePlan[calibrate.Plan]("bench client", args[len(args)-1])
			if err := cmp.Or(err, p.Validate()); err != nil {
				return err
			}
			return run(cmd, p, args)
		},
		Example: "  tandem bench client --streams 2000",
	}
}

// benchClientFlags are the flags of bench client: a plan, whose ITL.Mean is 0 where
// tokenRate says it.
type benchClientFlags struct {
	plan      calibrate.Plan
	tokenRate float64
}

func (f *benchClientFlags) add(fs *pflag.FlagSet) {
	fs.IntVar(&f.plan.Streams, "streams", 2000, "mean number of streams at a time")
	fs.DurationVar(&f.plan.Duration, "duration", 20*time.Second, "how long to hold the streams, once their number has risen")
	fs.IntVar(&f.plan.TokensPerStream, "tokens", 100, "tokens in each stream")
	fs.IntVar(&f.plan.PromptTokens, "prompt-tokens", 256, "tokens in each prompt")
	fs.Float64Var(&f.tokenRate, "token-rate", 10, "tokens per second in each stream, unless --itl is given")
	fs.DurationVar(&f.plan.TTFT.Mean, "ttft", 200*time.Millisecond, "time to the first token at the fake server")
	fs.DurationVar(&f.plan.TTFT.Jitter, "ttft-jitter", 50*time.Millisecond, "largest difference of a stream from --ttft")
	fs.DurationVar(&f.plan.ITL.Mean, "itl", 0, "time between tokens at the fake server; 0: set by --token-rate")
	fs.DurationVar(&f.plan.ITL.Jitter, "itl-jitter", 20*time.Millisecond, "largest difference of a gap from --itl")
	fs.DurationVar(&f.plan.Coalesce, "coalesce", 0, "how long the fake server may hold tokens back to send several in one message")
	fs.IntVar(&f.plan.Connections, "connections", 0, "connections to spread the streams over; 0: the default of 'bench serve'")
	fs.BoolVar(&f.plan.HTTP, "http", false, "use OpenAI's HTTP API instead of gRPC")
	fs.Uint64Var(&f.plan.Seed, "seed", 1, "seed of arrivals and jitter")
}

func (f *benchClientFlags) complete() (calibrate.Plan, error) {
	p := f.plan
	if p.ITL.Mean == 0 {
		if !(f.tokenRate > 0 && f.tokenRate <= 1e6) {
			return p, fmt.Errorf("--token-rate: %v is not above 0", f.tokenRate)
		}
		p.ITL.Mean = time.Duration(float64(time.Second) / f.tokenRate)
	}
	p.ITL.Jitter = min(p.ITL.Jitter, p.ITL.Mean)
	return p, p.Validate()
}

func printBenchClient(out io.Writer, r *calibrate.Result) error {
	p := r.Plan
	fmt.Fprintf(out, "%s of %s, TTFT %s ± %s, ITL %s ± %s, for %s after a ramp-up of %s\n",
		counted(p.Streams, "stream"), counted(p.TokensPerStream, "token"), p.TTFT.Mean, p.TTFT.Jitter, p.ITL.Mean, p.ITL.Jitter, p.Duration, (p.TTFT.Mean + time.Duration(p.TokensPerStream-1)*p.ITL.Mean).Round(time.Millisecond))
	fmt.Fprintf(out, "%d of %s completed, %s, at most %s at a time; the generator used %.0f%% of %s, %.1f%% of that for garbage collection, longest pause %.2f ms; the fake server used %.1f s of CPU\n",
		r.Completed, counted(r.Requests, "request"), counted(r.Tokens, "token"), counted(r.StreamsMax, "stream"), 100*r.CPUShare, counted(r.Cores, "core"), 100*r.GCShare, r.GCPauseMax, r.ServerCPUSeconds)
	if !r.Pinned {
		fmt.Fprintln(out, "the generator and the fake server share cores: the figures are worse than with a core each")
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "ms\tp50\tp99\tmax\t")
	for _, s := range []struct {
		name   string
		spread calibrate.Spread
	}{
		{"dispatch delay", r.DispatchDelay}, {"sending", r.SendTime}, {"token sent to seen", r.Delivery}, {"fake server late", r.ServerLateness},
		{"TTFT injected", r.TTFT.Injected}, {"TTFT sent", r.TTFT.Sent}, {"TTFT reported", r.TTFT.Reported}, {"error of each TTFT", r.TTFT.Each},
		{"ITL injected", r.ITL.Injected}, {"ITL sent", r.ITL.Sent}, {"ITL reported", r.ITL.Reported}, {"error of each ITL", r.ITL.Each},
	} {
		fmt.Fprintf(table, "%s\t%.3f\t%.3f\t%.3f\t\n", s.name, s.spread.P50, s.spread.P99, s.spread.Max)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "error of the generator (reported minus injected): TTFT p50 %+.3f ms, p99 %+.3f ms; ITL p50 %+.3f ms, p99 %+.3f ms\n",
		r.TTFT.P50, r.TTFT.P99, r.ITL.P50, r.ITL.P99)
	if r.Failure != "" {
		fmt.Fprintf(out, "a request failed: %s\n", r.Failure)
	}
	if r.Bottleneck != "" {
		fmt.Fprintln(out, record.Explain(r.Bottleneck))
	}
	return nil
}
