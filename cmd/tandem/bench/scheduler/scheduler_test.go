package scheduler_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tandem-serving/tandem/cmd/tandem/bench/benchtest"
	"github.com/tandem-serving/tandem/cmd/tandem/bench/scheduler"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/latency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func mix() scheduler.Plan {
	return scheduler.Plan{
		Scenario: scheduler.Mix, Seed: 1, Requests: 300, Rate: 8, LongShare: 0.1, OutputTokens: 64, MaxTokens: 128, ShortTokens: 256, LongTokens: 4096,
		Blocks: 2048, BlockTokens: 32, BatchTokens: 2048, Sequences: 64,
		Policies: []scheduler.Policy{{ChunkTokens: 2048, OutputShare: 1}, {StepBudget: 50 * time.Millisecond, ChunkTokens: 2048, OutputShare: 1}},
	}
}

func longPrompt() scheduler.Plan {
	p := mix()
	p.Scenario, p.Decodes, p.BeforeSteps, p.LongTokens, p.Blocks = scheduler.LongPrompt, 48, 100, 16384, 0
	return p
}

func device() scheduler.Device {
	terms := []latency.Regime{{Terms: latency.Terms{BaseMs: 10, PerTokenMs: 0.1, PerSquareMs: 1e-6, PerContextTokenMs: 1e-4}}}
	return scheduler.Device{Profile: &latency.Profile{Version: latency.ProfileVersion, Model: "made up", Prefill: terms, Decode: terms}}
}

// virtual runs a plan without the figures of the wall clock.
func virtual(t *testing.T, p scheduler.Plan, d scheduler.Device) *scheduler.Result {
	t.Helper()
	r, err := scheduler.Virtual(t.Context(), p, d, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Rows {
		own := r.Rows[i].Scheduler
		if own == nil || !(own.StepNs.P50 > 0 && own.StepNs.P50 <= own.StepNs.P99 && own.StepNs.P99 <= own.StepNs.Max && own.NsPerStep > 0) {
			t.Errorf("the scheduler's own: %+v", own)
		}
		r.Rows[i].Scheduler = nil
	}
	return r
}

func near(a, b float64) bool { return math.Abs(a-b) <= 2e-3*math.Abs(b) }

// TestOneRequest: what one request takes can be told beforehand.
func TestOneRequest(t *testing.T) {
	p := mix()
	p.Requests, p.LongShare, p.ShortTokens, p.OutputTokens, p.MaxTokens = 1, 0, 1, 2, 100
	p.Policies = p.Policies[:1]
	regime := []latency.Regime{{Terms: latency.Terms{BaseMs: 10, PerTokenMs: 2}}}
	row := virtual(t, p, scheduler.Device{Profile: &latency.Profile{Version: latency.ProfileVersion, Prefill: regime, Decode: regime}}).Rows[0]
	if row.Requests != 1 || row.Finished != 1 || row.OutputTokens < 1 || row.OutputTokens > 3 || row.Steps != row.OutputTokens || row.ComputedTokens != row.OutputTokens {
		t.Errorf("%+v", row)
	}
	if row.TTFT.P50 != nil || row.TTFT.P999 != nil || !near(row.TTFT.Max, 12) || !near(row.TTFTShort.Max, 12) || row.TTFTLong.Max != 0 || row.OutputTokens > 1 && !near(row.ITL.Max, 12) {
		t.Errorf("TTFT %+v, ITL %+v", row.TTFT, row.ITL)
	}
	if row.MixedSteps != 0 || row.Stall.Max != 0 || row.Preemptions != 0 || row.ComputedAgain != 0 {
		t.Errorf("alone on the worker: %+v", row)
	}
}

func TestMixOnVirtualTime(t *testing.T) {
	p := mix()
	var told []int64
	first, err := scheduler.Virtual(t.Context(), p, device(), func(done, total int64) { told = append(told, done, total) })
	if err != nil || !slices.Equal(told, []int64{1, 2, 2, 2}) || first.Clock != "virtual" || first.Model != "made up" || !(first.Rows[0].Scheduler.AllocsPerStep > 0) {
		t.Fatalf("%v, %v, %+v", told, err, first)
	}
	r := virtual(t, p, device())
	if again := virtual(t, p, device()); !reflect.DeepEqual(r, again) {
		t.Errorf("the same seed gave %+v and %+v", r, again)
	}
	p.Seed = 2
	if other := virtual(t, p, device()); reflect.DeepEqual(r.Rows, other.Rows) {
		t.Error("another seed gave the same")
	}
	free, bounded := r.Rows[0], r.Rows[1]
	for _, row := range r.Rows {
		if row.Requests != 300 || row.Finished != 300 || row.OutputTokens != free.OutputTokens || row.ComputedTokens != free.ComputedTokens || row.ComputedAgain != 0 {
			t.Errorf("not the same requests, or not all: %+v", row)
		}
	}
	// A chunk of 2,048 tokens takes more than 200 ms; the budget lets none through. Its
	// model of the steps is fitted, so the last hundredth is not exact.
	if !(free.Stall.Max > 200 && bounded.Added.Max < 52 && *bounded.Stall.P99 < 52 && *bounded.ITL.P99 < *free.ITL.P99) {
		t.Errorf("stalls: %+v without a budget, %+v with; added %+v; ITL %+v and %+v", free.Stall, bounded.Stall, bounded.Added, free.ITL, bounded.ITL)
	}
	if free.OverBudget != 0 || bounded.MixedSteps <= free.MixedSteps || bounded.OverBudget > bounded.MixedSteps/10 {
		t.Errorf("%d of %d and %d of %d steps over the budget", free.OverBudget, free.MixedSteps, bounded.OverBudget, bounded.MixedSteps)
	}
	if free.TTFTShort.P99 != nil || free.TTFTLong.P90 != nil || !(*free.TTFTShort.P50 < *free.TTFTLong.P50) || !(free.StalledShare > 0 && free.StalledShare < 1) {
		t.Errorf("TTFT of short ones %+v, of long ones %+v; stalled %v", free.TTFTShort, free.TTFTLong, free.StalledShare)
	}
}

// TestJitter: steps spread, and seldom keep a budget that they would keep otherwise.
func TestJitter(t *testing.T) {
	p, d := mix(), device()
	plain := virtual(t, p, d)
	d.Jitter = 0.2
	spread := virtual(t, p, d)
	if a, b := plain.Rows[1], spread.Rows[1]; b.OverBudget <= a.OverBudget || b.Added.Max <= a.Added.Max || b.Finished != 300 || spread.Jitter != 0.2 {
		t.Errorf("%+v and with jitter %+v", a, b)
	}
	if again := virtual(t, p, d); !reflect.DeepEqual(spread, again) {
		t.Error("the same seed gave other jitter")
	}
}

// TestFewSamples: a percentile takes as many samples as everywhere, and what follows from it is not told without.
func TestFewSamples(t *testing.T) {
	p := longPrompt()
	p.Decodes = 1
	for _, row := range virtual(t, p, device()).Rows {
		if l := row.Long; l.Before.P50 == nil || l.Before.P99 != nil || l.RiseP99Ms != nil || l.WithinBudget != nil || !(l.During.Max > 0) {
			t.Errorf("%d gaps before: %+v", l.Before.Count, l)
		}
	}
}

// TestLongPrompt: one long prompt raises the gaps of those that decode by no more than
// the budget.
func TestLongPrompt(t *testing.T) {
	r := virtual(t, longPrompt(), device())
	if r.Requests != 0 || r.Blocks < 16384/32 {
		t.Errorf("the plan as reported: %+v", r.Plan)
	}
	free, bounded := r.Rows[0], r.Rows[1]
	for _, row := range r.Rows {
		if row.Requests != 49 || row.Finished != 1 || row.Long == nil || row.Preemptions != 0 {
			t.Fatalf("%+v", row)
		}
		if math.Abs(*row.Long.Before.P50 / *free.Long.Before.P50 - 1) > 0.02 || row.TTFTLong.Max < 16384*0.1 {
			t.Errorf("before %+v, TTFT of the long prompt %+v", row.Long.Before, row.TTFTLong)
		}
	}
	if free.Long.WithinBudget != nil || *free.Long.RiseP99Ms < 200 {
		t.Errorf("without a budget: %+v", free.Long)
	}
	if l := bounded.Long; l.WithinBudget == nil || !*l.WithinBudget || *l.RiseP99Ms > 50 || *l.RiseP99Ms < 25 {
		t.Errorf("with a budget of 50 ms: %+v", l)
	}
	if bounded.TTFTLong.Max < free.TTFTLong.Max {
		t.Errorf("the long prompt was faster with a budget: %v against %v", bounded.TTFTLong.Max, free.TTFTLong.Max)
	}
}

// TestLongPromptWithJitter: the p99 is kept, too, where steps spread by a tenth: the
// plans leave room for it.
func TestLongPromptWithJitter(t *testing.T) {
	p, d := longPrompt(), device()
	d.Jitter, p.BlockTokens, p.BatchTokens = 0.1, 16, 512
	p.Policies = []scheduler.Policy{{StepBudget: 50 * time.Millisecond, ChunkTokens: 512, OutputShare: 1}}
	for p.Seed = range uint64(4) {
		if l := virtual(t, p, d).Rows[0].Long; !*l.WithinBudget || *l.RiseP99Ms < 25 {
			t.Errorf("seed %d: %+v", p.Seed, l)
		}
	}
}

// TestPreemptions: where less output is expected than comes, and blocks are few, some are
// preempted and computed again, and all end.
func TestPreemptions(t *testing.T) {
	p := mix()
	p.LongShare, p.ShortTokens, p.OutputTokens, p.MaxTokens, p.Blocks, p.Rate = 0, 64, 256, 384, 60, 40
	p.Policies = []scheduler.Policy{{ChunkTokens: 2048, OutputShare: 1}, {ChunkTokens: 2048, OutputShare: 0.05}}
	r := virtual(t, p, device())
	if some := r.Rows[1]; some.Preemptions == 0 || some.ComputedAgain == 0 || some.Finished != 300 {
		t.Errorf("%+v", some)
	}
	for _, row := range r.Rows {
		if row.Finished != 300 || row.ComputedTokens-row.ComputedAgain != r.Rows[0].ComputedTokens-r.Rows[0].ComputedAgain {
			t.Errorf("%d ended, %d tokens less %d", row.Finished, row.ComputedTokens, row.ComputedAgain)
		}
	}
}

func TestVirtualStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := scheduler.Virtual(ctx, mix(), device(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestPlansThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(p *scheduler.Plan)
	}{
		{"--scenario", func(p *scheduler.Plan) { p.Scenario = "short" }},
		{"--requests", func(p *scheduler.Plan) { p.Requests = 0 }},
		{"--rate", func(p *scheduler.Plan) { p.Rate = math.NaN() }},
		{"--long-share", func(p *scheduler.Plan) { p.LongShare = 1.1 }},
		{"--output", func(p *scheduler.Plan) { p.OutputTokens = 0 }},
		{"--max-tokens: 95 is outside 96", func(p *scheduler.Plan) { p.MaxTokens = 95 }},
		{"--short-prompt", func(p *scheduler.Plan) { p.ShortTokens = 0 }},
		{"--long-prompt", func(p *scheduler.Plan) { p.LongTokens = 1 << 21 }},
		{"--block-tokens", func(p *scheduler.Plan) { p.BlockTokens = 0 }},
		{"--batch-tokens", func(p *scheduler.Plan) { p.BatchTokens = 31 }},
		{"--sequences", func(p *scheduler.Plan) { p.Sequences = 0 }},
		{"--blocks: 195 is outside 196", func(p *scheduler.Plan) { p.Blocks = 195 }},
		{"--decodes", func(p *scheduler.Plan) { p.Scenario, p.Decodes, p.BeforeSteps = scheduler.LongPrompt, 64, 1 }},
		{"--long-prompt, --short-prompt, --decodes", func(p *scheduler.Plan) {
			p.Scenario, p.Decodes, p.BeforeSteps, p.Sequences, p.BatchTokens = scheduler.LongPrompt, 1000, 1<<20, 1<<20, 1<<20
		}},
		{"--before", func(p *scheduler.Plan) { p.Scenario, p.Decodes = scheduler.LongPrompt, 8 }},
		{"--step-budget, --chunk-tokens and --output-share: together 0", func(p *scheduler.Plan) { p.Policies = nil }},
		{"--step-budget", func(p *scheduler.Plan) { p.Policies[0].StepBudget = -1 }},
		{"--chunk-tokens", func(p *scheduler.Plan) { p.Policies[0].ChunkTokens = 100 }},
		{"--output-share", func(p *scheduler.Plan) { p.Policies[0].OutputShare = 0 }},
	} {
		p := mix()
		c.change(&p)
		if _, err := scheduler.Virtual(t.Context(), p, device(), nil); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	d := device()
	d.Jitter = 3
	if _, err := scheduler.Virtual(t.Context(), mix(), d, nil); err == nil || !strings.HasPrefix(err.Error(), "--jitter") {
		t.Error(err)
	}
	d.Profile = &latency.Profile{}
	if _, err := scheduler.Virtual(t.Context(), mix(), d, nil); err == nil || !strings.HasPrefix(err.Error(), "--profile") {
		t.Error(err)
	}
	if err := mix().ValidateFor("small", 6271); err == nil || !strings.Contains(err.Error(), "small takes") {
		t.Error(err)
	}
	if err := mix().ValidateFor("small", 6272); err != nil {
		t.Error(err)
	}
}

func load(t *testing.T) *cpu.Weights {
	t.Helper()
	return benchtest.Tiny(t, cpu.BF16)
}

func small() scheduler.Plan {
	p := mix()
	p.Requests, p.Rate, p.ShortTokens, p.LongTokens, p.LongShare, p.OutputTokens, p.MaxTokens = 12, 1000, 20, 120, 0.3, 20, 40
	p.Blocks, p.BatchTokens, p.Sequences = 60, 128, 8
	p.Policies = []scheduler.Policy{{ChunkTokens: 128, OutputShare: 1}, {StepBudget: time.Millisecond, ChunkTokens: 64, OutputShare: 1}}
	return p
}

// TestReal: the engine gets the requests that virtual time has, and generates as much.
func TestReal(t *testing.T) {
	w, p := load(t), small()
	var told []int64
	r, err := scheduler.Real(t.Context(), w, p, time.Minute, func(done, total int64) { told = append(told, done, total) })
	if err != nil || !slices.Equal(told, []int64{1, 2, 2, 2}) {
		t.Fatalf("%v, %v", told, err)
	}
	expected := virtual(t, p, device())
	if r.Clock != "real" || r.Model != "tiny" || r.ISA != w.ISA() || r.Threads != 1 {
		t.Errorf("%+v", r)
	}
	for i, row := range r.Rows {
		want := expected.Rows[i]
		if row.Requests != 12 || row.Finished != 12 || row.OutputTokens != want.OutputTokens || row.ComputedTokens-row.ComputedAgain != want.ComputedTokens-want.ComputedAgain {
			t.Errorf("%+v, want %+v", row, want)
		}
		if !(*row.TTFT.P50 > 0 && *row.ITL.P50 > 0 && row.BetweenUs.P50 > 0) || row.Scheduler != nil || row.Long != nil {
			t.Errorf("%+v", row)
		}
	}
}

// TestRealPreemptions: preemptions are counted, and all end.
func TestRealPreemptions(t *testing.T) {
	p := small()
	p.LongShare, p.Blocks, p.ShortTokens, p.OutputTokens, p.MaxTokens = 0, 13, 20, 200, 300
	p.Policies = []scheduler.Policy{{ChunkTokens: 128, OutputShare: 0.01}}
	r, err := scheduler.Real(t.Context(), load(t), p, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	if row := r.Rows[0]; row.Preemptions == 0 || row.ComputedAgain == 0 || row.Finished != 12 {
		t.Errorf("%+v", row)
	}
}

func TestRealLongPrompt(t *testing.T) {
	p := small()
	p.Scenario, p.Decodes, p.BeforeSteps, p.LongTokens, p.Blocks = scheduler.LongPrompt, 3, 20, 400, 0
	r, err := scheduler.Real(t.Context(), load(t), p, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range r.Rows {
		if row.Requests != 4 || row.Finished != 1 || row.Long == nil || !(*row.Long.Before.P50 > 0 && row.Long.During.Max > 0) || !(row.TTFTLong.Max > 0) {
			t.Errorf("%+v", row)
		}
	}
}

func TestRealStops(t *testing.T) {
	w, p := load(t), small()
	if _, err := scheduler.Real(t.Context(), w, p, time.Nanosecond, nil); err == nil || !strings.Contains(err.Error(), "--limit") {
		t.Errorf("out of time: %v", err)
	}
	p.Rate = 0.001
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := scheduler.Real(ctx, w, p, time.Hour, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	p.LongTokens = 1000
	if _, err := scheduler.Real(t.Context(), w, p, time.Hour, nil); err == nil || !strings.Contains(err.Error(), "tiny takes") {
		t.Errorf("more than the model takes: %v", err)
	}
}

func TestBytes(t *testing.T) {
	w, p := load(t), small()
	one := p.Bytes(w.Spec())
	if one < w.Bytes() {
		t.Errorf("%d bytes with weights of %d", one, w.Bytes())
	}
	p.Blocks += 10
	if more := p.Bytes(w.Spec()) - one; more != 10*32*2*2*32*2 {
		t.Errorf("10 more blocks take %d bytes", more)
	}
}

// TestKeys: what the results are called.
func TestKeys(t *testing.T) {
	keys := func(p scheduler.Plan) (whole, row []string) {
		text, err := json.Marshal(virtual(t, p, device()))
		if err != nil {
			t.Fatal(err)
		}
		var said map[string]any
		if err := json.Unmarshal(text, &said); err != nil {
			t.Fatal(err)
		}
		rows, _ := said["policies"].([]any)
		if len(rows) != 2 {
			t.Fatalf("%s", text)
		}
		first, _ := rows[1].(map[string]any)
		return slices.Sorted(maps.Keys(said)), slices.Sorted(maps.Keys(first))
	}
	shared := []string{
		"added_ms", "chunk_tokens", "computed_again_tokens", "computed_tokens", "duration_s", "finished", "generated_tokens", "itl_ms", "mixed_steps",
		"output_share", "output_tokens_per_s", "over_budget_steps", "preemptions", "requests", "sequences_per_step", "stall_ms", "stalled_share",
		"step_budget_ms", "steps", "ttft_long_ms", "ttft_ms", "ttft_short_ms", "worst_over_budget_ms",
	}
	whole, row := keys(mix())
	if want := []string{
		"batch_tokens", "block_tokens", "blocks", "clock", "long_prompt_tokens", "long_share", "max_tokens", "model", "output_tokens", "policies",
		"rate", "requests", "scenario", "seed", "sequences", "short_prompt_tokens",
	}; !slices.Equal(whole, want) || !slices.Equal(row, shared) {
		t.Errorf("%v and %v", whole, row)
	}
	whole, row = keys(longPrompt())
	if want := slices.Sorted(slices.Values(append(slices.Clone(shared), "long_prompt"))); !slices.Contains(whole, "before_steps") || slices.Contains(whole, "rate") || !slices.Equal(row, want) {
		t.Errorf("%v and %v", whole, row)
	}
}
