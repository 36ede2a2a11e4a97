package evidence

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/evidence/workloads"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/workload/trace"
)

// mooncake compares with Mooncake (R. Qin et al., FAST '25).
type mooncake struct{}

func (mooncake) Name() string  { return "mooncake" }
func (mooncake) Title() string { return "2. Mooncake's conversations: prefix caches and early refusal" }

// Of the simulated cluster: machines that prefill and decode, and tokens of a block of KV.
const (
	mooncakePrefill, mooncakeDecode = 8, 4
	mooncakeBlock                   = 256
	// kvBytesPerToken are those of Llama 2 70B in fp16.
	kvBytesPerToken = 2 * 80 * 8 * 128 * 2
)

// mooncakeRun is a way to serve a trace.
type mooncakeRun struct {
	trace    string
	requests int
	speed    float64
	memory   string // for KV, of each prefill worker
	refuses  bool   // the router knows the SLO
}

// measure serves it.
func (m mooncakeRun) measure(ctx context.Context, o Options) (report.Figures, error) {
	var out strings.Builder
	fmt.Fprintf(&out, llama, 1<<17, mooncakeBlock)
	fmt.Fprintf(&out, "  prefill: {role: prefill, count: %d, profile: {file: %q, model: llama2-70b}, kv-memory: %s, max-sequences: 512, max-batch-tokens: 8192, chunk-tokens: 4096, max-waiting: 4096}\n",
		mooncakePrefill, o.profile(a100.profile), m.memory)
	fmt.Fprintf(&out, "  decode: {role: decode, count: %d, profile: {file: %q, model: llama2-70b}, kv-memory: 400GiB, max-sequences: 512, max-batch-tokens: 8192}\n",
		mooncakeDecode, o.profile(a100.profile))
	fmt.Fprintf(&out, "traffic:\n  mode: disaggregated\n  trace: %q\n  trace-limit: %d\n  speed: %g\n  request-timeout: 30m\n  drain-timeout: 30m\n  slo: %q\n  send-slo: %t\n",
		m.trace, m.requests, m.speed, "ttft:p90<10s,tpot:p90<100ms", m.refuses)
	t, err := newTrial(o.Profiles, out.String())
	if err != nil {
		return report.Figures{}, err
	}
	return t.at(ctx, 0, 0)
}

// Run measures.
func (mooncake) Run(ctx context.Context, o Options) (*Result, error) {
	d, err := newDrawn(o)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	requests := 2000
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
		"Llama 2 70B on machines with eight A100s, 8 for prefill and 4 for decode; step times as for Splitwise, beyond prompts of 8,192 tokens by the fitted formula. The SLO at p90 is 10 s for TTFT and 100 ms for TPOT. Requests come as in Mooncake's conversation trace: drawn from a fit of its conversations, with their shared blocks.",
	}}
	caches, share, err := cacheTable(ctx, o, drawn, requests, "tandem bench evidence --section mooncake")
	if err != nil {
		return nil, err
	}
	refusal, over, err := refusalTable(ctx, o, drawn, requests, "tandem bench evidence --section mooncake")
	if err != nil {
		return nil, err
	}
	r.Tables = []Table{caches, refusal}
	r.Ratios = []Ratio{
		newRatio("hit rate of the workers' prefix caches over the ideal", []float64{share}, ""),
		newRatio("goodput under twice the load, refused early over served in turn", []float64{over}, ""),
	}
	r.Notes = []string{
		"The simulator has no block store: \"one shared cache\" counts hits in the order of requests alone, without the time of fetching. It bounds from above what a store of that size adds.",
	}
	if o.Traces == "" || o.Small {
		return r, nil
	}
	return r, mooncakeTraced(ctx, o, drawn, requests, r)
}

// mooncakeTraced does the same with the trace, and compares both.
func mooncakeTraced(ctx context.Context, o Options, drawn string, requests int, r *Result) error {
	const command = "tandem bench evidence --section mooncake --traces DIR"
	traced := filepath.Join(o.Traces, "conversation_trace.jsonl")
	caches, _, err := cacheTable(ctx, o, traced, requests, command)
	if err != nil {
		return err
	}
	refusal, _, err := refusalTable(ctx, o, traced, requests, command)
	if err != nil {
		return err
	}
	figures := make([]report.Figures, 2)
	if err := each(ctx, 2, func(i int) (err error) {
		figures[i], err = mooncakeRun{[]string{drawn, traced}[i], requests, 1, "400GiB", false}.measure(ctx, o)
		return err
	}); err != nil {
		return err
	}
	caches.Title, refusal.Title = "From the trace: "+caches.Title, "From the trace: "+refusal.Title
	r.FromTraces = []Table{caches, refusal, compareRuns(fmt.Sprintf("The first %d requests, of the fit and of the trace", requests), command, &figures[0], &figures[1])}
	return nil
}

// cacheTable is the hit rates of prefix caches of several sizes, and the share of the ideal
// that the middle one has.
func cacheTable(ctx context.Context, o Options, path string, requests int, command string) (Table, float64, error) {
	all, err := workloads.ReadTrace(path)
	if err != nil {
		return Table{}, 0, err
	}
	all = all[:min(requests, len(all))]
	ideal := workloads.Ideal(all)
	gibs := []int{50, 100, 400, 1600}
	const middle = 2
	if o.Small {
		gibs = gibs[middle : middle+1]
	}
	figures := make([]report.Figures, len(gibs))
	if err := each(ctx, len(gibs), func(i int) (err error) {
		figures[i], err = mooncakeRun{path, requests, 1, fmt.Sprintf("%dGiB", gibs[i]), false}.measure(ctx, o)
		return err
	}); err != nil {
		return Table{}, 0, err
	}
	t := Table{
		Title: fmt.Sprintf("Share of prompt tokens found in a prefix cache, %d requests", len(all)), Command: command,
		Header: []string{"KV memory of each prefill worker", "the workers' own caches, simulated", "one shared cache of the same size", "ideal, without limits", "TTFT p50, p90, s"},
		Note:   "Mooncake gives 36.6% of the blocks as the ideal of the whole trace.",
	}
	share := 0.0
	for i, gib := range gibs {
		hit := figures[i].CachedTokensMean / figures[i].PromptTokensMean
		pooled := workloads.Pooled(all, mooncakePrefill*gib<<30/kvBytesPerToken/trace.BlockTokens)
		t.Rows = append(t.Rows, []string{fmt.Sprintf("%d GiB", gib), percent(hit), percent(pooled), percent(ideal), secondsOf(figures[i].TTFT.Percentile("p50")) + ", " + secondsOf(figures[i].TTFT.Percentile("p90"))})
		if gib == 400 {
			share = hit / ideal
		}
	}
	return t, share, nil
}

// refusalTable is what is served in time under overload, with and without early refusal, and
// what that brings at twice the load.
func refusalTable(ctx context.Context, o Options, path string, requests int, command string) (Table, float64, error) {
	speeds := []float64{1, 2, 3, 4}
	const twice = 1
	if o.Small {
		speeds = speeds[:twice+1]
	}
	figures := make([]report.Figures, 2*len(speeds))
	if err := each(ctx, len(figures), func(i int) (err error) {
		figures[i], err = mooncakeRun{path, requests, speeds[i/2], "400GiB", i%2 == 1}.measure(ctx, o)
		return err
	}); err != nil {
		return Table{}, 0, err
	}
	t := Table{
		Title: "Requests in time under overload", Command: command,
		Header: []string{"speed of the trace", "requests/s", "nothing refused: in time", "TTFT p90, s", "refused early: in time", "refused", "TTFT p90, s"},
		Note:   "Refused early: the router gets the SLO and refuses on arrival what cannot meet it.",
	}
	for i, speed := range speeds {
		served, refused := &figures[2*i], &figures[2*i+1]
		t.Rows = append(t.Rows, []string{
			fmt.Sprintf("%g", speed), digits(served.OfferedRPS),
			percent(served.SLOAttainment), secondsOf(served.TTFT.Percentile("p90")),
			percent(refused.SLOAttainment), percent(float64(refused.Rejected) / float64(refused.Requests)), secondsOf(refused.TTFT.Percentile("p90")),
		})
	}
	return t, figures[2*twice+1].SLOAttainment / max(figures[2*twice].SLOAttainment, 0.01), nil
}

// secondsOf is a latency in milliseconds as seconds.
func secondsOf(ms *float64) string {
	if ms == nil {
		return "n/a"
	}
	return digits(*ms / 1000)
}
