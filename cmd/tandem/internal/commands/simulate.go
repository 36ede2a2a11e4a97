package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/workload"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
	"github.com/tandem-serving/tandem/simulate"
	"github.com/tandem-serving/tandem/simulate/scenario"
)

func newSimulateCommand() *cobra.Command {
	var f simulateFlags
	cmd := &cobra.Command{
		Use:   "simulate SCENARIO.yaml",
		Short: "Run a cluster on virtual time, and measure what its users would see",
		Long: `Simulates the cluster that a file describes: workers, network, traffic, and what happens
meanwhile, such as deaths, drains and slow workers. Routers and workers take their
decisions with the code that serves live traffic; only the time of steps and of the
network is computed. Equal seeds give equal results.

The report is that of 'tandem bench serve', with the same figures, page and JSON, so
'tandem bench compare' takes it too. Flags take precedence over the file's traffic. The
defaults below apply where neither sets a value.

--policies sends the same traffic to the cluster once for each routing policy, and prints
one table. --autoscale has the pools that follow the load in the file do so by another
policy, and --fixed p=4,d=9 gives them a size instead.

The file is explained in docs/simulation.md; docs/scenarios has examples.`,
		Example: `  tandem simulate docs/scenarios/slow-worker.yaml
  tandem simulate docs/scenarios/slow-worker.yaml --seed 2 --report slow.html
  tandem simulate docs/scenarios/overload.yaml --rate 200 --policies
  tandem simulate docs/scenarios/ratio.yaml --find-max --slo "ttft:p99<500ms" --json`,
		Args: exactly("the SCENARIO.yaml"),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) }
	return cmd
}

// simulateFlags are those of the command.
type simulateFlags struct {
	config  loadtest.Config
	traffic *pflag.FlagSet // what the file may set
	target  benchTarget
	outputs benchOutputs
	// policies compares all, scaleBy is how pools follow the load, fixed the sizes of those that do not.
	policies       bool
	scaleBy, fixed string
}

func (f *simulateFlags) add(cmd *cobra.Command) {
	f.traffic = pflag.NewFlagSet("", pflag.ContinueOnError)
	f.config.RegisterFlags(f.traffic)
	f.traffic.StringVar(&f.target.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated")
	f.traffic.BoolVar(&f.target.sendSLO, "send-slo", false, "send the router the ttft and tpot bounds of --slo or --preset with each request")
	f.traffic.Lookup("seed").Usage = "seed of the whole simulation; equal seeds give equal results (default: the file's, else 1)"
	cmd.Flags().AddFlagSet(f.traffic)
	onlyOnCommandLine(cmd, otherThanOfAMesh...)
	oneOf(cmd, "mode", api.Names[inferencev1.Mode]()...)
	f.outputs.add(cmd)
	cmd.Flags().BoolVar(&f.policies, "policies", false, "compare all routing policies, in one table")
	cmd.Flags().StringVar(&f.scaleBy, "autoscale", "", "how the pools that the file lets follow the load do so: by their desired size (desired), by how much of the time they compute (utilisation), or by the prompt tokens that wait (queue)")
	cmd.Flags().StringVar(&f.fixed, "fixed", "", "sizes of pools, as in p=4,d=9; then no pool follows the load")
	cmd.MarkFlagsMutuallyExclusive("autoscale", "fixed")
	oneOf(cmd, "autoscale", simulate.ScalePolicies()...)
	onlyOnCommandLine(cmd, "policies", "autoscale", "fixed")
}

func (f *simulateFlags) run(cmd *cobra.Command, file string) error {
	if err := f.outputs.check(cmd); err != nil {
		return err
	}
	s, err := f.simulation(cmd, file)
	if err != nil {
		return err
	}
	f.config.Drive = s.Drive
	live := &simulateProgress{liveLine: newLiveLine(cmd.ErrOrStderr())}
	if f.policies {
		if f.config.Sweep != "" || f.config.FindMax || f.outputs.html+f.outputs.out+f.outputs.csv+f.outputs.hdr != "" {
			return usageError(cmd, "--policies prints one table: leave out --sweep, --find-max and the flags of other outputs, but for --json")
		}
		slo, err := f.config.Objective()
		if err != nil || len(slo.Terms) == 0 {
			return cmp.Or(err, usageError(cmd, "--policies compares goodput: say what that is with --slo, such as ttft:p90<500ms,tpot:p90<30ms, or with --preset"))
		}
		table, err := comparePolicies(cmd.Context(), f.config, *s, live)
		live.finish()
		if err != nil {
			return loadFailure(cmd.Context(), err)
		}
		return errors.Join(show(cmd, *f.outputs.json, table, printPolicies), table.result())
	}
	out, err := loadtest.Run(cmd.Context(), f.config, s, live)
	live.finish()
	if err != nil {
		return loadFailure(cmd.Context(), err)
	}
	out.Report.Name, out.Report.Command, out.Report.Version = f.outputs.name, command(cmd), telemetry.ReadBuild().String()
	out.Report.Simulation = s.took()
	if err := f.outputs.write(cmd, out.Report, out.Runs); err != nil {
		return err
	}
	return benchResult(out.Report, f.config.FindMax)
}

// simulation reads a scenario, and checks it together with the flags.
func (f *simulateFlags) simulation(cmd *cobra.Command, file string) (*simulation, error) {
	given := newGivenFlags(cmd, f.traffic, &f.config.Workload.Trace)
	read, err := scenario.Read(file, f.traffic)
	if err != nil {
		return nil, err
	}
	if f.scaleBy != "" {
		if err := read.ScaleBy(f.scaleBy); err != nil {
			return nil, usageError(cmd, "--autoscale: "+err.Error())
		}
	}
	if f.fixed != "" {
		if err := read.Fix(f.fixed); err != nil {
			return nil, usageError(cmd, "--fixed: "+err.Error())
		}
	}
	f.config.DurationSet, f.config.WarmupSet = f.traffic.Changed("duration"), f.traffic.Changed("warmup")
	f.config.KeepRecords = f.outputs.csv != "" || f.outputs.hdr != ""
	if err := f.config.Validate(); err != nil {
		return nil, given.place(read, err)
	}
	if err := f.target.promise(f.config); err != nil {
		return nil, given.place(read, err)
	}
	mode, err := benchMode(f.target.mode)
	if err != nil {
		return nil, given.place(read, err)
	}
	if err := fits(read, f.config.Workload); err != nil {
		return nil, given.place(read, err)
	}
	ends := f.config.Sends()
	if f.config.Workload.OwnTimes() {
		last, err := f.config.Workload.TraceEnds()
		if err != nil {
			return nil, given.place(read, err)
		}
		if last++; ends == 0 || last < ends { // what is due with the last request happens
			ends = last
		}
	}
	if ends > 0 {
		if err := read.Ends(ends); err != nil {
			return nil, err
		}
	}
	return &simulation{Server: simulatedtarget.Server{
		Scenario: read, Address: file, Seed: f.config.Workload.Seed, Mode: mode, TTFT: f.target.ttft, TPOT: f.target.tpot,
	}}, nil
}

// simulation does the runs of a load test on clusters of a scenario.
type simulation struct {
	simulatedtarget.Server

	wall, virtual time.Duration
	requests      int
	workerTime    map[string]time.Duration // by pool
	resizes       []simulate.Resize        // of the last run
}

// Drive is a run on a cluster of its own.
func (s *simulation) Drive(ctx context.Context, o drive.Options) (*record.Run, error) {
	began := time.Now()
	cluster, run, err := s.Run(ctx, o, nil)
	if cluster == nil {
		return nil, err
	}
	s.wall += time.Since(began)
	s.virtual += run.Drained
	s.requests += len(run.Records)
	s.resizes = cluster.Resizes()
	if s.workerTime == nil {
		s.workerTime = make(map[string]time.Duration)
	}
	for pool, took := range cluster.WorkerTime() {
		s.workerTime[pool] += took
	}
	return run, err
}

// took is what all runs took.
func (s *simulation) took() *report.Simulation {
	hours := make(map[string]float64)
	for pool, took := range s.workerTime {
		hours[pool] = took.Hours()
	}
	var sizes []report.PoolSize
	for _, r := range s.resizes {
		sizes = append(sizes, report.PoolSize{AtS: r.At.Seconds(), Pool: r.Pool, Workers: r.To})
	}
	return &report.Simulation{
		VirtualS: s.virtual.Seconds(), WallS: s.wall.Seconds(), RequestsPerWallS: float64(s.requests) / max(s.wall.Seconds(), 1e-9),
		Workers: s.Scenario.Workers(), WorkerHours: hours, Sizes: sizes,
	}
}

// fits checks that the traffic can be made for the model.
func fits(read *scenario.Scenario, traffic workload.Spec) error {
	spec := read.Spec()
	source, err := traffic.New(workload.Params{Rate: 1, Duration: time.Second, VocabularySize: spec.VocabSize, ContextTokens: spec.ContextTokens})
	if closer, is := source.(io.Closer); is {
		return closer.Close()
	}
	return err
}

// simulateProgress shows how far a simulation is: on a terminal in one line that is written
// over, elsewhere a line for each run. It does not tell how long it will take, since virtual
// time says nothing about that.
type simulateProgress struct {
	liveLine
	what  string
	total time.Duration
	shown time.Time
}

// showEvery is the real time between two states on a terminal.
const showEvery = 100 * time.Millisecond

// Plan does nothing: it would tell times that nobody waits for.
func (p *simulateProgress) Plan(loadtest.Plan) {}

// Begin says that a run begins.
func (p *simulateProgress) Begin(what string, total time.Duration) {
	p.finish()
	p.what, p.total = what, total
	if !p.terminal {
		if !strings.HasPrefix(what, "estimating ") {
			what = "simulating " + what
		}
		_, _ = fmt.Fprintln(p.out, what)
	}
}

// Sample shows where the run is.
func (p *simulateProgress) Sample(s record.Sample) {
	if !p.terminal || time.Since(p.shown) < showEvery {
		return
	}
	p.shown = time.Now()
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %.0f", p.total.Seconds())
	}
	p.show("%s · %.0f%s s simulated · %d due · %d open", p.what, s.At.Seconds(), of, s.Due, s.Due-s.Ended)
}
