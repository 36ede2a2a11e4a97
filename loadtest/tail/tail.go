// Package tail says which stage a tail came from: it joins what a client saw with
// the server's latency budget of the same request.
//
// Anything may import it. It starts no goroutines, reads no clock and does no I/O.
package tail

import "github.com/tandem-serving/tandem/loadtest/measure"

// Stage names a part of a request's time.
type Stage string

// The stages, in the order in which a request passes them. Dispatch and Other are
// the client's: from when the request was due until its last byte was handed to
// the transport, and what no stage covers: the network, and what either side did
// outside of its clock. The rest are the server's, as in proto Timings.
const (
	Dispatch        Stage = "dispatch"
	Tokenize        Stage = "tokenize"
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
	// Joined requests have a server's budget, Completed is all that completed.
	Joined    int `json:"joined"`
	Completed int `json:"completed"`
	// Breakdowns, for TTFT and E2E, at p50, p90, p99 and p99.9 as far as the sample
	// carries them.
	Breakdowns []Breakdown `json:"breakdowns"`
	// OtherShareMean and the others are the share of E2E that no named stage covers:
	// mean over all, and the median and p99 over requests.
	OtherShareMean float64 `json:"other_share_mean"`
	OtherShareP50  float64 `json:"other_share_p50"`
	OtherShareP99  float64 `json:"other_share_p99"`
	// Slowest requests, by TTFT and by E2E, slowest first.
	Slowest []Waterfall `json:"slowest"`
	// Amdahl is what percentiles would be if one stage were faster.
	Amdahl []WhatIf `json:"amdahl"`
}

// Breakdown is one percentile's time by stage: the stages add up to it.
type Breakdown struct {
	Latency measure.Latency `json:"latency"`
	// Percentile is its name as in measure.Percentiles: "p99", "p999".
	Percentile string `json:"percentile"`
	// Milliseconds is the percentile, Stages what it consists of: the mean over the
	// Requests nearest to it, scaled to add up.
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
	// By is the latency that it was picked for.
	By measure.Latency `json:"by"`
	// DueMs is when it was due, since the start of the run.
	DueMs  float64 `json:"due_ms"`
	TTFTMs float64 `json:"ttft_ms"`
	E2EMs  float64 `json:"e2e_ms"`
	Tokens int     `json:"tokens"`
	// Spans in order; each begins where the one before ends.
	Spans []Span `json:"spans"`
	// Prefill and Decode are the workers that served it.
	Prefill string `json:"prefill,omitempty"`
	Decode  string `json:"decode,omitempty"`
}

// Span is one stage of one request. Milliseconds since it was due.
type Span struct {
	Stage  Stage   `json:"stage"`
	FromMs float64 `json:"from_ms"`
	ToMs   float64 `json:"to_ms"`
}

// WhatIf is Amdahl's law for one stage: every request's time is computed again with
// the stage Speedup times as fast, and the percentile taken again. All else stays
// as it was, queues included; a real server's queues would become shorter too.
type WhatIf struct {
	Latency    measure.Latency `json:"latency"`
	Percentile string          `json:"percentile"`
	Stage      Stage           `json:"stage"`
	// Speedup is 2, or 0 for a stage that takes no time at all.
	Speedup float64 `json:"speedup"`
	NowMs   float64 `json:"now_ms"`
	ThenMs  float64 `json:"then_ms"`
}
