// Package report writes results as a table, JSON, CSV, an HDR log and an HTML page. All
// others can be made from the JSON.
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

// Schema is the version of the JSON. A reader accepts any with the same major number.
const Schema = "tandem.bench.serve/1.0"

// Report is the result of one benchmark command. Its JSON is public: keys are only added.
// Figures are at the top level, including those of a search's representative step.
type Report struct {
	Schema string `json:"schema"`
	// Name given by the user, if any.
	Name string `json:"name,omitempty"`
	// Version of the tandem that measured, and its Command without secrets.
	Version string    `json:"version"`
	Command []string  `json:"command"`
	Began   time.Time `json:"began"`
	// Host of the client.
	Host   Host               `json:"host"`
	Target client.Description `json:"target"`
	// Workload describes the load, one item per line.
	Workload []string `json:"workload"`

	// Figures of the only run, or of the representative step of a search: its MaxRate,
	// otherwise the lowest rate that is decided, otherwise the first.
	Figures
	// Search result, if rates were searched.
	Search *search.Result `json:"search,omitempty"`
	// Runs are the steps of a search with their figures, by rate.
	Runs []Figures `json:"runs,omitempty"`
	// Planned is the rate that the target was planned for; nil: none is known.
	Planned *float64 `json:"planned_rps,omitempty"`
	// Simulation is set if the runs were simulated.
	*Simulation
	// Interrupted: the user ended it early.
	Interrupted bool `json:"interrupted,omitempty"`
	// Warnings for readers of the figures.
	Warnings []string `json:"warnings,omitempty"`
}

// Simulation is what it took to simulate all runs.
type Simulation struct {
	// VirtualS is the length of the runs by the simulated clock, WallS by the real one,
	// seconds.
	VirtualS float64 `json:"virtual_s"`
	WallS    float64 `json:"wall_s"`
	// RequestsPerWallS is requests simulated per second of real time.
	RequestsPerWallS float64 `json:"requests_per_wall_s"`
	// Workers of the cluster at the start.
	Workers int `json:"workers"`
	// WorkerHours is for how long workers ran, by pool, hours.
	WorkerHours map[string]float64 `json:"worker_hours,omitempty"`
	// Sizes are the changes of how many workers a pool was to have, in the last run.
	Sizes []PoolSize `json:"sizes,omitempty"`
}

// PoolSize is how many workers a pool is to have from a time on, seconds since the load began.
type PoolSize struct {
	AtS     float64 `json:"at_s"`
	Pool    string  `json:"pool"`
	Workers int     `json:"workers"`
}

// Figures of one run.
type Figures struct {
	// Rate offered, requests per second, 0 if the workload has none; Concurrency kept in
	// flight, 0 in open loop.
	Rate        float64 `json:"rate,omitempty"`
	Concurrency int     `json:"concurrency,omitempty"`
	// WindowS is the measured window, WarmupS the warm-up before it, seconds.
	WindowS float64 `json:"window_s"`
	WarmupS float64 `json:"warmup_s"`
	measure.Summary
	// Client is what the generator measured about itself; no Cores if the run was
	// simulated.
	Client Client `json:"client"`
	// Tail explains the tail; nil if the server sends no budget.
	Tail *tail.Explanation `json:"tail,omitempty"`
	// Series over time and percentile Curves, for plots.
	Series []Point              `json:"series,omitempty"`
	Curves map[string][]CurveXY `json:"curves,omitempty"`
}

// Limit says why the client's side limited the run; empty if it did not, or if the tenant's
// limit on the router came first.
func (f *Figures) Limit() string {
	if f.TenantShare() > 0 {
		return ""
	}
	return f.Client.Bottleneck
}

// Client is record.Client as JSON.
type Client struct {
	Cores      int     `json:"cores"`
	CPUSeconds float64 `json:"cpu_s"`
	// CPUShare is the share of its cores that it used in the measured window, 0 to 1, and OthersShare that
	// used by other processes, including a server on the same machine; nil if unknown.
	CPUShare     float64  `json:"cpu_share"`
	OthersShare  *float64 `json:"others_share,omitempty"`
	GCPauseMaxMs float64  `json:"gc_pause_max_ms"`
	InFlightMax  int      `json:"in_flight_max"`
	// DispatchDelayP99 is nil if there are too few requests.
	DispatchDelayP99 *float64 `json:"dispatch_delay_p99_ms"`
	Bottleneck       string   `json:"bottleneck,omitempty"`
}

// Host is a machine, as far as it affects figures.
type Host struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"`
	OS     string `json:"os"`
}

// Point is one second of a run, or several whole seconds if the run exceeds half an hour.
type Point struct {
	// S is its start, seconds.
	S float64 `json:"s"`
	// Requests due, admitted, ended and failed in it, Backlog of due but not ended
	// requests at its end, and Tokens received.
	Due      int   `json:"due"`
	Admitted int   `json:"admitted"`
	Ended    int   `json:"ended"`
	Failed   int   `json:"failed"`
	Backlog  int   `json:"backlog"`
	Tokens   int64 `json:"tokens"`
	// TTFT of the requests due in it, milliseconds; nil without any.
	TTFTP50 *float64 `json:"ttft_p50_ms"`
	TTFTMax *float64 `json:"ttft_max_ms"`
	// TPOT of the completed ones; nil without any.
	TPOTP50 *float64 `json:"tpot_p50_ms"`
	TPOTMax *float64 `json:"tpot_max_ms"`
}

// CurveXY is a point of a percentile curve: quantile 0 to 1, milliseconds.
type CurveXY struct {
	Quantile float64 `json:"q"`
	Ms       float64 `json:"ms"`
}
