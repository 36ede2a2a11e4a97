package commands

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/scheduler"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/pkg/model"
)

type benchSchedulerFlags struct {
	measuredFlags
	plan    scheduler.Plan
	budgets []time.Duration
	chunks  []int
	shares  []float64

	virtual, engine bool
	profile         string
	terms           latency.Terms
	jitter          float64

	isa   string
	limit time.Duration
}

func newBenchSchedulerCommand() *cobra.Command {
	var f benchSchedulerFlags
	cmd := &cobra.Command{
		Use:   "scheduler",
		Short: "Measure how the scheduler treats short requests beside long ones",
		Long: `Runs long and short prompts on one worker that does both prefill and decode, under one
policy after the other: every combination of --step-budget, --chunk-tokens and
--output-share. It prints the times to the first token and between tokens, how long
prompts stalled the sequences that decode, how far prompts lengthened steps beyond the
budget, and what was preempted and computed again.

The scenario mix is a stream of requests with Poisson arrivals. In long-prompt, some
sequences decode, and then one long prompt arrives. The result compares the gaps between
their tokens before the prompt and during it.

By default the scheduler runs alone, on virtual time. A step takes what --profile says, or
base-ms + per-token-ms·T + per-square-ms·Σ(end²−start²) + per-context-token-ms·Σend. The
defaults are about right for a model of 8 billion parameters on a GPU of 200 TFLOP/s and
1.5 TB/s. The same seed gives the same figures, except for the scheduler's own time.

With --engine the CPU engine computes, in this process and in real time. The steps
without prompts then predict what other steps would have taken without their prompts.`,
		Example: `  tandem bench scheduler
  tandem bench scheduler --step-budget 0s,20ms,50ms --chunk-tokens 512,2048 --json
  tandem bench scheduler --blocks 600 --output-share 1,0.25
  tandem bench scheduler --scenario long-prompt --profile 200m.json
  tandem bench scheduler --scenario long-prompt --engine --step-budget 0s,100ms`,
		Args: exactly(),
	}
	p := &f.plan
	fs := cmd.Flags()
	fs.StringVar(&p.Scenario, "scenario", scheduler.Mix, "load to run: mix or long-prompt")
	fs.Uint64Var(&p.Seed, "seed", 1, "seed of arrivals, lengths and tokens")
	fs.DurationSliceVar(&f.budgets, "step-budget", []time.Duration{0, 50 * time.Millisecond}, "how much prompts may lengthen a step with decoding sequences; 0s: no bound")
	fs.IntSliceVar(&f.chunks, "chunk-tokens", nil, "most prompt tokens in a step (default: --batch-tokens)")
	fs.Float64SliceVar(&f.shares, "output-share", []float64{1}, "share of --max-tokens that the scheduler expects of a request, until some have ended")
	fs.IntVar(&p.Requests, "requests", 2000, "mix: number of requests (default with --engine: 20)")
	fs.Float64Var(&p.Rate, "rate", 8, "mix: requests per second (default with --engine: 0.5)")
	fs.Float64Var(&p.LongShare, "long-share", 0.05, "mix: share of requests with long prompts (default with --engine: 0.15)")
	fs.IntVar(&p.ShortTokens, "short-prompt", 256, "tokens in a short prompt; in mix, the mean (default with --engine: 64)")
	fs.IntVar(&p.LongTokens, "long-prompt", 8192, "tokens in a long prompt; in mix, the mean (default with --engine: 1024; with long-prompt: 16384)")
	fs.IntVar(&p.OutputTokens, "output", 128, "mix: mean tokens that a request generates (default with --engine: 32)")
	fs.IntVar(&p.MaxTokens, "max-tokens", 512, "mix: most tokens that a request may generate")
	fs.IntVar(&p.Decodes, "decodes", 8, "long-prompt: number of decoding sequences")
	fs.IntVar(&p.BeforeSteps, "before", 200, "long-prompt: decode steps before the prompt arrives")
	fs.IntVar(&p.Blocks, "blocks", 4096, "number of KV blocks (default with --engine: 512; with long-prompt: as many as it needs)")
	fs.IntVar(&p.BlockTokens, "block-tokens", cpu.DefaultBlockTokens, "tokens in a KV block")
	fs.IntVar(&p.BatchTokens, "batch-tokens", 2048, "most tokens in a step (default with --engine: 512)")
	fs.IntVar(&p.Sequences, "sequences", 128, "most sequences in a step (default with --engine: 64)")

	fs.BoolVar(&f.virtual, "virtual", false, "run on virtual time (the default without --engine)")
	fs.StringVar(&f.profile, "profile", "", "virtual time: file with step times, from 'tandem profile --out'")
	fs.Float64Var(&f.terms.BaseMs, "base-ms", 10.7, "virtual time: milliseconds for each step")
	fs.Float64Var(&f.terms.PerTokenMs, "per-token-ms", 0.08, "virtual time: milliseconds for each token computed")
	fs.Float64Var(&f.terms.PerSquareMs, "per-square-ms", 1.3e-6, "virtual time: milliseconds for each unit of end²−start², over chunks")
	fs.Float64Var(&f.terms.PerContextTokenMs, "per-context-token-ms", 8.7e-5, "virtual time: milliseconds for each token of context")
	fs.Float64Var(&f.jitter, "jitter", 0, "virtual time: standard deviation of step times, as a share of their mean")

	fs.BoolVar(&f.engine, "engine", false, "compute with the CPU engine, in real time")
	f.add(cmd, "engine: ")
	fs.IntVar(&f.layers, "layers", 0, "engine: layers of the random model; fewer make it faster (default: all of --preset)")
	fs.StringVar(&f.isa, "isa", "", "engine: instruction set, such as avx2 or portable (default: the best that this CPU has)")
	fs.DurationVar(&f.limit, "limit", 15*time.Minute, "engine: longest time for one policy; a longer run is an error")
	oneOf(cmd, "scenario", scheduler.Mix, scheduler.LongPrompt)
	asJSON := addBenchJSON(cmd, "print one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.complete(cmd.Flags())
		if err := f.checkAll(cmd); err != nil {
			return usageError(cmd, err.Error())
		}
		measure := f.onVirtualTime
		if f.engine {
			measure = f.onEngine
		}
		result, err := measure(cmd)
		return measured(cmd, *asJSON, result, err, printBenchScheduler)
	}
	return cmd
}

// complete fills in defaults that depend on other flags, and makes the policies.
func (f *benchSchedulerFlags) complete(fs *pflag.FlagSet) {
	p := &f.plan
	set := func(when bool, name string, field *int, value int) {
		if when && !fs.Changed(name) {
			*field = value
		}
	}
	alone := p.Scenario == scheduler.LongPrompt
	set(alone, "long-prompt", &p.LongTokens, 16384)
	set(alone, "blocks", &p.Blocks, 0)
	set(f.engine && !alone, "blocks", &p.Blocks, 512)
	set(f.engine, "sequences", &p.Sequences, cpu.DefaultMaxSequences)
	set(f.engine, "batch-tokens", &p.BatchTokens, cpu.DefaultMaxBatchTokens)
	set(f.engine && !alone, "requests", &p.Requests, 20)
	set(f.engine && !alone, "short-prompt", &p.ShortTokens, 64)
	set(f.engine && !alone, "long-prompt", &p.LongTokens, 1024)
	set(f.engine && !alone, "output", &p.OutputTokens, 32)
	if f.engine && !fs.Changed("rate") {
		p.Rate = 0.5
	}
	if f.engine && !fs.Changed("long-share") {
		p.LongShare = 0.15
	}
	if !fs.Changed("chunk-tokens") {
		f.chunks = []int{p.BatchTokens - p.BatchTokens%max(p.BlockTokens, 1)}
	}
	for _, share := range f.shares {
		for _, chunk := range f.chunks {
			for _, budget := range f.budgets {
				if len(p.Policies) <= scheduler.MaxPolicies { // one more than allowed is refused
					p.Policies = append(p.Policies, scheduler.Policy{StepBudget: budget, ChunkTokens: chunk, OutputShare: share})
				}
			}
		}
	}
}

func (f *benchSchedulerFlags) checkAll(cmd *cobra.Command) error {
	fs := cmd.Flags()
	for _, group := range []struct {
		refused bool
		problem string
		names   []string
	}{
		{f.engine, "is for virtual time, and --engine runs in real time: leave one of them out", []string{"virtual", "profile", "base-ms", "per-token-ms", "per-square-ms", "per-context-token-ms", "jitter"}},
		{!f.engine, "is for the CPU engine: give --engine, or leave it out", []string{"model", "preset", "layers", "threads", "isa", "limit"}},
		{f.profile != "", "is set by --profile: leave one of them out", []string{"base-ms", "per-token-ms", "per-square-ms", "per-context-token-ms"}},
		{f.plan.Scenario == scheduler.LongPrompt, "is for --scenario mix: leave it out", []string{"requests", "rate", "long-share", "output", "max-tokens"}},
		{f.plan.Scenario == scheduler.Mix, "is for --scenario long-prompt: leave it out", []string{"decodes", "before"}},
	} {
		for _, name := range group.names {
			if group.refused && fs.Changed(name) {
				return fmt.Errorf("--%s %s", name, group.problem)
			}
		}
	}
	if !f.engine {
		if !(f.jitter >= 0 && f.jitter <= latency.MaxJitter) {
			return fmt.Errorf("--jitter: %v is outside 0 to %d", f.jitter, latency.MaxJitter)
		}
		if err := f.ownProfile().Validate(); err != nil {
			return fmt.Errorf("--base-ms, --per-token-ms, --per-square-ms, --per-context-token-ms: %w", err)
		}
		return f.plan.Validate()
	}
	switch {
	case f.limit <= 0 || f.limit > 24*time.Hour:
		return fmt.Errorf("--limit: %v is not above 0s and at most 24h", f.limit)
	case f.model != "" && (fs.Changed("preset") || fs.Changed("layers")):
		return errors.New("--model does not go with --preset or --layers, which are for a random model: leave one out")
	}
	return f.check(cmd, f.plan)
}

// ownProfile is the profile of the single terms.
func (f *benchSchedulerFlags) ownProfile() *latency.Profile {
	regimes := []latency.Regime{{Terms: f.terms}}
	return &latency.Profile{Version: latency.ProfileVersion, Prefill: regimes, Decode: regimes}
}

func (f *benchSchedulerFlags) onVirtualTime(cmd *cobra.Command) (*scheduler.Result, error) {
	profile := f.ownProfile()
	if f.profile != "" {
		var err error
		if profile, err = latency.ReadProfileFile(f.profile); err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
	}
	p := newProgress(cmd.ErrOrStderr())
	defer p.finish()
	return scheduler.Virtual(cmd.Context(), f.plan, scheduler.Device{Profile: profile, Jitter: f.jitter}, func(done, total int64) { p.report("profile", done, total) })
}

func (f *benchSchedulerFlags) onEngine(cmd *cobra.Command) (*scheduler.Result, error) {
	return measureWith(cmd, f.measuredFlags, f.load, func(weights *cpu.Weights, progress func(done, total int64)) (*scheduler.Result, error) {
		return scheduler.Real(cmd.Context(), weights, f.plan, f.limit, progress)
	})
}

// load says how the weights are loaded, if plan and memory allow.
func (f *benchSchedulerFlags) load(m *model.Model) (cpu.Config, error) {
	config := cpu.Config{Threads: f.threads, ISA: f.isa}
	return config, checkPlan(f.plan, m.Spec(), "a smaller model, fewer --blocks or a shorter --long-prompt")
}

// printBenchScheduler writes the result for people: tables of one row a policy.
func printBenchScheduler(out io.Writer, r *scheduler.Result) error {
	if r.Scenario == scheduler.LongPrompt {
		fmt.Fprintf(out, "decoding %s after prompts of %d tokens; after %s a prompt of %d arrives", counted(r.Decodes, "sequence"), r.ShortTokens, counted(r.BeforeSteps, "step"), r.LongTokens)
	} else {
		fmt.Fprintf(out, "%s, %g a second; prompts of about %d tokens, %g%% of about %d; outputs of about %d", counted(r.Requests, "request"), r.Rate, r.ShortTokens, 100*r.LongShare, r.LongTokens, r.OutputTokens)
	}
	fmt.Fprintf(out, "; %d blocks of %d; steps of %d tokens, %d sequences\n", r.Blocks, r.BlockTokens, r.BatchTokens, r.Sequences)
	if r.Clock == "real" {
		fmt.Fprintf(out, "real time: %s on %s, threads %d\n", r.Model, r.ISA, r.Threads)
	} else {
		fmt.Fprintf(out, "virtual time, seed %d\n", r.Seed)
	}
	t := &policyTable{out: out, result: r}
	if r.Scenario == scheduler.LongPrompt {
		t.write("ITL ms\tbefore p50\tp99\tmeanwhile p50\tp99\tp99.9\tmax\tp99 rises by\tlong TTFT", func(row *scheduler.Row) string {
			l := row.Long
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", t.two(l.Before), t.two(l.During), t.at(.999, l.During.P999),
				ms(l.During.Max), t.at(.99, l.RiseP99Ms), ms(row.TTFTLong.Max))
		})
	} else {
		t.write("TTFT ms\tp50\tp90\tp99\tp99.9\tshort p50\tp99\tlong p50\tp99\ttokens/s", func(row *scheduler.Row) string {
			return fmt.Sprintf("%s\t%s\t%s\t%.1f", t.four(row.TTFT), t.two(row.TTFTShort), t.two(row.TTFTLong), row.OutputRate)
		})
		t.write("ITL ms\tp50\tp90\tp99\tp99.9\tmax", func(row *scheduler.Row) string {
			return t.four(row.ITL) + "\t" + ms(row.ITL.Max)
		})
	}
	t.write("stalled ms\tp50\tp90\tp99\tp99.9\tmax\tof all gaps", func(row *scheduler.Row) string {
		return fmt.Sprintf("%s\t%s\t%.1f%%", t.four(row.Stall), ms(row.Stall.Max), 100*row.StalledShare)
	})
	t.write("prompts add ms\tp50\tp99\tmax\tof steps\tover budget\tat worst by\tpreempted\tcomputed\tagain", func(row *scheduler.Row) string {
		return fmt.Sprintf("%s\t%s\t%d of %d\t%d\t%s\t%d\t%d\t%d", t.two(row.Added), ms(row.Added.Max), row.MixedSteps, row.Steps,
			row.OverBudget, ms(row.WorstOverMs), row.Preemptions, row.ComputedTokens, row.ComputedAgain)
	})
	if r.Clock == "real" {
		t.write("between steps µs\tp50\tp99\tmax", func(row *scheduler.Row) string {
			return fmt.Sprintf("%s\t%.0f", t.spread("%.0f", *row.BetweenUs, row), row.BetweenUs.Max)
		})
	} else {
		t.write("scheduler µs a step\tp50\tp99\tmax\twith arrivals\tsequences\tallocations\tdecode alone", func(row *scheduler.Row) string {
			s := row.Scheduler
			us := scheduler.Spread{P50: s.StepNs.P50 / 1e3, P99: s.StepNs.P99 / 1e3}
			return fmt.Sprintf("%s\t%.0f\t%.1f\t%.1f\t%.1f\t%.1f", t.spread("%.1f", us, row), s.StepNs.Max/1e3,
				s.NsPerStep/1e3, row.SequencesPerStep, s.AllocsPerStep, s.AllocsPerDecodeStep)
		})
	}
	if reason := t.reason(); reason != "" && t.err == nil {
		_, t.err = fmt.Fprintln(out, "\n"+reason)
	}
	return t.err
}

type policyTable struct {
	out    io.Writer
	result *scheduler.Result
	err    error
	tooFew
}

func (p *policyTable) write(heads string, row func(*scheduler.Row) string) {
	fmt.Fprintln(p.out)
	t := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%s\t\n", heads)
	for i := range p.result.Rows {
		r := &p.result.Rows[i]
		fmt.Fprintf(t, "%s\t%s\t\n", policyName(r), row(r))
	}
	if err := t.Flush(); p.err == nil {
		p.err = err
	}
}

func policyName(r *scheduler.Row) string {
	budget := "no budget"
	if r.StepBudgetMs > 0 {
		budget = "budget " + time.Duration(r.StepBudgetMs*float64(time.Millisecond)).String()
	}
	return fmt.Sprintf("%s, chunks of %d, share %g", budget, r.ChunkTokens, r.OutputShare)
}

func ms(x float64) string { return fmt.Sprintf("%.1f", x) }

// at is a percentile in milliseconds.
func (p *policyTable) at(q float64, ms *float64) string { return p.cell(q, "%.1f", ms) }

func (p *policyTable) two(of scheduler.Percentiles) string {
	return p.at(.5, of.P50) + "\t" + p.at(.99, of.P99)
}

// spread is median and p99 of what each step of a row has once.
func (p *policyTable) spread(format string, of scheduler.Spread, row *scheduler.Row) string {
	steps := uint64(row.Steps)
	return p.cell(.5, format, enough(.5, steps, of.P50)) + "\t" + p.cell(.99, format, enough(.99, steps, of.P99))
}

func (p *policyTable) four(of scheduler.Percentiles) string {
	return p.at(.5, of.P50) + "\t" + p.at(.9, of.P90) + "\t" + p.at(.99, of.P99) + "\t" + p.at(.999, of.P999)
}
