package plan

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/pkg/api"
	inferencev1 "github.com/tandem-serving/tandem/proto/tandem/inference/v1"
)

// Plan is the answer. Its JSON is public: keys are only added.
type Plan struct {
	Feasible bool `json:"feasible"`
	// Reason says in one sentence why this size, or why none; NearestSLO is the nearest SLO
	// that can be kept if this one cannot.
	Reason     string `json:"reason"`
	NearestSLO string `json:"nearest_slo,omitempty"`
	Size
	// Utilisation of prefill and decode, or of workers that do both: the share of what they
	// can serve within the SLO; nil if there is no plan.
	Utilisation map[string]float64 `json:"utilisation"`
	// Predicted is what the last simulation had, nil if there was none.
	Predicted *Prediction `json:"predicted"`
	// Mode is where the phases run, SLO the objective, of each call if there is a fan-out.
	Mode string `json:"mode"`
	SLO  string `json:"slo"`
	// Traffic is what the load was taken to be.
	Traffic Traffic `json:"traffic"`
	// Changed says what of the load does not fit, in the sample that the formulas look at: requests that
	// are cut, or conversations that end early.
	Changed []string `json:"changed,omitempty"`
	// Calculation is the formulas for the size, Constraints the rules that it keeps.
	Calculation []Formula    `json:"formulas,omitempty"`
	Constraints []Constraint `json:"constraints,omitempty"`
	// Calculated is the size that the formulas alone took.
	Calculated *Size `json:"calculated,omitempty"`
	// BothPhases is how many workers that all do both phases keep the SLO, if fewer than
	// Size; 0: they are not fewer.
	BothPhases int `json:"both_phases_workers,omitempty"`
	// HourCost is that of all workers, and MillionTokensCost that of a million tokens of
	// answers, in the currency of the price; 0: there is no price.
	HourCost          float64 `json:"hour_cost,omitempty"`
	MillionTokensCost float64 `json:"million_output_tokens_cost,omitempty"`
	// Trials are the sizes that were simulated, in their order.
	Trials []*Trial `json:"trials,omitempty"`

	planner *planner
}

// Traffic is a load in numbers.
type Traffic struct {
	RatePerSecond float64 `json:"rate_rps"`
	PromptTokens  float64 `json:"prompt_tokens_mean"`
	OutputTokens  float64 `json:"output_tokens_mean"`
}

// Prediction is what a load test of the mesh is expected to measure. Its keys are those of
// `bench serve`.
type Prediction struct {
	Requests int `json:"requests"`
	// WindowS is the measured window after WarmupS of warm-up, seconds, and Seed that of
	// arrivals and lengths: with them the same requests can be sent again.
	WindowS         float64      `json:"window_s"`
	WarmupS         float64      `json:"warmup_s"`
	Seed            uint64       `json:"seed"`
	TTFT            *Percentiles `json:"ttft_ms"`
	ITL             *Percentiles `json:"itl_ms"`
	TPOT            *Percentiles `json:"tpot_ms"`
	E2E             *Percentiles `json:"e2e_ms"`
	OutputTokensRPS float64      `json:"output_tokens_per_s"`
	GoodputRPS      float64      `json:"goodput_rps"`
	SLOAttainment   float64      `json:"slo_attainment"`
}

// Percentiles of a latency in milliseconds; nil: too few samples.
type Percentiles struct {
	P50  *float64 `json:"p50"`
	P90  *float64 `json:"p90"`
	P95  *float64 `json:"p95"`
	P99  *float64 `json:"p99"`
	P999 *float64 `json:"p999"`
	Max  *float64 `json:"max"`
}

func percentiles(d *measure.Distribution) *Percentiles {
	return &Percentiles{d.P50, d.P90, d.P95, d.P99, d.P999, d.Max}
}

// planner answers one question.
type planner struct {
	question  *Question
	pools     pools
	formulas  *formulas
	progress  loadtest.Progress
	trials    []*Trial
	simulated int
}

// Make plans. If the error is an *Infeasible, the plan has its reason; with any other error
// the plan is of no use. progress may be nil.
func Make(ctx context.Context, q *Question, progress loadtest.Progress) (*Plan, error) {
	p := &planner{question: q, progress: progress}
	plan := &Plan{planner: p}
	err := plan.make(ctx)
	var infeasible *Infeasible
	if errors.As(err, &infeasible) {
		plan.Reason, plan.NearestSLO = infeasible.Reason, infeasible.Nearest
	}
	plan.Trials = p.trials
	return plan, err
}

func (plan *Plan) make(ctx context.Context) error {
	p := plan.planner
	q := p.question
	if err := q.Validate(); err != nil {
		return err
	}
	plan.Mode = api.Name(q.Mode)
	err := p.prepare()
	if p.formulas != nil {
		plan.SLO = p.formulas.slo.String()
		plan.Traffic, plan.Changed = Traffic{p.formulas.rate, p.formulas.prompt, p.formulas.output}, p.formulas.changed
	}
	if err != nil {
		return err
	}
	chosen, err := plan.search(ctx)
	if err != nil {
		return err
	}
	plan.Feasible, plan.Size = true, chosen.Size
	plan.Utilisation, plan.Calculation = p.formulas.utilisation(chosen.Size), p.formulas.calculation(chosen.Size)
	plan.Predicted = p.prediction(&chosen.figures)
	plan.price()
	if plan.Prefill > 0 {
		aggregated, err := p.searchAggregatedBelow(ctx, plan.Workers())
		if err != nil {
			return err
		}
		if aggregated != nil {
			plan.BothPhases = aggregated.Decode
		}
	}
	return nil
}

// prepare makes the formulas. They are there beside an *Infeasible too.
func (p *planner) prepare() error {
	q := p.question
	asked, err := q.Load.Objective()
	if err != nil {
		return err
	}
	each, err := q.Headroom.ofEach(asked)
	if err != nil {
		return err
	}
	traffic, err := newTraffic(q)
	if err != nil {
		return err
	}
	config := q.Cluster.Config(q.Load.Workload.Seed)
	p.pools = newPools(config)
	p.formulas, err = newFormulas(traffic, p.pools, config.BlockTokens, asked, each, q.Headroom)
	return err
}

// search finds the size, and says why.
func (plan *Plan) search(ctx context.Context) (*Trial, error) {
	p := plan.planner
	pools := []string{"prefill", "decode"}
	if p.question.Mode == inferencev1.Mode_MODE_AGGREGATED {
		pools = []string{"both"}
	}
	constraints, err := p.formulas.constraints(pools...)
	if err != nil {
		return nil, err
	}
	plan.Constraints = constraints
	begin, floor := sizes(constraints)
	plan.Calculated = &begin
	if begin.Workers() > p.question.MaxWorkers {
		return nil, p.tooMany("by the formulas, " + begin.String())
	}
	chosen, err := p.fewest(ctx, begin, floor)
	if err != nil {
		return nil, err
	}
	var reasons []string
	for _, pool := range pools {
		reasons = append(reasons, because(pool, chosen.Size, constraints))
	}
	plan.Reason = strings.Join(reasons, ", ")
	return chosen, nil
}

// because says what decided the size of a pool: a rule that takes as many workers, or the SLO.
func because(pool string, size Size, constraints []Constraint) string {
	workers := size.Decode
	if pool == "prefill" {
		workers = size.Prefill
	}
	for _, c := range constraints {
		if c.Pool == pool && c.Floor && c.Workers == workers {
			return shown(pool) + " by " + c.Name
		}
	}
	return shown(pool) + " by the SLO in simulation"
}

func (plan *Plan) price() {
	plan.HourCost = plan.planner.question.WorkerPrice * float64(plan.Workers())
	if tokens := plan.Traffic.RatePerSecond * plan.Traffic.OutputTokens * time.Hour.Seconds(); tokens > 0 {
		plan.MillionTokensCost = plan.HourCost / tokens * 1e6
	}
}
