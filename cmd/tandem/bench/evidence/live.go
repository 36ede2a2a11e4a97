package evidence

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/contenders"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/processes"
	"github.com/tandem-serving/tandem/cmd/tandem/modeldir"
	"github.com/tandem-serving/tandem/cmd/tandem/simulatedtarget"
	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/report"
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
	liveMemory   = "40GiB"
	liveTTFT     = 250 * time.Millisecond
	liveTPOT     = 100 * time.Millisecond
	liveWarmup   = 5 * time.Second
	liveMeasured = 20 * time.Second
)

// contenders are the mesh and its simulation.
func (m liveMesh) contenders(o Options) ([]contenders.Contender, error) {
	model, err := modeldir.Find("")
	if err != nil {
		return nil, err
	}
	plan := processes.Plan{
		Prefill: m.prefill, Decode: m.decode, StartTimeout: time.Minute,
		Arguments: []string{"--router-tenant-max-requests", strconv.Itoa(simulatedtarget.ManyRequests), "--engine", "simulated"},
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
	warmup, measured := liveWarmup, liveMeasured
	if o.Small {
		warmup, measured = time.Second, 3*time.Second
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	load.RegisterRunFlags(fs)
	err = fs.Parse([]string{
		"--prompt-tokens=uniform:200-1500", "--output-tokens=uniform:50-300", "--seed=1",
		fmt.Sprintf("--slo=ttft:p90<%v,tpot:p90<%v", liveTTFT, liveTPOT), "--warmup=" + warmup.String(), "--duration=" + measured.String(),
	})
	load.DurationSet, load.WarmupSet = true, true
	return load, err
}

// Run measures.
func (live) Run(ctx context.Context, o Options) (*Result, error) {
	meshes := []liveMesh{
		{"4 prefill + 4 decode, `auto`", 4, 4, inferencev1.Mode_MODE_AUTO},
		{"8 that do both", 0, 8, inferencev1.Mode_MODE_AGGREGATED},
	}
	rates := []float64{10, 25}
	if o.Small {
		meshes, rates = []liveMesh{{"1 prefill + 1 decode, `auto`", 1, 1, inferencev1.Mode_MODE_AUTO}}, rates[:1]
	}
	load, err := liveLoad(o)
	if err != nil {
		return nil, err
	}
	host := report.ThisHost()
	table := Table{
		Title:  "Live, simulated, and the difference",
		Header: []string{"workers", "requests/s", "goodput, requests/s", "TTFT p50, ms", "TTFT p90", "TPOT p50, ms", "TPOT p90"},
		Note:   fmt.Sprintf("Measured on %s, %d cores, %s. Each rate is sent for %v, after %v that do not count.", host.CPU, host.Cores, time.Now().UTC().Format(time.DateOnly), liveMeasured, liveWarmup),
	}
	worst := 1.
	for _, m := range meshes {
		pair, err := m.contenders(o)
		if err != nil {
			return nil, err
		}
		result, err := contenders.Run(ctx, pair, contenders.Options{Load: load, Carry: contenders.Bounds{TTFT: liveTTFT, TPOT: liveTPOT}, Rates: rates}, nil)
		if err != nil {
			return nil, err
		}
		for _, step := range result.Steps {
			actual, simulated := step.Figures[0], step.Figures[1]
			row := []string{m.name, report.Digits(step.Rate), beside(actual.Goodput, simulated.Goodput)}
			for _, of := range []func(report.Figures) *measure.Distribution{
				func(f report.Figures) *measure.Distribution { return f.TTFT },
				func(f report.Figures) *measure.Distribution { return f.TPOT },
			} {
				for _, p := range []string{"p50", "p90"} {
					a, b := of(actual).Percentile(p), of(simulated).Percentile(p)
					if a == nil || b == nil || *a == 0 {
						row = append(row, "too few")
						continue
					}
					row = append(row, beside(*a, *b))
					if ratio := *b / *a; math.Abs(ratio-1) > math.Abs(worst-1) {
						worst = ratio
					}
				}
			}
			table.Rows = append(table.Rows, row)
			o.say(fmt.Sprintf("live: %s", strings.Join(row, "; ")))
		}
	}
	r := &Result{
		Intro:  []string{fmt.Sprintf("Eight workers, the router and the client as processes on one machine, on real time. The workers compute nothing, but take as long as A100s with OPT-13B; KV is sent as that of the bundled model. Prompts of 200 to 1,500 tokens, answers of 50 to 300; a first token within %v, the others within %v each, for 90%% of the requests. The simulation gets the same requests at the same times.", liveTTFT, liveTPOT)},
		Tables: []Table{table},
		Notes: []string{
			"[benchmarks.md](benchmarks.md#simulated-and-live) compares a simulation with the CPU engine, [planning.md](planning.md#how-far-predictions-were-off) plans with meshes.",
		},
	}
	if !o.Small {
		r.Ratios = []Ratio{{Name: "simulated over live latency, p50 and p90, furthest from 1", Value: worst, Noise: 0.2}}
	}
	return r, nil
}

// beside is a live figure, a simulated one, and how much more that is.
func beside(live, simulated float64) string {
	text := fmt.Sprintf("%s, %s", report.Digits(live), report.Digits(simulated))
	if live == 0 {
		return text
	}
	return fmt.Sprintf("%s (%+.1f%%)", text, 100*(simulated/live-1))
}
