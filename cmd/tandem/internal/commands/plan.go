package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/cmd/tandem/plan"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/api"
	"github.com/tandem-serving/tandem/pkg/model"
	"github.com/tandem-serving/tandem/pkg/telemetry"
	controlv1 "github.com/tandem-serving/tandem/proto/tandem/control/v1"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

func newPlanCommand() *cobra.Command {
	var (
		flags planFlags
		html  string
	)
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Say how many workers a load needs to meet an SLO, and what they cost",
		Long: `Finds the number of prefill and decode workers for a rate, lengths and an SLO. Formulas
give a first size: Little's law, M/M/1, M/M/c, M/G/c and Amdahl's law, each printed with what
it assumes. Simulations, with the code that serves live traffic, then correct it. Some rules
are kept whatever a simulation says: see --max-utilisation, --burst and --deviations.

The plan says what latencies to expect, and whether fewer workers would do if all of them did
both phases. If no number of workers meets the SLO, it says why, names the nearest SLO that
can be met, and ends with exit status 1.

--report writes the curve of latency over rate, with the planned rate marked.

docs/planning.md has an example from a rate to a running mesh.`,
		Example: `  tandem plan --rate 50 --prompt-tokens 200 --output-tokens 40 --slo "ttft:p99<200ms,tpot:p99<20ms"
  tandem plan --rate 20 --prompt-tokens lognormal:1155,613 --output-tokens lognormal:211,273 --profile docs/profiles/h200-bench-8b.json --kv-memory 80GiB --slo "ttft:p90<500ms,tpot:p90<30ms" --worker-price 4
  tandem plan --scenario docs/scenarios/h200.yaml --rate 40 --report plan.html
  tandem plan --trace azure.csv --slo "ttft:p99<1s" --duration 10m`,
		Args: exactly(),
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&html, "report", "", "write an HTML page with the curve of latency over rate to this file")
	asJSON := addJSON(cmd, "print one JSON object")
	onlyOnCommandLine(cmd, "report")
	cmd.AddCommand(newPlanVerifyCommand())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var drawn *report.Report
		page := outputFile{"report", html, func(w io.Writer) error { return report.WriteHTML(w, drawn) }}
		if err := checkOutputs(cmd, []outputFile{page}); err != nil {
			return err
		}
		question, err := flags.read(cmd)
		if err != nil {
			return err
		}
		began := time.Now()
		live := &simulateProgress{liveLine: newLiveLine(cmd.ErrOrStderr())}
		made, err := plan.Make(cmd.Context(), question, live)
		live.finish()
		if err != nil {
			return planFailure(cmd, made, err, *asJSON)
		}
		if html != "" {
			drawn, err = made.Report(cmd.Context(), began)
			live.finish()
			if err != nil {
				return planFailure(cmd, made, err, *asJSON)
			}
			drawn.Command, drawn.Version = command(cmd), telemetry.ReadBuild().String()
		}
		err = show(cmd, *asJSON, made, func(w io.Writer, made *plan.Plan) error {
			return errors.Join(made.Write(w), flags.next(cmd, w, made.Size))
		})
		written := writeOutputs([]outputFile{page})
		sayWritten(cmd, written, page)
		return errors.Join(err, written)
	}
	return cmd
}

// planFailure is an error of planning; a plan that says why there is none is printed as JSON.
func planFailure(cmd *cobra.Command, made *plan.Plan, err error, asJSON bool) error {
	var infeasible *plan.Infeasible
	switch {
	case cmd.Context().Err() != nil:
		return &exitError{status: exitInterrupted, message: "interrupted before there was a plan", cause: err}
	case errors.As(err, &infeasible) && asJSON:
		return errors.Join(err, show(cmd, true, made, nil))
	case errors.As(err, &infeasible):
		return err
	}
	if !strings.HasPrefix(err.Error(), "--") { // no flag is wrong
		return err
	}
	return settingsError(cmd, err)
}

// planFlags are what a plan is for.
type planFlags struct {
	question plan.Question
	cluster  plan.ClusterFlags
	target   benchTarget
	traffic  *pflag.FlagSet
}

func (f *planFlags) add(cmd *cobra.Command) {
	q := &f.question
	f.traffic = pflag.NewFlagSet("", pflag.ContinueOnError) // what a scenario may set
	q.Load.RegisterFlags(f.traffic)
	f.traffic.StringVar(&f.target.mode, "mode", "auto", "where the phases run: auto, disaggregated or aggregated (all workers do both)")
	f.traffic.BoolVar(&f.target.sendSLO, "send-slo", false, "send the router the ttft and tpot bounds of --slo with each request")
	f.traffic.Lookup("rate").Usage = "requests per second to plan for"
	f.traffic.Lookup("seed").Usage = "seed of arrivals, lengths and the simulations; equal seeds give equal plans (default 1)"
	f.traffic.Lookup("duration").Usage = "how long to send requests in each simulation (default: until there are enough, and for a trace to its end)"
	f.traffic.Lookup("warmup").Usage = "warm-up before that, whose requests do not count (default: twice an answer's time, and for a trace with times none)"
	fs := cmd.Flags()
	f.traffic.VisitAll(func(flag *pflag.Flag) {
		switch flag.Name {
		case "concurrency", "sweep", "find-max": // a plan is for a rate
		default:
			fs.AddFlag(flag)
		}
	})
	onlyOnCommandLine(cmd, otherThanOfAMesh...)
	oneOf(cmd, "mode", api.Names[inferencev1.Mode]()...)
	f.cluster.RegisterFlags(fs)
	q.Headroom.RegisterFlags(fs)
	fs.Float64Var(&q.WorkerPrice, "worker-price", 0, "price of a worker for an hour, in any currency: the plan then says what a million tokens cost")
	fs.IntVar(&q.MaxWorkers, "max-workers", 200, "the most workers that there may be")
	onlyOnCommandLine(cmd, "model", "profile", "scenario")
}

// read is the question that the flags ask.
func (f *planFlags) read(cmd *cobra.Command) (*plan.Question, error) {
	q := &f.question
	rateGiven := cmd.Flags().Changed("rate")
	var err error
	if q.Cluster, err = f.cluster.Scenario(f.traffic, func() (string, error) { return modeldir.Find("") }); err != nil {
		return nil, settingsError(cmd, err)
	}
	load := &q.Load
	load.Sweep, load.FindMax, load.Concurrency = "", false, 0
	load.DurationSet, load.WarmupSet = f.traffic.Changed("duration"), f.traffic.Changed("warmup")
	if load.Rate == 0 && (rateGiven || load.Workload.Trace == "") {
		return nil, usageError(cmd, "--rate: a plan needs requests: pass a rate above 0, or --trace FILE")
	}
	if err := load.Validate(); err != nil {
		return nil, settingsError(cmd, err)
	}
	if err := q.Validate(); err != nil {
		return nil, usageError(cmd, err.Error())
	}
	if err := f.target.promise(*load); err != nil {
		return nil, usageError(cmd, err.Error())
	}
	q.TTFT, q.TPOT = f.target.ttft, f.target.tpot
	if q.Mode, err = benchMode(f.target.mode); err != nil {
		return nil, usageError(cmd, err.Error())
	}
	return q, nil
}

// next says what to type to run the planned mesh with the simulated engine and to verify
// the plan. It says nothing where no flags of 'up' make that mesh. A mesh cannot serve the
// shape of a preset without weights: it serves the bundled model with the profile's times.
func (f *planFlags) next(cmd *cobra.Command, w io.Writer, size plan.Size) error {
	c := &f.cluster
	_, notPreset := model.Preset(c.Model)
	preset := c.Model != "" && notPreset == nil
	if c.File != "" || c.Entry != "" || preset && cmd.Flags().Changed("model") {
		return nil
	}
	program := cmd.Root().DisplayName()
	up := fmt.Sprintf("%s up --engine simulated --prefill %d --decode %d", program, size.Prefill, size.Decode)
	if c.Bandwidth != "" {
		up += " --simulated-transfer " + shellQuoted(c.Bandwidth)
	}
	for _, name := range []string{"model", "profile", "kv-memory", "max-batch-tokens", "max-sequences", "block-tokens", "simulated-base-ms", "simulated-per-token-ms", "simulated-per-context-token-ms"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed {
			up += fmt.Sprintf(" --%s %s", name, shellQuoted(flag.Value.String()))
		}
	}
	verify := strings.Join(forVerify(command(cmd)[1:]), " ")
	with := ""
	if preset {
		with = " (the mesh then serves the bundled model, with the step times of " + c.Model + ")"
		verify += " --profile-model " + c.Model
	}
	_, err := fmt.Fprintf(w, "\ntry it with the simulated engine%s:\n  %s\n  %s plan verify %s --prefill %d --decode %d\n", with, up, program, verify, size.Prefill, size.Decode)
	return err
}

// forVerify are the arguments of a plan that 'plan verify' takes as well, as a shell takes them.
func forVerify(arguments []string) []string {
	out := make([]string, 0, len(arguments))
	for i, a := range arguments {
		name, _, _ := strings.Cut(a, "=")
		if name == "--report" || name == "--json" || i > 0 && arguments[i-1] == "--report" {
			continue
		}
		out = append(out, shellQuoted(a))
	}
	return out
}

func newPlanVerifyCommand() *cobra.Command {
	var (
		flags           planFlags
		addr            string
		prefill, decode int
		within          float64
	)
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Send the planned load to a mesh, and compare what it does with the prediction",
		Long: `Simulates the planned load and sends the same requests, at the same times, to a mesh. It
prints predicted beside measured percentiles, with the relative error of the prediction.
Pass the flags of 'tandem plan', and --prefill and --decode as the mesh has them; without
those two it plans first. --decode alone is for workers that all do both phases. If the
router answers at --control, it is asked whether the mesh has that size.

The exit status is 1 if a p99 of TTFT or TPOT is off by more than --within, if the mesh did
not complete more than 1% of the requests, or if the client was the limit.`,
		Example: `  tandem plan verify --rate 50 --prompt-tokens 200 --output-tokens 40 --slo "ttft:p99<200ms,tpot:p99<20ms"
  tandem plan verify --rate 10 --prompt-tokens 200 --output-tokens 40 --slo "ttft:p99<200ms" --prefill 1 --decode 1 --duration 1m`,
		Args: exactly(),
	}
	flags.add(cmd)
	fs := cmd.Flags()
	fs.StringVar(&addr, "addr", defaultAddr, "gRPC address of the router: host:port or unix:///path")
	router := addControl(cmd)
	fs.IntVar(&prefill, "prefill", 0, "prefill workers of the mesh (default: as planned)")
	fs.IntVar(&decode, "decode", 0, "decode workers of the mesh (default: as planned)")
	fs.Float64Var(&within, "within", 0.2, "largest relative error of a p99 for exit status 0")
	asJSON := addJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case !(within > 0):
			return usageError(cmd, fmt.Sprintf("--within: %v must be above 0", within))
		case prefill < 0 || decode < 0:
			return usageError(cmd, "--prefill and --decode must not be negative")
		case prefill > 0 && decode == 0:
			return usageError(cmd, "--prefill needs --decode: pass both, as the mesh has them")
		}
		if err := checkRouterAddress(addr); err != nil {
			return usageError(cmd, "--addr: "+err.Error())
		}
		question, err := flags.read(cmd)
		if err != nil {
			return err
		}
		as, err := router.open(cmd)
		if err != nil {
			return err
		}
		server, err := client.NewTandem(client.TandemConfig{
			Address: addr, APIKey: as.apiKey, Credentials: as.transport, Mode: question.Mode, TTFT: question.TTFT, TPOT: question.TPOT,
		})
		if err != nil {
			return usageError(cmd, err.Error())
		}
		defer server.Close()
		if _, err := server.Describe(cmd.Context()); err != nil { // before the long plan
			return loadFailure(cmd.Context(), err)
		}
		defer deferCollector()()
		live := newLoadProgress(cmd.ErrOrStderr())
		verified, err := verify(cmd.Context(), question, plan.Size{Prefill: prefill, Decode: decode}, server, live, router.checkSize)
		live.finish()
		switch {
		case err != nil && cmd.Context().Err() != nil:
			return interruptedOr(cmd.Context(), err)
		case err != nil:
			return planFailure(cmd, nil, err, false)
		}
		if err := show(cmd, *asJSON, verified, func(w io.Writer, v *plan.Verification) error { return v.Write(w) }); err != nil {
			return err
		}
		return verified.Check(within)
	}
	return cmd
}

// verify plans if the size of the mesh is not known, checks it, and verifies.
func verify(ctx context.Context, question *plan.Question, size plan.Size, server client.Client, live *loadProgress, check func(plan.Size) error) (*plan.Verification, error) {
	if size.Workers() == 0 {
		made, err := plan.Make(ctx, question, nil)
		if err != nil {
			return nil, err
		}
		size = made.Size
	}
	if err := check(size); err != nil {
		return nil, err
	}
	return plan.Verify(ctx, question, size, server, fmt.Sprintf("plan-verify-%d", time.Now().UnixNano()), live)
}

// checkSize refuses a size that the mesh has not, if its router says so. Beside an --addr of somewhere
// else, what answers at the default of --control may be another mesh.
func (o *operator) checkSize(want plan.Size) error {
	flags := o.cmd.Flags()
	if flags.Changed("addr") && !flags.Changed("control") {
		return nil
	}
	list, err := ask(o, controlv1.NewControlClient, controlv1.ControlClient.ListWorkers, &controlv1.ListWorkersRequest{})
	if err != nil {
		if flags.Changed("control") {
			return err
		}
		return nil
	}
	var has plan.Size
	both := 0 // that can do both phases
	for _, w := range list.GetWorkers() {
		switch r := w.GetRecord(); {
		case !api.Serves(w):
		case r.GetRole() == controlv1.Role_ROLE_DECODE:
			has.Decode++
			both++
		case r.GetRole() == controlv1.Role_ROLE_PREFILL:
			has.Prefill++
			if r.GetWholeRequests() {
				both++
			}
		}
	}
	if has == want || want.Prefill == 0 && both == want.Decode {
		return nil
	}
	return fmt.Errorf("the mesh has %s, and the plan is for %s: start or stop workers, or pass --prefill %d --decode %d", has, want, has.Prefill, has.Decode)
}
