package evidence

import (
	"context"
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
	// randomMost is the greatest rate, requests a second: more take too long to simulate.
	randomMost = 300
	// randomServed is the least share of the requests that the better placement has in time: of a load that
	// nobody can serve, placements differ by chance.
	randomServed = 0.1
)

// randomCluster is a cluster with its load, and what the placements serve of it.
type randomCluster struct {
	prefill, decode int
	rate            float64
	text            string
	// aggregated, disaggregated and auto are the goodput, requests a second.
	aggregated, disaggregated, auto float64
}

func (c *randomCluster) better() float64 { return max(c.aggregated, c.disaggregated) }

// draw draws a cluster of a number. Steps, lengths and bounds are as far apart as those of the profiles and the
// traces at hand, and the rate is from well below to far above what the workers can serve.
func (random) draw(number uint64) *randomCluster {
	r := rand.New(rand.NewPCG(number, 0))
	between := func(least, most float64) float64 { return least * math.Pow(most/least, r.Float64()) }
	one := func(of ...float64) float64 { return of[r.IntN(len(of))] }
	base, perToken, perContext := between(2, 25), between(0.02, 0.2), between(0.00005, 0.001) // ms
	c := &randomCluster{prefill: 1 + r.IntN(5), decode: 1 + r.IntN(5)}
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
	c.rate = min(float64(c.prefill+c.decode)*spare/work*one(0.4, 0.7, 1, 1.5, 3), randomMost)
	c.text = fmt.Sprintf(`model: {name: drawn, layers: 4, hidden-size: 4096, heads: 32, kv-heads: 8, head-size: 512, vocab-size: 50000, context-tokens: 32768}
profile: {base-ms: %.4g, per-token-ms: %.4g, per-context-token-ms: %.4g}
router: {tenant-max-requests: 1000000}
network: {latency: 50us, bandwidth: %gGB/s}
pools:
  prefill: {role: prefill, count: %d, kv-memory: 40GiB}
  decode: {role: decode, count: %d, kv-memory: 40GiB}
traffic: {rate: 1, prompt-tokens: "%s", output-tokens: "%s", warmup: 30s, duration: 60s, min-requests: 300, max-in-flight: 100000, slo: "ttft:p90<%.0fms,tpot:p90<%.1fms", send-slo: true, mode: `,
		base, perToken, perContext, bandwidth, c.prefill, c.decode, prompts, answers, ttft, tpot)
	return c
}

// measure fills in what the placements serve.
func (c *randomCluster) measure(ctx context.Context, o Options) error {
	for mode, goodput := range map[string]*float64{"aggregated": &c.aggregated, "disaggregated": &c.disaggregated, "auto": &c.auto} {
		t, err := newTrial(o.Profiles, c.text+mode+"}\n")
		if err != nil {
			return err
		}
		figures, err := t.at(ctx, c.rate, 0)
		if err != nil {
			return err
		}
		*goodput = figures.Goodput
	}
	return nil
}

// Run measures.
func (s random) Run(ctx context.Context, o Options) (*Result, error) {
	all := make([]*randomCluster, 100)
	if o.Small {
		all = all[:8]
	}
	if o.Long {
		all = make([]*randomCluster, 500)
	}
	if err := each(ctx, len(all), func(i int) error {
		all[i] = s.draw(uint64(i))
		if err := all[i].measure(ctx, o); err != nil {
			return fmt.Errorf("cluster %d: %w", i, err)
		}
		if (i+1)%20 == 0 {
			o.say(fmt.Sprintf("random: cluster %d", i+1))
		}
		return nil
	}); err != nil {
		return nil, err
	}
	drawn := len(all)
	all = slices.DeleteFunc(all, func(c *randomCluster) bool { return c.better() < randomServed*c.rate })
	r := &Result{
		Intro: []string{fmt.Sprintf("%d clusters of one to five prefill and as many decode workers, with step times, lengths, SLO, network and rate drawn at random: a fixed time of 2 to 25 ms a step, 0.02 to 0.2 ms a token of a prompt, prompts of 64 to 3,000 tokens and answers of 16 to 400 on average, a first token within 1.2 to 10 times what a long prompt takes alone, 1.25 to 50 GB/s, and 0.4 to 3 times about what the workers can serve. Goodput of 60 s, after 30 s that do not count. Left out: %d of which the better placement has less than a tenth of the requests in time.", drawn, drawn-len(all))},
		Notes: []string{
			"`aggregated` has all workers do both phases, `disaggregated` computes prompts on prefill workers alone, and `auto` is the default. No rule was made for a cluster of this table.",
		},
	}
	ofBetter := func(c *randomCluster) float64 { return c.auto / c.better() }
	rows := []struct {
		name string
		of   func(*randomCluster) float64
	}{
		{"`auto` over the better of the two", ofBetter},
		{"`aggregated` over the better", func(c *randomCluster) float64 { return c.aggregated / c.better() }},
		{"`disaggregated` over the better", func(c *randomCluster) float64 { return c.disaggregated / c.better() }},
	}
	table := Table{Title: "Goodput", Header: []string{"", "mean", "p50", "p10", "p1", "least", "of 0.97 or more"}}
	for _, row := range rows {
		var values []float64
		enough := 0
		for _, c := range all {
			v := row.of(c)
			values = append(values, v)
			if v >= 0.97 {
				enough++
			}
		}
		slices.Sort(values)
		at := func(share float64) string { return fmt.Sprintf("%.3f", values[int(share*float64(len(values)))]) }
		table.Rows = append(table.Rows, []string{row.name, fmt.Sprintf("%.3f", stats.Mean(values)), at(0.5), at(0.1), at(0.01), fmt.Sprintf("%.3f", values[0]), fmt.Sprintf("%.0f%%", 100*float64(enough)/float64(len(values)))})
	}
	r.Tables = append(r.Tables, table)
	var ofAll []float64
	for _, c := range all {
		ofAll = append(ofAll, ofBetter(c))
	}
	r.Ratios = []Ratio{{Name: "auto over the better placement, mean of the clusters", Value: stats.Mean(ofAll), Noise: 0.02}}
	return r, nil
}
