package pair

import (
	"encoding/json"
	"io"

	"github.com/tandem-serving/tandem/loadtest/report"
)

// document is a Result as JSON.
type document struct {
	Schema string `json:"schema"`
	// Reports by side, in the order in which they were given.
	Reports []*report.Report `json:"reports"`
	// Steps in the order in which they were measured.
	Steps []stepJSON `json:"steps"`
	// CapacityRPS by side, as estimated in closed loop; 0 if the rates were given.
	CapacityRPS [2]float64 `json:"capacity_rps"`
	Interrupted bool       `json:"interrupted,omitempty"`
}

// stepJSON is what a Step knows beside what the reports say.
type stepJSON struct {
	Rate float64 `json:"rate"`
	// CPUSeconds that each part used in the step, by side.
	CPUSeconds [2]map[string]float64 `json:"cpu_s"`
}

// schema is the version of the JSON.
const schema = "tandem.bench.pair/1.0"

// WriteJSON writes the result as one JSON object.
func (r *Result) WriteJSON(w io.Writer) error {
	d := document{Schema: schema, CapacityRPS: r.Capacity, Interrupted: r.Interrupted}
	for _, outcome := range r.Outcomes {
		d.Reports = append(d.Reports, outcome.Report)
	}
	for _, step := range r.Steps {
		d.Steps = append(d.Steps, stepJSON{step.Rate, step.CPUSeconds})
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// WriteHTML writes the result as one page with the plots of both sides.
func (r *Result) WriteHTML(w io.Writer) error {
	var named []report.Named
	for _, outcome := range r.Outcomes {
		named = append(named, report.Named{Name: outcome.Report.Name, Report: outcome.Report})
	}
	return report.WriteComparisonHTML(w, named[0].Name+" and "+named[1].Name, named)
}
