// Package tail says which stage a tail came from, by joining client records with the
// server's latency budgets.
//
// Anything may import it. It starts no goroutines, reads no clock and does no I/O.
package tail

import "github.com/tandem-serving/tandem/loadtest/measure"

// Stage names a part of a request's time.
type Stage string

// Stages in order. Dispatch and Other are the client's: from the due time until the
// transport had the request, and what no stage covers, such as the network. The rest are
// the server's, as in proto Timings.
const (
	Dispatch        Stage = "dispatch"
	Tokenize        Stage = "tokenize"
	Retried         Stage = "retried"
	Queue           Stage = "queue"
	Decide          Stage = "decide"
	Reserve         Stage = "reserve"
	Prefill         Stage = "prefill"
	TransferExposed Stage = "transfer_exposed"
	Decode          Stage = "decode"
	Other           Stage = "other"
)

// Explanation is where the time of the tail went. Its JSON is public.
type Explanation struct {
	// Joined requests have a server's budget; Completed are all completed ones.
	Joined    int `json:"joined"`
	Completed int `json:"completed"`
	// Breakdowns of TTFT and E2E at p50, p90, p99 and p99.9, as far as there are enough
	// samples.
	Breakdowns []Breakdown `json:"breakdowns"`
	// Share of E2E that no named stage covers: its mean, median and p99 over requests.
	OtherShareMean float64 `json:"other_share_mean"`
	OtherShareP50  float64 `json:"other_share_p50"`
	OtherShareP99  float64 `json:"other_share_p99"`
	// Slowest requests by TTFT and by E2E, slowest first.
	Slowest []Waterfall `json:"slowest"`
	// Amdahl is the percentiles if one stage were faster.
	Amdahl []WhatIf `json:"amdahl"`
}

// Breakdown is one percentile's time by stage. The stages add up to it.
type Breakdown struct {
	Latency measure.Latency `json:"latency"`
	// Percentile as in measure.Percentiles: "p99", "p999".
	Percentile string `json:"percentile"`
	// Milliseconds is the percentile, Stages its breakdown: the mean over the Requests
	// nearest to it, scaled to add up.
	Milliseconds float64           `json:"ms"`
	Stages       map[Stage]float64 `json:"stages_ms"`
	Requests     int               `json:"requests"`
	// Text is the same in one line: "p99 TTFT 812 ms = queue 520 + prefill 220 + …".
	Text string `json:"text"`
}

// Waterfall is one slow request, stage by stage.
type Waterfall struct {
	Index int    `json:"index"`
	ID    string `json:"id"`
	// By is the latency it was selected for.
	By measure.Latency `json:"by"`
	// DueMs since the start of the run.
	DueMs  float64 `json:"due_ms"`
	TTFTMs float64 `json:"ttft_ms"`
	E2EMs  float64 `json:"e2e_ms"`
	Tokens int     `json:"tokens"`
	// Spans in order, without gaps.
	Spans []Span `json:"spans"`
	// Prefill and Decode are the workers that served it.
	Prefill string `json:"prefill,omitempty"`
	Decode  string `json:"decode,omitempty"`
}

// Span is one stage of a request. Milliseconds since it was due.
type Span struct {
	Stage  Stage   `json:"stage"`
	FromMs float64 `json:"from_ms"`
	ToMs   float64 `json:"to_ms"`
}

// WhatIf is Amdahl's law for one stage: each request's time is recomputed with the stage
// Speedup times as fast, and the percentile taken again. Everything else is unchanged,
// queues included, although a real server's queues would shrink too.
type WhatIf struct {
	Latency    measure.Latency `json:"latency"`
	Percentile string          `json:"percentile"`
	Stage      Stage           `json:"stage"`
	// Speedup is 2, or 0 for a stage that takes no time.
	Speedup float64 `json:"speedup"`
	NowMs   float64 `json:"now_ms"`
	ThenMs  float64 `json:"then_ms"`
}
