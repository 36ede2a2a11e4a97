package evidence

import (
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/drive"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/pkg/memory"
)

// live compares meshes of processes with their simulation, under the same load.
type live struct{}

func (live) Name() string  { return "live" }
func (live) Title() string { return "The live mesh beside its simulation" }

// liveMesh is a mesh of workers that take as long as an A100 with OPT-13B. Their KV is that of the bundled model.
type liveMesh struct {
	name            string
	prefill, decode int
	mode            inferencev1.Mode
}

const (
	liveMemory = "40GiB"
	liveTTFT   = 250 * time.Millisecond
	liveTPOT   = 100 * time.Millisecond
)

// liveSpans are how long a rate is sent before anything counts, and then.
func (o Options) liveSpans() (warmup, measured time.Duration) {
	if o.Small {
		return time.Second, 3 * time.Second
	}
	return 12 * time.Second, 15 * time.Second
}

// contenders are the mesh and its simulation.
func (m liveMesh) contenders(o Options) ([]contenders.Contender, error) {
	model, err := modeldir.Find("")
	if err != nil {
		return nil, err
	}
	plan := processes.Plan{
		Prefill: m.prefill, Decode: m.decode, StartTimeout: time.Minute,
		Arguments: []string{"--router-tenant-max-requests", strconv.Itoa(simulatedtarget.ManyRequests), "--engine", "simulated", "--model", model},
		Worker:    append(processes.Threads(1), "--profile", o.profile(mapProfile), "--kv-memory", liveMemory),
	}
	virtual, err := contenders.VirtualPlan{
		Model: model, Profile: o.profile(mapProfile), ProfileModel: "facebook/" + opt13B.name, KVMemory: liveMemory, Mesh: plan, Mode: m.mode,
	}.New()
	if err != nil {
		return nil, err
	}
	return []contenders.Contender{{Name: m.name, Plan: plan, Mode: m.mode}, {Name: m.name + ", simulated", Mode: m.mode, Virtual: virtual}}, nil
}

// liveLoad is what is sent.
func liveLoad(o Options) (load loadtest.Config, err error) {
	warmup, measured := o.liveSpans()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	load.RegisterRunFlags(fs)
	err = fs.Parse([]string{
		"--prompt-tokens=uniform:200-1500", "--output-tokens=uniform:50-300", "--seed=1",
		fmt.Sprintf("--slo=ttft:p90<%v,tpot:p90<%v", liveTTFT, liveTPOT), "--warmup=" + warmup.String(), "--duration=" + measured.String(),
	})
	load.DurationSet, load.WarmupSet = true, true
	return load, err
}

// liveStep is what one mesh and its simulation did at a rate.
type liveStep struct {
	mesh            string
	rate            float64
	live, simulated report.Figures
}

// Run measures.
func (live) Run(ctx context.Context, o Options) (*Result, error) {
	meshes := []liveMesh{
		{"4 prefill + 4 decode, `auto`", 4, 4, inferencev1.Mode_MODE_AUTO},
		{"8 that do both", 0, 8, inferencev1.Mode_MODE_AGGREGATED},
	}
	rates := []float64{10, 25}
	if o.Small {
		meshes, rates = []liveMesh{{"1 prefill + 1 decode, `auto`", 1, 1, inferencev1.Mode_MODE_AUTO}}, []float64{2}
	}
	load, err := liveLoad(o)
	if err != nil {
		return nil, err
	}
	if available, known := memory.Available(os.DirFS("/")); known {
		defer drive.DeferCollector(available.Bytes)()
	}
	var steps []liveStep
	for _, m := range meshes {
		pair, err := m.contenders(o)
		if err != nil {
			return nil, err
		}
		for _, rate := range rates { // each on a mesh that has served nothing before, as its simulation
			result, err := contenders.Run(ctx, pair, contenders.Options{Load: load, Carry: contenders.Bounds{TTFT: liveTTFT, TPOT: liveTPOT}, Rates: []float64{rate}}, nil)
			if err != nil {
				return nil, err
			}
			of := result.Steps[0].Figures
			if limit := of[0].Limit(); limit != "" && !o.Small {
				return nil, fmt.Errorf("%s at %g requests/s: the figures are not the mesh's: %s; run nothing else on the machine meanwhile", m.name, rate, record.Explain(limit))
			}
			steps = append(steps, liveStep{m.name, rate, of[0], of[1]})
			o.say(fmt.Sprintf("live: %s, %g requests/s", m.name, rate))
		}
	}
	return o.liveResult(steps), nil
}

// liveResult is the section of what was measured.
func (o Options) liveResult(steps []liveStep) *Result {
	host := report.ThisHost()
	warmup, measured := o.liveSpans()
	table := Table{
		Title:  "On real time: live, simulated, and how much more that is",
		Header: []string{"workers", "requests/s", "in time, %", "TTFT p50, ms", "TTFT p90, ms", "TPOT p50, ms", "TPOT p90, ms"},
		Note: fmt.Sprintf("Measured on %s, %d cores, %s: one round of %v at each rate, after %v that do not count, each on a new mesh. Latencies are of completed requests; the others were refused.",
			host.CPU, host.Cores, time.Now().UTC().Format(time.DateOnly), measured, warmup),
	}
	worst := 1.
	for _, step := range steps {
		row := []string{step.mesh, report.Digits(step.rate)}
		compare := func(live, simulated *float64) {
			if live == nil || simulated == nil || *live == 0 {
				row = append(row, "too few")
				return
			}
			ratio := *simulated / *live
			row = append(row, fmt.Sprintf("%s, %s (%+.1f%%)", report.Digits(*live), report.Digits(*simulated), 100*(ratio-1)))
			if math.Abs(ratio-1) > math.Abs(worst-1) {
				worst = ratio
			}
		}
		compare(new(100*step.live.SLOAttainment), new(100*step.simulated.SLOAttainment))
		for _, of := range []func(report.Figures) *measure.Distribution{
			func(f report.Figures) *measure.Distribution { return f.TTFT },
			func(f report.Figures) *measure.Distribution { return f.TPOT },
		} {
			for _, p := range []string{"p50", "p90"} {
				compare(of(step.live).Percentile(p), of(step.simulated).Percentile(p))
			}
		}
		table.Rows = append(table.Rows, row)
	}
	r := &Result{
		Intro:  []string{fmt.Sprintf("Workers, router and client are processes of one machine. The workers compute nothing, but take as long as A100s with OPT-13B. Prompts have 200 to 1,500 tokens and answers 50 to 300; the first token is wanted within %v and the others within %v each. The simulation gets the same requests at the same times.", liveTTFT, liveTPOT)},
		Tables: []Table{table},
		Notes: []string{
			"KV has the 2 KiB a token of the bundled model, a 400th of OPT-13B's, and goes over the loopback; the simulated network has 50 µs and 12.5 GB/s. So this says little about transfers.",
			"[benchmarks.md](benchmarks.md#simulated-and-live) compares a simulation with the CPU engine, [planning.md](planning.md#how-far-predictions-were-off) plans with meshes.",
		},
	}
	if !o.Small {
		r.Ratios = []Ratio{{Name: "simulated over live, in time and latencies, furthest from 1", Value: round3(worst), Noise: 0.2}}
	}
	return r
}
