package plan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/tandem-serving/tandem/loadtest"
	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/record"
	"github.com/tandem-serving/tandem/loadtest/report"
	"github.com/tandem-serving/tandem/loadtest/stats"
)

// Verification is a prediction beside what a mesh did with the same requests. Its JSON is
// public: keys are only added.
type Verification struct {
	Size
	RatePerSecond float64     `json:"rate_rps"`
	Predicted     *Prediction `json:"predicted"`
	Measured      *Prediction `json:"measured"`
	// Comparison has the percentiles beside each other.
	Comparison []Compared `json:"comparison"`
	// WorstP99 is the largest relative error of a p99, without its sign; nil: there are too
	// few requests for one.
	WorstP99 *float64 `json:"worst_p99_error"`
	// Limited says why the client limited what was measured; empty: it did not.
	Limited string `json:"client_limit,omitempty"`
	// NotServed is how many of the measured requests the mesh did not complete.
	NotServed int `json:"not_served"`
}

// Compared is one percentile.
type Compared struct {
	Latency     string   `json:"latency"`
	Percentile  string   `json:"percentile"`
	PredictedMs *float64 `json:"predicted_ms"`
	MeasuredMs  *float64 `json:"measured_ms"`
	// Error is predicted over measured, less 1; nil: one of them is missing.
	Error *float64 `json:"error"`
}

// notServedMost is the largest share of requests that a mesh may leave undone for its
// latencies to be compared: those that it refused or lost have none.
const notServedMost = 0.01

// tooFew says how many requests a p99 takes, and how long they take to come.
func tooFew(perSecond float64) string {
	needed := math.Ceil(enough * float64(stats.QuantileNeeds(0.99)))
	text := fmt.Sprintf("too few requests for a p99, which takes some %.0f: pass ", needed)
	if !(perSecond > 0) {
		return text + "a longer --duration"
	}
	duration := max(time.Second, time.Duration(math.Ceil(min(needed/perSecond, longestRun.Seconds())))*time.Second)
	return text + fmt.Sprintf("--duration %v or more", duration)
}

// Check is an error if what was measured says nothing about the prediction, or if a p99 is off
// by more than within.
func (v *Verification) Check(within float64) error {
	switch worst := v.WorstP99; {
	case v.Limited != "":
		return fmt.Errorf("the figures are not the mesh's: %s", record.Explain(v.Limited))
	case float64(v.NotServed) > notServedMost*float64(v.Measured.Requests):
		return fmt.Errorf("the mesh did not complete %d of %d requests, more than %.0f%%: its latencies are those of the others; see 'tandem workers'",
			v.NotServed, v.Measured.Requests, 100*notServedMost)
	case worst == nil:
		return errors.New(tooFew(v.RatePerSecond))
	case *worst > within:
		return fmt.Errorf("a p99 is off by %.1f%%, more than %.0f%% (--within): check that the mesh has %s, with the engine and the step times of the plan", 100**worst, 100*within, v.Size)
	}
	return nil
}

// longestVerification bounds how long a mesh is measured, unless a duration is given.
const longestVerification = 3 * time.Minute

// Verify simulates a load on a size, sends the same requests to a mesh and compares. salt
// keeps the mesh from finding the prompts of an earlier verification in its prefix cache.
// progress may be nil.
func Verify(ctx context.Context, q *Question, size Size, server client.Client, salt string, progress loadtest.Progress) (*Verification, error) {
	if err := q.Validate(); err != nil {
		return nil, err
	}
	mesh, err := server.Describe(ctx)
	if err != nil {
		return nil, err
	}
	if spec := q.Cluster.Spec(); mesh.ContextTokens > 0 && mesh.ContextTokens != spec.ContextTokens {
		return nil, fmt.Errorf("the mesh serves %s, with a context of %d tokens, and the plan is for %s with %d: pass --model with the model of the mesh",
			mesh.Model, mesh.ContextTokens, spec.Name, spec.ContextTokens)
	}
	p := &planner{question: q, progress: progress}
	if err := p.prepare(); err != nil {
		return nil, err
	}
	load := p.load(finalRequests)
	if !q.Load.DurationSet && !load.Workload.OwnTimes() {
		load.Duration = min(load.Duration, longestVerification)
	}
	predicted, err := p.measure(ctx, load, size, "predicting "+size.String())
	if err != nil {
		return nil, err
	}
	if p.prediction(&predicted).TTFT.P99 == nil { // nor will the mesh have one
		return nil, errors.New(tooFew(p.formulas.rate))
	}
	if load.Workload.CacheSalt == "" {
		load.Workload.CacheSalt = salt
	}
	session, err := loadtest.NewSession(ctx, load, server, progress)
	if err != nil {
		return nil, err
	}
	session.Round(0)
	measured, err := session.Step(ctx, "measuring "+mesh.Address, load.Rate)
	switch {
	case err != nil:
		return nil, err
	case ctx.Err() != nil:
		return nil, errors.New("interrupted before the mesh was measured")
	case measured.Completed == 0:
		return nil, fmt.Errorf("the mesh completed none of %d requests: see 'tandem workers'", measured.Requests)
	}
	v := &Verification{
		Size: size, RatePerSecond: p.formulas.rate, Predicted: p.prediction(&predicted), Measured: p.prediction(&measured),
		Limited: measured.Limit(), NotServed: measured.Requests - measured.Completed,
	}
	v.compare(&predicted, &measured)
	return v, nil
}

func (v *Verification) compare(predicted, measured *report.Figures) {
	for _, l := range []struct {
		name                string
		predicted, measured *measure.Distribution
	}{{"ttft", predicted.TTFT, measured.TTFT}, {"tpot", predicted.TPOT, measured.TPOT}} {
		for _, percentile := range []string{"p50", "p90", "p99"} {
			c := Compared{Latency: l.name, Percentile: percentile, PredictedMs: l.predicted.Percentile(percentile), MeasuredMs: l.measured.Percentile(percentile)}
			if c.PredictedMs != nil && c.MeasuredMs != nil && *c.MeasuredMs > 0 {
				relative := *c.PredictedMs / *c.MeasuredMs - 1
				c.Error = &relative
				if size := math.Abs(relative); percentile == "p99" && (v.WorstP99 == nil || size > *v.WorstP99) {
					v.WorstP99 = &size
				}
			}
			v.Comparison = append(v.Comparison, c)
		}
	}
}

// Write writes the comparison for people.
func (v *Verification) Write(w io.Writer) error {
	fmt.Fprintf(w, "%s at %.4g requests a second: %d requests, the same in the simulation and at the mesh\n\n", v.Size, v.RatePerSecond, v.Measured.Requests)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "ms\tpredicted\tmeasured\terror\t")
	for _, c := range v.Comparison {
		relative := "n/a"
		if c.Error != nil {
			relative = fmt.Sprintf("%+.1f%%", 100**c.Error)
		}
		name := map[string]string{"ttft": "TTFT", "tpot": "TPOT"}[c.Latency]
		fmt.Fprintf(table, "%s %s\t%s\t%s\t%s\t\n", name, c.Percentile, number(c.PredictedMs), number(c.MeasuredMs), relative)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if v.NotServed > 0 {
		fmt.Fprintf(w, "the mesh did not complete %d requests\n", v.NotServed)
	}
	if v.Limited != "" {
		fmt.Fprintf(w, "the client was the limit: %s\n", v.Limited)
	}
	if v.WorstP99 != nil {
		_, err := fmt.Fprintf(w, "largest error of a p99: %.1f%%\n", 100**v.WorstP99)
		return err
	}
	_, err := fmt.Fprintln(w, tooFew(v.RatePerSecond))
	return err
}

// prediction is the figures of a run.
func (p *planner) prediction(f *report.Figures) *Prediction {
	return &Prediction{
		Requests: f.Requests, WindowS: f.WindowS, WarmupS: f.WarmupS, Seed: p.question.Load.Workload.Seed,
		TTFT: percentiles(f.TTFT), ITL: percentiles(f.ITL), TPOT: percentiles(f.TPOT), E2E: percentiles(f.E2E),
		OutputTokensRPS: f.OutputTokensPerS, GoodputRPS: f.Goodput, SLOAttainment: f.SLOAttainment,
	}
}
