// Package report writes what was measured: a table, JSON, CSV, an HDR log and a
// page of HTML. The JSON is the one that all others are made from.
//
// Anything may import it. It starts no goroutines.
package report

import (
	"time"

	"github.com/tandem-serving/tandem/loadtest/client"
	"github.com/tandem-serving/tandem/loadtest/measure"
	"github.com/tandem-serving/tandem/loadtest/search"
	"github.com/tandem-serving/tandem/loadtest/tail"
)

// Schema is the version of the JSON. A reader takes any with the same number before
// the dot.
const Schema = "tandem.bench.serve/1.0"

// Report is one invocation of a benchmark. Its JSON is public: keys are only added.
// The figures stand at the top level, those of one step of a search too.
type Report struct {
	Schema string `json:"schema"`
	// Name is what the user calls it; empty: nothing.
	Name string `json:"name,omitempty"`
	// Version is of the tandem that measured, Command its arguments, without secrets.
	Version string    `json:"version"`
	Command []string  `json:"command"`
	Began   time.Time `json:"began"`
	// Host is where the client ran.
	Host   Host               `json:"host"`
	Target client.Description `json:"target"`
	// Workload says in one line each what was sent and when.
	Workload []string `json:"workload"`

	// Figures of the only run, or of the step of a search that stands for it: the
	// highest rate that passed, otherwise the first.
	Figures
	// Search is set if rates were searched.
	Search *search.Result `json:"search,omitempty"`
	// Runs are all steps of a search with their figures, in order of rate.
	Runs []Figures `json:"runs,omitempty"`
	// Interrupted: the user ended it early.
	Interrupted bool `json:"interrupted,omitempty"`
	// Warnings are what a reader of the figures must know.
	Warnings []string `json:"warnings,omitempty"`
}

// Figures are one run's.
type Figures struct {
	// Rate was offered, requests a second, 0 if the workload has none; Concurrency
	// was kept, 0 with open loop.
	Rate        float64 `json:"rate,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	// WindowS is the measured window, seconds, WarmupS what was left out before it.
	WindowS float64 `json:"window_s"`
	WarmupS float64 `json:"warmup_s"`
	measure.Summary
	// Client is what the generator measured of itself.
	Client Client `json:"client"`
	// Tail is where the time went; nil if the server sends no budget.
	Tail *tail.Explanation `json:"tail,omitempty"`
	// Series is the run over time, Curves its percentile curves, for plots.
	Series []Point              `json:"series,omitempty"`
	Curves map[string][]CurveXY `json:"curves,omitempty"`
}

// Client is record.Client as JSON.
type Client struct {
	Cores      int     `json:"cores"`
	CPUSeconds float64 `json:"cpu_s"`
	CPUShare   float64 `json:"cpu_share"` // of its cores, 0 to 1
	// OthersShare is what other processes used of them, the server too if it ran on the
	// same machine; nil if the system does not say.
	OthersShare  *float64 `json:"others_share,omitempty"`
	GCPauseMaxMs float64  `json:"gc_pause_max_ms"`
	InFlightMax  int      `json:"in_flight_max"`
	// DispatchDelayP99 is nil if so few requests cannot carry it.
	DispatchDelayP99 *float64 `json:"dispatch_delay_p99_ms"`
	Bottleneck       string   `json:"bottleneck,omitempty"`
}

// Host is a machine, as far as figures depend on it.
type Host struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	OS     string `json:"os"`
}

// Point is one second of a run; of a run of more than half an hour, as many whole
// seconds as lie between two points.
type Point struct {
	// S is the second's start.
	S float64 `json:"s"`
	// Due, Admitted, Ended and Failed are requests of this second, Backlog those due
	// but not ended at its end, Tokens those that came.
	Due      int   `json:"due"`
	Admitted int   `json:"admitted"`
	Ended    int   `json:"ended"`
	Failed   int   `json:"failed"`
	Backlog  int   `json:"backlog"`
	Tokens   int64 `json:"tokens"`
	// TTFT of the requests due in it, milliseconds; nil if no token came.
	TTFTP50 *float64 `json:"ttft_p50_ms"`
	TTFTMax *float64 `json:"ttft_max_ms"`
	// TPOT of those that were completed; nil if none has one.
	TPOTP50 *float64 `json:"tpot_p50_ms"`
	TPOTMax *float64 `json:"tpot_max_ms"`
}

// CurveXY is a point of a percentile curve: Quantile 0 to 1, milliseconds.
type CurveXY struct {
	Quantile float64 `json:"q"`
	Ms       float64 `json:"ms"`
}
