package evidence

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/routing"
	"github.com/tandem-serving/tandem/simulate"
)

// policies compares routing policies on traffic in bursts, and four routers with one.
type policies struct{}

func (policies) Name() string  { return "policies" }
func (policies) Title() string { return "Policies on bursts, and several routers" }

const (
	// burstRate is what each worker is offered, requests a second: about what it holds.
	burstRate = 2.6
	// burstSLO is the objective that requests ask for.
	burstSLO = "ttft:p90<1s,tpot:p90<80ms"
)

// burstScenario is the text of a cluster of A100s that serve OPT-13B, with Azure's lengths in bursts.
func burstScenario(o Options, workers, requests int) string {
	prefill := int(math.Round(float64(workers) * 3 / 8))
	text := opt13B.text() + fmt.Sprintf("block-tokens: 16\nprofile: {file: %q, model: facebook/opt-13b}\n", o.profile(mapProfile))
	text += "network: {latency: 20us, bandwidth: 50GB/s}\nrouter: {tenant-max-requests: 1000000, transfer-bytes-per-second: 50000000000}\npools:\n"
	const worker = "kv-memory: 54GB, max-batch-tokens: 2048, max-sequences: 128, transfer-credit-bytes: 67108864"
	if prefill > 0 {
		text += fmt.Sprintf("  prefill: {role: prefill, count: %d, %s}\n", prefill, worker)
	}
	text += fmt.Sprintf("  decode: {role: decode, count: %d, %s}\n", workers-prefill, worker)
	return text + fmt.Sprintf("traffic: {rate: 1, arrival: gamma, burstiness: 0.3, prompt-tokens: \"lognormal:1155,613\", output-tokens: \"lognormal:211,273\", warmup: 30s, duration: 10s, min-requests: %d, slo: %q, send-slo: true}\n", requests, burstSLO)
}

// Run measures.
func (policies) Run(ctx context.Context, o Options) (*Result, error) {
	sizes, requests := []int{1, 2, 4, 8, 16, 32, 64}, 500
	loads, seeds := []float64{92, 175}, 2
	if o.Small {
		sizes, requests, loads, seeds = []int{2}, 200, loads[:1], 1
	}
	names := routing.Policies()
	goodput := make([]float64, len(sizes)*len(names))
	if err := each(ctx, len(goodput), func(i int) error {
		at := len(goodput) - 1 - i // those that take longest begin
		workers, name := sizes[at/len(names)], names[at%len(names)]
		t, err := newTrial(o.Profiles, burstScenario(o, workers, requests))
		if err != nil {
			return err
		}
		t.Change = func(c *simulate.Config) { c.Routing.Policy = name }
		f, err := t.at(ctx, burstRate*float64(workers), 0)
		if err != nil {
			return fmt.Errorf("%d workers, %s: %w", workers, name, err)
		}
		goodput[at] = f.SLOAttainment
		o.say(fmt.Sprintf("policies: %d workers, %s: %.1f%% in time", workers, name, 100*f.SLOAttainment))
		return nil
	}); err != nil {
		return nil, err
	}
	r := &Result{Intro: []string{
		fmt.Sprintf("Requests in time, of those that came: %s requests a second for each worker, in bursts (gamma, shape 0.3), with lengths like those of Azure's conversations; A100s with OPT-13B, three of eight for prefill; 90%% are wanted with a first token within 1 s and the others within 80 ms each.", report.Digits(burstRate)),
	}}
	table := Table{
		Title: "Requests in time, %, by workers", Header: []string{"policy"},
		Note: fmt.Sprintf("Each figure is of one run, with one seed, of at least %d requests and 10 s, after 30 s that do not count. Prompts share no prefix, so `prefix-affinity` does as `least-loaded`. `disaggregated` needs a worker of each kind: one alone serves nothing.", requests),
	}
	for _, n := range sizes {
		table.Header = append(table.Header, fmt.Sprint(n))
	}
	picture := chart{title: "Bursts: requests in time by policy", xLabel: "workers", yLabel: "% in time", logX: true}
	for j, name := range names {
		row, line := []string{"`" + name + "`"}, curve{name: name}
		for i, n := range sizes {
			met := 100 * goodput[i*len(names)+j]
			row = append(row, fmt.Sprintf("%.1f", met))
			line.x, line.y = append(line.x, float64(n)), append(line.y, met)
		}
		table.Rows, picture.curves = append(table.Rows, row), append(picture.curves, line)
	}
	r.Tables = append(r.Tables, table)
	if len(sizes) > 1 {
		r.Pictures = append(r.Pictures, Picture{Name: "policies", Alt: "Requests in time by routing policy, on 1 to 64 workers", SVG: picture.svg()})
	}
	of := func(size int, policy string) float64 { return goodput[size*len(names)+slices.Index(names, policy)] }
	var ratios []float64
	better := map[string]int{} // sizes at which others have more in time
	for i := range sizes {
		ratios = append(ratios, of(i, routing.DefaultPolicy)/of(i, "round-robin"))
		for _, name := range names {
			if of(i, name) > of(i, routing.DefaultPolicy) {
				better[name]++
			}
		}
	}
	ratio := stats.Mean(ratios)
	r.Ratios = append(r.Ratios, Ratio{
		Name: fmt.Sprintf("in time by %s over round-robin, bursts, mean of the sizes", routing.DefaultPolicy), Value: ratio, Noise: 0.1 * ratio,
	})
	for _, name := range slices.Sorted(maps.Keys(better)) {
		r.Notes = append(r.Notes, fmt.Sprintf("%#q has more in time than %#q, which is the default, at %d of %d sizes.", name, routing.DefaultPolicy, better[name], len(sizes)))
	}
	if err := severalRouters(ctx, o, r, loads, seeds); err != nil {
		return nil, err
	}
	return r, nil
}

// severalRouters compares four routers with one, on docs/scenarios/routers.yaml.
func severalRouters(ctx context.Context, o Options, r *Result, loads []float64, seeds int) error {
	folder := filepath.Join(o.Profiles, "..", "scenarios")
	text, err := os.ReadFile(filepath.Join(folder, "routers.yaml"))
	if err != nil {
		return err
	}
	routers := []int{1, 4}
	found := make([]report.Figures, len(loads)*len(routers)*seeds)
	if err := each(ctx, len(found), func(i int) error {
		load, count := loads[i/(len(routers)*seeds)], routers[i/seeds%len(routers)]
		t, err := newTrial(folder, string(text))
		if err != nil {
			return err
		}
		t.Change = func(c *simulate.Config) { c.Routers = count }
		found[i], err = t.at(ctx, load, i%seeds)
		return err
	}); err != nil {
		return err
	}
	table := Table{
		Title:  "Four routers and one",
		Header: []string{"offered a second", "routers", "in time a second", "TTFT p50, ms", "prefix hits, % of prompt tokens"},
		Note:   fmt.Sprintf("Eight workers, prompts with one of 50 prefixes. Means of %d seeds, which are too few for a p99: they move it by more than the number of routers does. Arrivals are random, so that more may be in time than are offered on average. [benchmarks.md](benchmarks.md#several-routers-simulated) has it, of more loads and seeds.", seeds),
	}
	good := make([]float64, 0, len(loads)*len(routers))
	for i := range len(loads) * len(routers) {
		of := found[i*seeds : (i+1)*seeds]
		var in, hits []float64
		for _, f := range of {
			in, hits = append(in, f.Goodput), append(hits, f.CachedTokensMean/max(f.PromptTokensMean, 1))
		}
		g := stats.Mean(in)
		good = append(good, g)
		table.Rows = append(table.Rows, []string{
			report.Digits(loads[i/len(routers)]), fmt.Sprint(routers[i%len(routers)]), fmt.Sprintf("%.1f", g),
			fixed(1, meanTTFT(of, "p50")),
			fmt.Sprintf("%.1f", 100*stats.Mean(hits)),
		})
	}
	r.Tables = append(r.Tables, table)
	for i, load := range loads {
		r.Ratios = append(r.Ratios, Ratio{Name: fmt.Sprintf("four routers over one, in time at %s a second", report.Digits(load)), Value: good[2*i+1] / good[2*i], Noise: 0.06})
	}
	return nil
}

// meanTTFT is the mean of a percentile over the runs that have it; NaN: none has.
func meanTTFT(runs []report.Figures, name string) float64 {
	var all []float64
	for _, f := range runs {
		if p := f.TTFT.Percentile(name); p != nil {
			all = append(all, *p)
		}
	}
	if len(all) == 0 {
		return math.NaN()
	}
	return stats.Mean(all)
}
