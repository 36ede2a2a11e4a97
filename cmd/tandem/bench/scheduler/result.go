package scheduler

import (
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Result is what was measured.
type Result struct {
	Plan
	Clock string `json:"clock"`
	// Model is that of the profile or of the engine.
	Model string `json:"model,omitempty"`
	// Jitter is the spread of steps on virtual time.
	Jitter float64 `json:"jitter,omitempty"`
	// ISA and Threads are the real engine's.
	ISA     string `json:"isa,omitempty"`
	Threads int    `json:"threads,omitempty"`
	// Rows are one for each policy, in their order.
	Rows []Row `json:"policies"`
}

// Row is what one policy made of the requests.
type Row struct {
	StepBudgetMs float64 `json:"step_budget_ms"`
	ChunkTokens  int     `json:"chunk_tokens"`
	OutputShare  float64 `json:"output_share"`

	// Requests came, Finished of them ended by themselves: in LongPrompt one.
	Requests int `json:"requests"`
	Finished int `json:"finished"`
	// DurationS is from the start to the end of the last step, in seconds.
	DurationS    float64 `json:"duration_s"`
	OutputTokens int     `json:"generated_tokens"`
	OutputRate   float64 `json:"output_tokens_per_s"`

	// TTFT is from when a request was due to its first token, ITL each gap between
	// tokens.
	TTFT      Percentiles `json:"ttft_ms"`
	TTFTShort Percentiles `json:"ttft_short_ms"`
	TTFTLong  Percentiles `json:"ttft_long_ms"`
	ITL       Percentiles `json:"itl_ms"`
	// Stall is by how much each gap was longer than the step that ended it would have
	// been with its decodes alone; StalledShare is the sum of that over all gaps.
	Stall        Percentiles `json:"stall_ms"`
	StalledShare float64     `json:"stalled_share"`

	Steps            int     `json:"steps"`
	SequencesPerStep float64 `json:"sequences_per_step"`
	// MixedSteps held prompts and decodes. Added is by how much longer they were for the
	// prompts; OverBudget how many of them were longer than the budget allows, at worst
	// by WorstOverMs.
	MixedSteps  int         `json:"mixed_steps"`
	Added       Percentiles `json:"added_ms"`
	OverBudget  int         `json:"over_budget_steps"`
	WorstOverMs float64     `json:"worst_over_budget_ms"`

	Preemptions int `json:"preemptions"`
	// ComputedTokens went through the engine, ComputedAgain of them not for the first
	// time.
	ComputedTokens int `json:"computed_tokens"`
	ComputedAgain  int `json:"computed_again_tokens"`

	// Scheduler is the scheduler's own time and allocations, on virtual time.
	Scheduler *Own `json:"scheduler,omitempty"`
	// BetweenUs is how long the real engine had no step although sequences ran, in
	// microseconds.
	BetweenUs *Spread  `json:"between_steps_us,omitempty"`
	Long      *LongRow `json:"long_prompt,omitempty"`
}

// Own is what the scheduler takes for itself. Times are nanoseconds of the wall clock.
type Own struct {
	// StepNs is the call that ends a step and plans the next.
	StepNs Spread `json:"step_ns"`
	// NsPerStep is all calls, arrivals included, over the number of steps.
	NsPerStep float64 `json:"ns_per_step"`
	// AllocsPerStep is of calls that end a step, AllocsPerDecodeStep of those between two
	// steps of decodes alone; 0 if there was none.
	AllocsPerStep       float64 `json:"allocs_per_step"`
	AllocsPerDecodeStep float64 `json:"allocs_per_decode_step"`
}

// LongRow is what the long prompt did to those that decode.
type LongRow struct {
	// Before are gaps between tokens before it came, in steps of all of them alone;
	// During those of steps that computed a part of it.
	Before    Percentiles `json:"itl_before_ms"`
	During    Percentiles `json:"itl_during_ms"`
	RiseP99Ms *float64    `json:"rise_p99_ms"` // nil: one of them has no p99
	// WithinBudget says whether that is within the step budget; absent without one of both.
	WithinBudget *bool `json:"within_budget,omitempty"`
}

// Percentiles are in milliseconds, of Count values; nil: too few for that one. Max is 0 of nothing.
type Percentiles struct {
	Count int64 `json:"count"`

	P50  *float64 `json:"p50"`
	P90  *float64 `json:"p90"`
	P95  *float64 `json:"p95"`
	P99  *float64 `json:"p99"`
	P999 *float64 `json:"p999"`
	Max  float64  `json:"max"`
}

// Spread is of single values; all 0 of none.
type Spread struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func newResult(p Plan, clock string) *Result {
	p.Blocks = p.blocks()
	if p.Scenario == LongPrompt {
		p.Requests, p.Rate, p.LongShare, p.OutputTokens, p.MaxTokens = 0, 0, 0, 0, 0
	} else {
		p.Decodes, p.BeforeSteps = 0, 0
	}
	return &Result{Plan: p, Clock: clock}
}

func percentiles(h *stats.Histogram) Percentiles {
	at := func(q float64) *float64 {
		if h.Count() < stats.QuantileNeeds(q) {
			return nil
		}
		return new(stats.Milliseconds(h.Quantile(q)))
	}
	return Percentiles{h.Count(), at(.5), at(.9), at(.95), at(.99), at(.999), stats.Milliseconds(h.Max())}
}

// spread is of durations in a unit; it sorts them.
func spread(of []time.Duration, unit time.Duration) Spread {
	slices.Sort(of)
	at := func(q float64) float64 { return float64(stats.Quantile(of, q)) / float64(unit) }
	return Spread{at(.5), at(.99), at(1)}
}

// share is a over b, 0 of nothing.
func share(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (c *collector) row() Row {
	r := Row{
		StepBudgetMs: stats.Milliseconds(c.policy.StepBudget), ChunkTokens: c.policy.ChunkTokens, OutputShare: c.policy.OutputShare,
		Requests: len(c.requests), Finished: c.finished,
		DurationS: c.ended.Seconds(), OutputTokens: c.tokens, OutputRate: share(float64(c.tokens), c.ended.Seconds()),
		TTFT: percentiles(c.ttft), TTFTShort: percentiles(c.ttftShort), TTFTLong: percentiles(c.ttftLong),
		ITL: percentiles(c.itl), Stall: percentiles(c.stall), StalledShare: share(float64(c.stalls), float64(c.gaps)),
		Steps: c.steps, SequencesPerStep: share(float64(c.sequences), float64(c.steps)),
		MixedSteps: c.mixed, Added: percentiles(c.added), OverBudget: c.overBudget, WorstOverMs: stats.Milliseconds(c.worstOver),
		ComputedTokens: c.computed, ComputedAgain: c.again,
	}
	if c.plan.Scenario == LongPrompt {
		long := &LongRow{Before: percentiles(c.before), During: percentiles(c.during)}
		if before, during := long.Before.P99, long.During.P99; before != nil && during != nil {
			long.RiseP99Ms = new(*during - *before)
			if c.policy.StepBudget > 0 {
				long.WithinBudget = new(*long.RiseP99Ms <= r.StepBudgetMs)
			}
		}
		r.Long = long
	}
	return r
}

// row adds what only virtual time has.
func (v *virtual) row() Row {
	r := v.collector.row()
	r.Preemptions = v.preempt
	r.Scheduler = &Own{
		StepNs: spread(v.cost.steps, time.Nanosecond), NsPerStep: share(float64(v.cost.all), float64(v.steps)),
		AllocsPerStep:       share(float64(v.cost.allocs), float64(v.cost.counted)),
		AllocsPerDecodeStep: share(float64(v.cost.plainAllocs), float64(v.cost.plain)),
	}
	return r
}
