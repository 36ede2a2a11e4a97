// Package measure computes the figures of a run from its records: latencies with
// confidence intervals, rates, goodput, and whether the server kept up.
//
// Anything may import it. It starts no goroutines, reads no clock and does no I/O.
package measure

import (
	"math"
	"time"
)

// Summary is the figures of one run. Its JSON is public: keys are only added.
type Summary struct {
	// Requests due in the measured window; the next six figures add up to it.
	Requests  int `json:"requests"`
	Completed int `json:"completed"`
	Rejected  int `json:"rejected"`
	Errors    int `json:"errors"`
	TimedOut  int `json:"timed_out"`
	Cancelled int `json:"cancelled"`
	Unsent    int `json:"unsent"`
	// TenantLimited is how many of Rejected a Tandem router refused for their tenant's limit.
	TenantLimited int `json:"tenant_limited,omitempty"`
	// Codes counts uncompleted requests by the server's code.
	Codes map[string]int `json:"codes,omitempty"`
	// Failures adds the messages, most frequent first.
	Failures []Failure `json:"failures,omitempty"`

	// OfferedRPS is the rate of due requests, CompletedRPS that of completions in the
	// window, whenever the requests were due: the server's throughput even if it fell
	// behind.
	OfferedRPS   float64 `json:"offered_rps"`
	CompletedRPS float64 `json:"completed_rps"`
	// Token rates: of prompts whose first token arrived in the window, and of tokens that
	// arrived in it.
	PromptTokensPerS float64 `json:"prompt_tokens_per_s"`
	OutputTokensPerS float64 `json:"output_tokens_per_s"`
	// Means over completed requests.
	PromptTokensMean float64 `json:"prompt_tokens_mean"`
	OutputTokensMean float64 `json:"output_tokens_mean"`
	CachedTokensMean float64 `json:"cached_tokens_mean"`

	// Latencies of the requests that have them, however they ended; TPOT and E2E only of
	// completed ones. See Definitions. Never nil.
	TTFT           *Distribution `json:"ttft_ms"`
	TTFTSent       *Distribution `json:"ttft_sent_ms"`
	SecondToken    *Distribution `json:"second_token_ms"`
	ITL            *Distribution `json:"itl_ms"`
	ITLMessage     *Distribution `json:"itl_message_ms"`
	TPOT           *Distribution `json:"tpot_ms"`
	E2E            *Distribution `json:"e2e_ms"`
	E2ESent        *Distribution `json:"e2e_sent_ms"`
	NormalizedE2E  *Distribution `json:"normalized_e2e_ms"`
	DispatchDelay  *Distribution `json:"dispatch_delay_ms"`
	AdmissionDelay *Distribution `json:"admission_delay_ms"`

	// SLO as text, empty if there are none but those of classes.
	SLO string `json:"slo,omitempty"`
	// Goodput is requests per second completed in the window that met every bound of the
	// SLO; CompletedRPS without an SLO.
	Goodput float64 `json:"goodput_rps"`
	// SLOAttainment is the share that met the SLO, of requests offered, admitted and
	// completed. A request cancelled at the end of the run counts only if it had already
	// broken a bound.
	SLOAttainment          float64 `json:"slo_attainment"`
	SLOAttainmentAdmitted  float64 `json:"slo_attainment_admitted"`
	SLOAttainmentCompleted float64 `json:"slo_attainment_completed"`
	// RateCI is the 95% confidence intervals of completed_rps, output_tokens_per_s,
	// goodput_rps and slo_attainment. Few tokens and few requests give none of the tokens and
	// of the attainment.
	RateCI map[string][2]float64 `json:"rate_ci,omitempty"`
	// Objectives are the SLO's terms with their measurements.
	Objectives []Objective `json:"objectives,omitempty"`
	// Classes are the figures per class, if there are several.
	Classes map[string]*Summary `json:"classes,omitempty"`

	// Verdict is STABLE, BACKLOGGED or OVERLOADED, or NONE if the client's side was the
	// limit or the run too short; Reason explains it.
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"verdict_reason"`
	// BacklogSlope is the growth of the number of requests due but not ended, requests
	// per second, with its confidence interval.
	BacklogSlope   float64    `json:"backlog_slope_rps"`
	BacklogSlopeCI [2]float64 `json:"backlog_slope_ci_rps"`
}

// TenantShare is the share of requests refused for their tenant's limit, if that is what kept
// most of the others from completing; otherwise 0. The limit is then what the run says, and
// not what the client or the server can do.
func (s *Summary) TenantShare() float64 {
	const least = 0.01 // fewer are no news
	n, all := float64(s.TenantLimited), float64(s.Requests)
	if n <= least*all || 2*s.TenantLimited <= s.Requests-s.Completed {
		return 0
	}
	return n / all
}

// HasSLO reports whether there are objectives, be it only of classes.
func (s *Summary) HasSLO() bool { return s.SLO != "" || len(s.Objectives) > 0 }

// NoneEnded reports whether requests were completed, but all of them after the window.
func (s *Summary) NoneEnded() bool { return s.Completed > 0 && s.CompletedRPS == 0 }

// windowTimes is how many of the longest answers a window lasts that says something: most of
// it is then not the first answers'.
const windowTimes = 4

// WindowNeeded is how long the window would have to be for the answers seen, in whole
// seconds; 0 if none was completed.
func (s *Summary) WindowNeeded() time.Duration {
	if s.E2E == nil || s.E2E.Max == nil {
		return 0
	}
	return time.Duration(math.Ceil(windowTimes**s.E2E.Max/1000)) * time.Second
}

// Failure counts requests that ended with one code, with the first one's message.
type Failure struct {
	Code    string `json:"code"`
	Count   int    `json:"count"`
	Example string `json:"example,omitempty"`
}

// Latency names a latency. Names are JSON keys and end in the unit.
type Latency string

// Latencies. See Definitions.
const (
	TTFT           Latency = "ttft_ms"            // due to first token
	TTFTSent       Latency = "ttft_sent_ms"       // sent to first token
	SecondToken    Latency = "second_token_ms"    // first to second token
	ITL            Latency = "itl_ms"             // between tokens; tokens of one message have 0 between them
	ITLMessage     Latency = "itl_message_ms"     // between messages with tokens
	TPOT           Latency = "tpot_ms"            // (last - first token) / (tokens - 1)
	E2E            Latency = "e2e_ms"             // due to last token
	E2ESent        Latency = "e2e_sent_ms"        // sent to last token
	NormalizedE2E  Latency = "normalized_e2e_ms"  // E2E / tokens
	DispatchDelay  Latency = "dispatch_delay_ms"  // due to dispatched: the client's own lateness
	AdmissionDelay Latency = "admission_delay_ms" // sent to admitted
)

// Distribution of one latency over requests or gaps. Milliseconds.
type Distribution struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	// A percentile is nil if as many samples could not carry it even if they were
	// independent; Needs then has its name.
	P50  *float64 `json:"p50"`
	P90  *float64 `json:"p90"`
	P95  *float64 `json:"p95"`
	P99  *float64 `json:"p99"`
	P999 *float64 `json:"p999"`
	Max  *float64 `json:"max"`
	// CI is the 95% confidence interval of percentiles, by name. One that is given
	// without is what this run saw, but says little of the next: too few of its
	// samples are independent, as when one stall made the whole tail. If one has no
	// interval, neither have the higher ones.
	CI map[string][2]float64 `json:"ci,omitempty"`
	// Needs is how many samples each percentile without an interval needs for one: an
	// estimate if requests resemble their neighbours, and at least that of the lower ones.
	Needs map[string]int64 `json:"needs,omitempty"`
	// Effective is the number of independent samples that Count ones are worth, by
	// percentile: requests of one queue resemble their neighbours.
	Effective map[string]float64 `json:"effective,omitempty"`
	// HDR is the whole histogram, microseconds, in HdrHistogram's V2 compressed encoding,
	// base64.
	HDR string `json:"hdr,omitempty"`
}

// Objective is one term of an SLO with its measurement.
type Objective struct {
	// Term is its text: "ttft:p99<500ms"; Class the only class that it is for, empty:
	// all that have no SLO of their own.
	Term  string `json:"term"`
	Class string `json:"class,omitempty"`
	// Measured is that percentile in milliseconds over all requests that tell it, those
	// that the server did not serve taken as endless; nil if the sample cannot carry
	// it, and Why says why not. CI is its confidence interval, nil if there is none.
	Measured *float64    `json:"measured_ms"`
	CI       *[2]float64 `json:"ci_ms,omitempty"`
	Why      string      `json:"why,omitempty"`
	// Missed: there is no figure, yet the percentile is over the bound, since it falls
	// on requests that were not served or had waited longer than it when the run ended.
	// Neither Met nor Missed without a figure: nothing can be told.
	Missed bool `json:"missed,omitempty"`
	// Met: the percentile is under the bound. Confirmed: so is the whole of its
	// confidence interval. NeedsRequests is how many an interval takes, if there are too
	// few for one; 0 otherwise, and for itl, which has many samples a request.
	Met           bool  `json:"met"`
	Confirmed     bool  `json:"confirmed"`
	NeedsRequests int64 `json:"needs_requests,omitempty"`
}

// Parsed is the term; false: its text, as of a report that was read, is none.
func (o *Objective) Parsed() (Term, bool) {
	t, err := parseTerm(o.Term)
	return t, err == nil
}

// Verdict says whether a server kept up with an offered rate.
type Verdict string

// Verdicts.
const (
	// None: inconclusive.
	None Verdict = "NONE"
	// Stable: the backlog did not grow.
	Stable Verdict = "STABLE"
	// Backlogged: it grew, but slowly or because of a burst.
	Backlogged Verdict = "BACKLOGGED"
	// Overloaded: it grew in step with time, or the server refused or failed requests.
	Overloaded Verdict = "OVERLOADED"
)
