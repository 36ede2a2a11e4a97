package commands

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-serving/tandem/pkg/engine/engines"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/modes"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

const (
	// meshStartTimeout bounds the start of a mesh, the loading of its model included.
	meshStartTimeout = 2 * time.Minute
	// aroundCapacity is the value of --rates for those around the capacity.
	aroundCapacity = "auto"
	// searchRounds is the default of --rounds without --rates.
	searchRounds = 5
)

func newBenchModesCommand() *cobra.Command {
	var f modesFlags
	cmd := &cobra.Command{
		Use:   "modes",
		Short: "Compare aggregated and disaggregated serving and mode auto, at equal cores",
		Long: `Starts three meshes with the same number of workers and threads, each part in a process
of its own. In the first all workers do both phases. In the others they are split into
prefill and decode workers: one serves in mode disaggregated, one in mode auto.

For each mix of requests it finds the capacity of each: the highest rate at which 90% of
the requests meet the SLO. At each step of the search they take turns with the same
arrivals; each round draws new ones. Without --slo, the SLO is what the aggregated mesh
does for one request at a time, times --slo-scale.

With --rates it measures latencies at these rates instead, and where the time went. The
capacity is then the highest of the rates.

--virtual compares clusters on virtual time, as 'tandem simulate' runs them.

This process sends the load and embeds etcd and NATS. On a small machine, the cores that
it uses affect all results alike.`,
		Example: `  tandem bench modes --duration 20s --markdown modes.md
  tandem bench modes --mix azure --mix 256/64 --rounds 3 --json
  tandem bench modes --virtual --workers 8
  tandem bench modes --rates 5,10,20,40 --prompt-tokens 256 --output-tokens 64 --report modes.html`,
		Args: exactly(),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return f.run(cmd) }
	return cmd
}

// modesFlags are those of the command.
type modesFlags struct {
	server              comparedServer
	rates, scale        string
	mixes               []string
	options             modes.Options
	json                *bool
	html, markdown, out string
}

func (f *modesFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	f.options.Load.RegisterRunFlags(fs)
	onlyOnCommandLine(cmd, otherThanOfAMesh...)
	f.server.add(cmd)
	fs.StringVar(&f.rates, "rates", "", "measure at these rates in requests per second, such as --rates=5,10,20; --rates=auto: around the largest capacity")
	fs.StringArrayVar(&f.mixes, "mix", nil, "mix of requests, repeated for others: "+strings.Join(modes.Names(), ", ")+" (default: all, or that of --prompt-tokens and --output-tokens)")
	oneOf(cmd, "mix", modes.Names()...)
	fs.StringVar(&f.scale, "slo-scale", "10,5", "bounds of TTFT and TPOT if --slo sets none, in multiples of what an idle mesh does")
	fs.BoolVar(&f.options.Send, "send-slo", true, "send the router the ttft and tpot bounds with each request")
	fs.IntVar(&f.options.Rounds, "rounds", 0, "times to search for each capacity or to measure each rate (default 5, or 1 with --rates)")
	fs.StringVar(&f.html, "report", "", "write an HTML page with plots of all to this file; of several mixes FILE-MIX each")
	fs.StringVar(&f.markdown, "markdown", "", "write the tables as Markdown to this file")
	fs.StringVar(&f.out, "out", "", "write the result as JSON to this file")
	f.json = addJSON(cmd, "print one JSON object instead of a table: mixes, and the reports with --rates")
	onlyOnCommandLine(cmd, "report", "markdown", "out", "mix")
}

// check puts the flags into the options.
func (f *modesFlags) check(cmd *cobra.Command) (err error) {
	o, changed := &f.options, cmd.Flags().Changed
	if f.rates != "" {
		o.Rates = []float64{}
		if f.rates != aroundCapacity {
			if o.Rates, err = search.ParseRates(f.rates); err != nil {
				return usageError(cmd, "--rates: "+err.Error())
			}
		}
	}
	if o.TTFTScale, o.TPOTScale, err = parseScale(f.scale); err != nil {
		return usageError(cmd, "--slo-scale: "+err.Error())
	}
	own := changed("prompt-tokens") || changed("output-tokens") || changed("trace")
	if o.Rounds == 0 && o.Rates == nil {
		o.Rounds = searchRounds
	}
	switch {
	case o.Rounds < 0:
		return usageError(cmd, "--rounds must be at least 1")
	case own && f.mixes != nil:
		return usageError(cmd, "--mix sets what requests are like: leave it out, or --prompt-tokens, --output-tokens and --trace")
	}
	if own || f.mixes == nil && o.Rates != nil {
		o.Mixes = []modes.Mix{modes.Given(o.Load.Workload)}
	} else if o.Mixes, err = modes.Named(f.mixes); err != nil {
		return usageError(cmd, "--mix: "+err.Error())
	}
	if o.Rates != nil && len(o.Mixes) > 1 {
		return usageError(cmd, "--rates are of one mix: pass one --mix")
	}
	o.Load.DurationSet, o.Load.WarmupSet = changed("duration"), changed("warmup")
	o.Workers = f.server.workers
	return settingsError(cmd, modes.Check(o.Load, o.Mixes))
}

// files are the files that are asked for: first the pages, one of each mix. To check them, r may
// be nil.
func (f *modesFlags) files(r *modes.Result) (all []outputFile) {
	for i := range f.options.Mixes {
		all = append(all, outputFile{"report", modes.Page(f.html, f.options.Mixes, i), func(w io.Writer) error { return r.WritePage(w, i) }})
	}
	return append(all,
		outputFile{"markdown", f.markdown, r.WriteMarkdown},
		outputFile{"out", f.out, r.WriteJSON})
}

func (f *modesFlags) run(cmd *cobra.Command) error {
	if err := f.check(cmd); err != nil {
		return err
	}
	three, err := f.server.contenders(cmd)
	if err != nil {
		return err
	}
	if err := checkOutputs(cmd, f.files(nil)); err != nil {
		return err
	}
	if !f.server.virtual {
		defer deferCollector()()
	}
	live, finish := f.server.progress(cmd.ErrOrStderr())
	result, failed := modes.Run(cmd.Context(), three, f.options, live)
	finish()
	if failed = loadFailure(cmd.Context(), failed); failed != nil && len(result.Mixes) == 0 {
		return failed
	}
	for _, r := range result.Reports() {
		r.Command, r.Version = command(cmd), telemetry.ReadBuild().String()
	}
	written := f.files(result)
	errs := []error{writeOutputs(written)}
	defer func() {
		for _, page := range written[:len(f.options.Mixes)] {
			sayWritten(cmd, errs[0], page)
		}
	}()
	if *f.json {
		errs = append(errs, result.WriteJSON(cmd.OutOrStdout()))
	} else {
		errs = append(errs, result.WriteMarkdown(cmd.OutOrStdout()))
	}
	if err := errors.Join(append(errs, failed)...); err != nil {
		return err
	}
	if result.Interrupted {
		return &exitError{status: exitInterrupted, message: "interrupted: the figures are those measured so far"}
	}
	return nil
}

// parseScale reads "10,5".
func parseScale(text string) (ttft, tpot float64, err error) {
	numbers, err := parseNumbers(text, 1, 1000)
	if err == nil && len(numbers) != 2 {
		err = fmt.Errorf("%q is not two numbers, such as 10,5", text)
	}
	if err != nil {
		return 0, 0, err
	}
	return numbers[0], numbers[1], nil
}

// comparedServer is what serves in each contender.
type comparedServer struct {
	model, engine, profile, kvMemory string
	workers, prefill, threads        int
	virtual                          bool
}

func (s *comparedServer) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&s.model, "model", "", "directory of the model (default: the bundled one); with --virtual also a preset of 'tandem model synth'")
	fs.StringVar(&s.engine, "engine", engines.CPU, "engine of the workers: cpu or simulated")
	oneOf(cmd, "engine", engines.CPU, engines.Simulated)
	fs.StringVar(&s.profile, "profile", "", "step times of the simulated engine, from 'tandem profile --out', of whatever model (default: its flags')")
	fs.StringVar(&s.kvMemory, "kv-memory", "", "memory for the KV cache of each worker (default: that of the engine)")
	fs.IntVar(&s.workers, "workers", 2, "workers of each mesh")
	fs.IntVar(&s.prefill, "prefill", 0, "how many of them prefill where they are split (default: half)")
	fs.IntVar(&s.threads, "threads", 1, "compute threads of each worker")
	fs.BoolVar(&s.virtual, "virtual", false, "compare clusters on virtual time, with the simulated engine")
	onlyOnCommandLine(cmd, "profile", "kv-memory", "prefill", "threads") // the environment's are of another mesh
}

// contenders are the three that are compared.
func (s *comparedServer) contenders(cmd *cobra.Command) ([]contenders.Contender, error) {
	prefill := s.prefill
	if prefill == 0 {
		prefill = s.workers / 2
	}
	simulated := s.virtual || s.engine == engines.Simulated
	switch {
	case s.threads < 1:
		return nil, usageError(cmd, "--threads must be at least 1")
	case s.workers < 2:
		return nil, usageError(cmd, "--workers must be at least 2")
	case prefill < 1 || prefill >= s.workers:
		return nil, usageError(cmd, fmt.Sprintf("--prefill: of %d workers, 1 to %d can prefill", s.workers, s.workers-1))
	case s.engine != engines.CPU && s.engine != engines.Simulated:
		return nil, usageError(cmd, fmt.Sprintf("--engine %q: choose %s or %s", s.engine, engines.CPU, engines.Simulated))
	case s.profile != "" && !simulated:
		return nil, usageError(cmd, "--profile is for the simulated engine: add --engine simulated or --virtual")
	}
	plan := processes.Plan{
		Arguments: []string{"--router-tenant-max-requests", strconv.Itoa(simulatedtarget.ManyRequests), "--engine", s.engine},
		Worker:    processes.Threads(s.threads), StartTimeout: meshStartTimeout,
	}
	if s.model != "" {
		plan.Arguments = append(plan.Arguments, "--model", s.model)
	}
	if s.profile != "" {
		plan.Worker = append(plan.Worker, "--profile", s.profile)
	}
	if s.kvMemory != "" {
		plan.Worker = append(plan.Worker, "--kv-memory", s.kvMemory)
	}
	together, split := plan, plan
	together.Decode, split.Prefill, split.Decode = s.workers, prefill, s.workers-prefill
	three := []contenders.Contender{
		{Name: modes.Aggregated, Mode: inferencev1.Mode_MODE_AGGREGATED, Plan: together},
		{Name: modes.Disaggregated, Mode: inferencev1.Mode_MODE_DISAGGREGATED, Plan: split},
		{Name: modes.Auto, Mode: inferencev1.Mode_MODE_AUTO, Plan: split},
	}
	if !s.virtual {
		return three, nil
	}
	name := s.model
	if _, unknown := model.Preset(name); unknown != nil {
		var err error
		if name, err = modeldir.Find(s.model); err != nil {
			return nil, err
		}
	}
	profiled := ""
	if s.profile != "" {
		steps, err := latency.ReadProfileFile(s.profile)
		if err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
		profiled = steps.Model
	}
	for i := range three {
		c := &three[i]
		var err error
		if c.Virtual, err = (contenders.VirtualPlan{Model: name, Profile: s.profile, ProfileModel: profiled, KVMemory: s.kvMemory, Mesh: c.Plan, Mode: c.Mode}).New(); err != nil {
			return nil, err
		}
	}
	return three, nil
}

// progress shows the runs as they go.
func (s *comparedServer) progress(out io.Writer) (live loadtest.Progress, finish func()) {
	if s.virtual {
		p := &simulateProgress{liveLine: newLiveLine(out)}
		return p, p.finish
	}
	p := newLoadProgress(out)
	return p, p.finish
}
