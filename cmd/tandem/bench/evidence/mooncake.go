package evidence

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence/workloads"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/simulate"
)

// mooncake repeats experiments of Mooncake (R. Qin et al., FAST '25).
type mooncake struct{}

func (mooncake) Name() string { return "mooncake" }
func (mooncake) Title() string {
	return "Mooncake's conversations: prefix caches, block stores and early refusal"
}

// The simulated cluster: prefill and decode machines, tokens of a KV block, block stores.
const (
	mooncakePrefill, mooncakeDecode  = 8, 16
	mooncakeBlock                    = 256
	mooncakeStores, mooncakeStoreGiB = 4, 1600
)

// mooncakeRun is a way to serve a trace.
type mooncakeRun struct {
	trace     string
	requests  int
	speed     float64
	memoryGiB int  // KV memory of each prefill worker
	stores    bool // with block stores
	refuses   bool // requests send the SLO, so that the router can refuse them; otherwise it refuses none
}

// served is the result of a run.
type served struct {
	report.Figures
	simulate.PrefixUse
}

// found is the share of the tokens of all prompts that prefill workers found in caches and stores;
// fetched is the part from stores.
func (s served) found(all int) float64   { return float64(s.CachedTokens) / float64(all) }
func (s served) fetched(all int) float64 { return float64(s.FetchedTokens) / float64(all) }

// measure serves the trace.
func (m mooncakeRun) measure(ctx context.Context, o Options) (s served, err error) {
	var out strings.Builder
	router := ", transfer-bytes-per-second: 25000000000, hedge-share: 0" // a hedged prompt would be found twice
	if !m.refuses {
		router += ", " + refuseNothing
	}
	fmt.Fprintf(&out, llama, 1<<17, mooncakeBlock, router)
	const transfers = "transfer-credit-bytes: 67108864"
	fmt.Fprintf(&out, "  prefill: {role: prefill, count: %d, profile: {file: %q, model: llama2-70b}, kv-memory: %dGiB, max-sequences: 512, max-batch-tokens: 8192, chunk-tokens: 4096, max-waiting: 4096, fetch-bandwidth: 25000000000, %s}\n",
		mooncakePrefill, o.profile(a100.profile), m.memoryGiB, transfers)
	fmt.Fprintf(&out, "  decode: {role: decode, count: %d, profile: {file: %q, model: llama2-70b}, kv-memory: 400GiB, max-sequences: 512, max-batch-tokens: 8192, %s}\n",
		mooncakeDecode, o.profile(a100.profile), transfers)
	if m.stores {
		fmt.Fprintf(&out, "  store: {role: store, count: %d, memory: %dGiB, %s}\n", mooncakeStores, mooncakeStoreGiB, transfers)
	}
	fmt.Fprintf(&out, "traffic:\n  mode: disaggregated\n  trace: %q\n  trace-limit: %d\n  speed: %g\n  request-timeout: 3h\n  drain-timeout: 3h\n  slo: %q\n  send-slo: %t\n",
		m.trace, m.requests, m.speed, "ttft:p90<10s,tpot:p90<100ms", m.refuses)
	t, err := newTrial(o.Profiles, out.String())
	if err != nil {
		return s, err
	}
	t.ended = func(c *simulate.Cluster) { s.PrefixUse = c.PrefixUse() }
	s.Figures, err = t.at(ctx, 0, 0)
	o.say(fmt.Sprintf("mooncake: %d requests %g times as fast, %d GiB, stores %v: %d tokens found, %v %v", m.requests, m.speed, m.memoryGiB, m.stores, s.CachedTokens, s.Fetches, s.Puts))
	return s, err
}

// Run measures.
func (mooncake) Run(ctx context.Context, o Options) (*Result, error) {
	d, err := newDrawnTraces(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	requests := 1200
	switch {
	case o.Small:
		requests = 400
	case o.Long:
		requests = 12000
	}
	drawn, err := d.write("mooncake.jsonl", func(w io.Writer) error { return d.fits.MooncakeConversation.WriteTrace(w, requests, 1) })
	if err != nil {
		return nil, err
	}
	r := &Result{Intro: []string{
		fmt.Sprintf("Llama 2 70B on machines with eight A100s, %d for prefill and %d for decode; step times as for Splitwise, beyond prompts of 8,192 tokens by the fitted formula. The SLO at p90 is 10 s for TTFT and 100 ms for TPOT. Requests come as in Mooncake's conversation trace: drawn from a fit of its conversations, with their shared blocks.", mooncakePrefill, mooncakeDecode),
	}}
	caches, without, with, err := cacheTable(ctx, o, drawn, requests)
	if err != nil {
		return nil, err
	}
	refusal, over, err := refusalTable(ctx, o, drawn, requests)
	if err != nil {
		return nil, err
	}
	r.Tables = []Table{caches, refusal}
	r.Ratios = []Ratio{
		newRatio("prompt tokens found without a store, over the ideal", []float64{without}, ""),
		newRatio("prompt tokens found with block stores, over the ideal", []float64{with}, ""),
		newRatio("goodput under four times the load, refused early over nothing refused", []float64{over}, ""),
	}
	r.Notes = []string{
		"The ideal was checked on 2026-11-27 by counting in the trace: 36.6% of the blocks, 37.4% of the tokens. Of its first requests it is less, since fewer came before each.",
		"The fit has shorter prompts than the trace, and fewer that begin alike: where a table from the trace is there, it is the one to go by.",
		"TTFT is that of requests that were served. Under overload, and where fit and trace are compared, prefill workers have 400 GiB each and there are no stores.",
		"Stores and the workers' side of them are the live code: what a worker puts before it evicts, what it fetches where that is quicker than computing, and the time of both on the network.",
	}
	if o.Traces == "" || o.Small {
		return r, nil
	}
	return r, mooncakeTraced(ctx, o, drawn, requests, r)
}

// mooncakeTraced does the same with the real trace, and compares it with the synthetic one.
func mooncakeTraced(ctx context.Context, o Options, drawn string, requests int, r *Result) error {
	traced := filepath.Join(o.Traces, "conversation_trace.jsonl")
	caches, _, _, err := cacheTable(ctx, o, traced, requests)
	if err != nil {
		return err
	}
	refusal, _, err := refusalTable(ctx, o, traced, requests)
	if err != nil {
		return err
	}
	figures := make([]served, 2)
	if err := each(ctx, 2, func(i int) (err error) {
		figures[i], err = mooncakeRun{trace: []string{drawn, traced}[i], requests: requests, speed: 1, memoryGiB: 400}.measure(ctx, o)
		return err
	}); err != nil {
		return err
	}
	caches.Title, refusal.Title = "From the trace: "+caches.Title, "From the trace: "+refusal.Title
	r.FromTraces = []Table{caches, refusal, compareRuns(fmt.Sprintf("The first %d requests, of the fit and of the trace", requests), &figures[0].Figures, &figures[1].Figures)}
	return nil
}

// cacheTable shows which share of prompts prefill workers find with and without block stores,
// for several sizes of their own caches, and compares one size with the ideal.
func cacheTable(ctx context.Context, o Options, path string, requests int) (t Table, without, with float64, err error) {
	all, err := workloads.ReadTrace(path)
	if err != nil {
		return t, 0, 0, err
	}
	all = all[:min(requests, len(all))]
	ideal, tokens := workloads.Ideal(all), 0
	for _, e := range all {
		tokens += e.PromptTokens
	}
	gibs := []int{50, 100, 400}
	const middle = 100
	if o.Small {
		gibs = []int{middle}
	}
	found := make([]served, 2*len(gibs))
	if err := each(ctx, len(found), func(i int) (err error) {
		found[i], err = mooncakeRun{trace: path, requests: requests, speed: 1, memoryGiB: gibs[i/2], stores: i%2 == 1}.measure(ctx, o)
		return err
	}); err != nil {
		return t, 0, 0, err
	}
	t = Table{
		Title:  fmt.Sprintf("Share of prompt tokens that prefill workers do not compute, %d requests", len(all)),
		Header: []string{"KV memory of each prefill worker", "without a store", "TTFT p50, p90, s", "with stores", "of it fetched", "TTFT p50, p90, s", "ideal, without limits"},
		Note:   fmt.Sprintf("Stores: %d with %d GiB each. Mooncake gives 36.6%% of the blocks as the ideal of the whole trace.", mooncakeStores, mooncakeStoreGiB),
	}
	latency := func(s served) string {
		return secondsOf(s.TTFT.Percentile("p50")) + ", " + secondsOf(s.TTFT.Percentile("p90"))
	}
	for i, gib := range gibs {
		alone, stored := found[2*i], found[2*i+1]
		t.Rows = append(t.Rows, []string{
			fmt.Sprintf("%d GiB", gib), percent(alone.found(tokens)), latency(alone), percent(stored.found(tokens)), percent(stored.fetched(tokens)), latency(stored), percent(ideal),
		})
		if gib == middle {
			without, with = alone.found(tokens)/ideal, stored.found(tokens)/ideal
		}
	}
	return t, without, with, nil
}

// refusalTable shows how many requests are served in time under overload, with and without
// early refusal, and the gain at the greatest one.
func refusalTable(ctx context.Context, o Options, path string, requests int) (Table, float64, error) {
	speeds := []float64{1, 2, 4}
	if o.Small {
		speeds = []float64{1, 4}
	}
	figures := make([]served, 2*len(speeds))
	if err := each(ctx, len(figures), func(i int) (err error) {
		figures[i], err = mooncakeRun{trace: path, requests: requests, speed: speeds[i/2], memoryGiB: 400, refuses: i%2 == 1}.measure(ctx, o)
		return err
	}); err != nil {
		return Table{}, 0, err
	}
	t := Table{
		Title:  "Requests in time under overload",
		Header: []string{"speed of the trace", "requests/s", "nothing refused: in time", "failed", "TTFT p90, s", "refused early: in time", "refused", "TTFT p90, s"},
		Note:   "Nothing refused: requests have no objective, and wait as long as it takes. Failed: a prompt that no worker computes within `--router-prompt-silence` is given up after some attempts. Refused early: the router gets the SLO and refuses on arrival what cannot meet it.",
	}
	for i, speed := range speeds {
		row := []string{fmt.Sprintf("%g", speed), report.Digits(figures[2*i].OfferedRPS)}
		for _, f := range figures[2*i : 2*i+2] {
			row = append(row, percent(f.SLOAttainment), percent(float64(f.Rejected)/float64(f.Requests)), secondsOf(f.TTFT.Percentile("p90")))
		}
		t.Rows = append(t.Rows, row)
	}
	last := figures[len(figures)-2:]
	return t, last[1].SLOAttainment / last[0].SLOAttainment, nil
}

// secondsOf prints a latency in milliseconds as seconds.
func secondsOf(ms *float64) string {
	if ms == nil {
		return "n/a"
	}
	return report.Digits(*ms / 1000)
}
