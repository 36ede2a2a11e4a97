package evidence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// random compares the placements on clusters that nobody chose: how mode auto fares where no map was drawn.
type random struct{}

func (random) Name() string  { return "random" }
func (random) Title() string { return "Clusters drawn at random" }

const (
	// randomMost is the greatest rate, requests a second: a cluster that would get more is drawn again, since it
	// takes too long to simulate.
	randomMost = 400
	// randomServed is the least share of the requests that the better placement has in time: of a load that
	// nobody can serve, placements differ by chance.
	randomServed = 0.1
)

// randomCluster is a cluster with its load, and what the placements serve of it.
type randomCluster struct {
	rate float64
	text string
	// aggregated, disaggregated and auto are the goodput, requests a second.
	aggregated, disaggregated, auto float64
}

func (c *randomCluster) better() float64 { return max(c.aggregated, c.disaggregated) }

// draw draws a cluster of a number. Steps, lengths and bounds are as far apart as those of the profiles and the
// traces at hand, and the rate is from well below to far above what the workers can serve.
func (random) draw(number uint64) *randomCluster {
	r := rand.New(rand.NewPCG(number, 0))
	for {
		if c := drawCluster(r); c.rate <= randomMost {
			return c
		}
	}
}

// drawCluster draws one that may get any rate.
func drawCluster(r *rand.Rand) *randomCluster {
	between := func(least, most float64) float64 { return least * math.Pow(most/least, r.Float64()) }
	one := func(of ...float64) float64 { return of[r.IntN(len(of))] }
	base, perToken, perContext := between(2, 25), between(0.02, 0.2), between(0.00005, 0.001) // ms
	prefill, decode := 1+r.IntN(5), 1+r.IntN(5)
	lengths := func(mean float64) (text string, long float64) {
		switch deviation := one(0.5, 1, 1.5); r.IntN(3) {
		case 0:
			return fmt.Sprintf("%.0f", mean), mean
		case 1:
			return fmt.Sprintf("uniform:%.0f-%.0f", max(mean/4, 1), mean*7/4), mean * 7 / 4
		default:
			return fmt.Sprintf("lognormal:%.0f,%.0f", mean, mean*deviation), mean * 2.5
		}
	}
	prompt, answer := between(64, 3000), between(16, 400)
	prompts, long := lengths(prompt)
	answers, _ := lengths(answer)
	ttft := (base + perToken*long) * one(1.2, 1.5, 2, 4, 10)
	tpot := base * one(1.3, 1.6, 2.5, 5)
	bandwidth := one(1.25, 5, 50) // GB/s
	// What a step has beside its fixed time, shared by prompts and answers.
	spare := max(1-base/min(0.9*tpot, 4*base), 0.15)
	work := (perToken*prompt + answer*(perToken+perContext*(prompt+answer/2))) / 1000
	rate := float64(prefill+decode) * spare / work * one(0.4, 0.7, 1, 1.5, 3)
	text := fmt.Sprintf(`model: {name: drawn, layers: 4, hidden-size: 4096, heads: 32, kv-heads: 8, head-size: 512, vocab-size: 50000, context-tokens: 32768}
profile: {base-ms: %.4g, per-token-ms: %.4g, per-context-token-ms: %.4g}
router: {tenant-max-requests: 1000000}
network: {latency: 50us, bandwidth: %gGB/s}
pools:
  prefill: {role: prefill, count: %d, kv-memory: 40GiB}
  decode: {role: decode, count: %d, kv-memory: 40GiB}
traffic: {rate: 1, prompt-tokens: "%s", output-tokens: "%s", warmup: 30s, duration: 60s, min-requests: 300, max-in-flight: 100000, slo: "ttft:p90<%.0fms,tpot:p90<%.1fms", send-slo: true, mode: `,
		base, perToken, perContext, bandwidth, prefill, decode, prompts, answers, ttft, tpot)
	return &randomCluster{rate: rate, text: text}
}

// measure fills in what the placements serve.
func (c *randomCluster) measure(ctx context.Context, o Options) error {
	for _, placement := range []struct {
		mode    string
		goodput *float64
	}{{"aggregated", &c.aggregated}, {"disaggregated", &c.disaggregated}, {"auto", &c.auto}} {
		t, err := newTrial(o.Profiles, c.text+placement.mode+"}\n")
		if err != nil {
			return err
		}
		figures, err := t.at(ctx, c.rate, 0)
		if err != nil {
			return err
		}
		*placement.goodput = figures.Goodput
	}
	return nil
}

// Run measures.
func (s random) Run(ctx context.Context, o Options) (*Result, error) {
	all := make([]*randomCluster, 60)
	switch {
	case o.Small:
		all = all[:8]
	case o.Long:
		all = make([]*randomCluster, 300)
	}
	if err := each(ctx, len(all), func(i int) error {
		all[i] = s.draw(uint64(i))
		if err := all[i].measure(ctx, o); err != nil {
			return fmt.Errorf("cluster %d: %w", i, err)
		}
		o.say(fmt.Sprintf("random: cluster %d, %.4g requests/s: aggregated %.4g, disaggregated %.4g, auto %.4g", i, all[i].rate, all[i].aggregated, all[i].disaggregated, all[i].auto))
		return nil
	}); err != nil {
		return nil, err
	}
	return randomResult(all)
}

// randomResult is the section of what was measured.
func randomResult(drawn []*randomCluster) (*Result, error) {
	all := slices.DeleteFunc(slices.Clone(drawn), func(c *randomCluster) bool { return c.better() < randomServed*c.rate })
	if len(all) == 0 {
		return nil, errors.New("no placement serves a tenth of the requests of any cluster")
	}
	differ := slices.DeleteFunc(slices.Clone(all), func(c *randomCluster) bool { return min(c.aggregated, c.disaggregated) > 0.95*c.better() })
	ofBetter := func(of func(*randomCluster) float64) func(*randomCluster) float64 {
		return func(c *randomCluster) float64 { return of(c) / c.better() }
	}
	auto := ofBetter(func(c *randomCluster) float64 { return c.auto })
	table := Table{Title: "Goodput, of that of the better placement", Header: []string{"", "clusters", "mean", "p50", "p10", "least", "0.97 or more"}}
	for _, row := range []struct {
		name string
		of   func(*randomCluster) float64
		over []*randomCluster
	}{
		{"`auto`", auto, all},
		{"`auto`, where the two differ by more than 5%", auto, differ},
		{"`aggregated`, there", ofBetter(func(c *randomCluster) float64 { return c.aggregated }), differ},
		{"`disaggregated`, there", ofBetter(func(c *randomCluster) float64 { return c.disaggregated }), differ},
	} {
		var values []float64
		enough := 0.
		for _, c := range row.over {
			values = append(values, row.of(c))
			if row.of(c) >= 0.97 {
				enough++
			}
		}
		slices.Sort(values)
		cells := []string{row.name, fmt.Sprint(len(values)), fmt.Sprintf("%.3f", stats.Mean(values))}
		for _, share := range []float64{0.5, 0.1, 0} {
			cells = append(cells, fmt.Sprintf("%.3f", stats.Quantile(values, share)))
		}
		table.Rows = append(table.Rows, append(cells, fmt.Sprintf("%.0f%%", 100*enough/float64(max(len(values), 1)))))
	}
	var ratios []float64
	for _, c := range all {
		ratios = append(ratios, auto(c))
	}
	return &Result{
		Intro: []string{fmt.Sprintf("%d clusters of one to five prefill workers and one to five decode workers, with everything else drawn at random, too: steps of 2 to 25 ms, and 0.02 to 0.2 ms for a token of a prompt; prompts of 64 to 3,000 tokens on average and answers of 16 to 400; a first token within 1.2 to 10 times what a long prompt takes alone, and the others within 1.3 to 5 times a step; 1.25 to 50 GB/s; 0.4 to 3 times the requests that the workers can serve, about, up to %d a second. Goodput at that rate, for 60 s after 30 s that do not count, and longer where that is fewer than 300 requests. Left out: %d clusters of which the better placement has less than a tenth of the requests in time.",
			len(drawn), randomMost, len(drawn)-len(all))},
		Tables: []Table{table},
		Notes: []string{
			"The better placement is the better of `aggregated`, in which all workers do both phases, and `disaggregated`, in which prefill workers compute all prompts. `auto` may serve more than either.",
			"This is the goodput at one rate, and not a capacity as in the maps. Where the rate is low, all placements serve everything. [Decision 0071](decisions/0071-what-a-use-serves.md) was made with 129 other clusters, drawn in nearly the same way.",
		},
		Ratios: []Ratio{newRatio("auto over the better placement, mean of clusters drawn at random", ratios, "")},
	}, nil
}
