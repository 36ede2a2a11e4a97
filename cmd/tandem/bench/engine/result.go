package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tandem-serving/tandem/cmd/tandem/profile"
	"github.com/tandem-serving/tandem/loadtest/stats"
	"github.com/tandem-serving/tandem/pkg/latency"
)

// Rates are the results of a round.
type Rates struct {
	PrefillTokens float64 `json:"prefill_tokens_per_s"`
	DecodeTokens  float64 `json:"decode_tokens_per_s"`
	PeakGFLOPS    float64 `json:"peak_gflops"`
	ReadGBytes    float64 `json:"read_gbytes_per_s"`
}

// Result is a measurement. Each rate, and each share made of it, is from the round that was
// best in that rate.
type Result struct {
	Plan
	Model   string `json:"model"`
	ISA     string `json:"isa"`
	Threads int    `json:"threads"`
	// ChunkTokens is the largest part of a prompt in one step.
	ChunkTokens int   `json:"chunk_tokens"`
	WeightBytes int64 `json:"weight_bytes"` // packed

	Rates
	// FLOPs of a prompt are 2 · (weights of the linear layers) · tokens, the causal half
	// of attention's products and one row of the head. Computed leaves out what the
	// engine skips: the last layer after its keys and values, except for the row that
	// becomes logits.
	PrefillFLOPs          float64 `json:"prefill_flops"`
	PrefillFLOPsComputed  float64 `json:"prefill_flops_computed"`
	PrefillGFLOPS         float64 `json:"prefill_gflops"`
	PrefillGFLOPSComputed float64 `json:"prefill_gflops_computed"`
	PrefillOfPeak         float64 `json:"prefill_of_peak"`
	PrefillOfPeakComputed float64 `json:"prefill_of_peak_computed"`
	// DecodeStepBytes are the weights and the KV that a step reads, the mean over steps.
	DecodeStepBytes float64 `json:"decode_step_bytes"`
	DecodeGBytes    float64 `json:"decode_gbytes_per_s"`
	// DecodeOfRead is the median over pairs: the bytes that a window of decode reads, as a
	// share of plain reading just before and after it. DecodeOfBestRead compares the best
	// rounds of both.
	DecodeOfRead     float64 `json:"decode_of_read"`
	DecodePairs      int     `json:"decode_pairs"`
	DecodeOfBestRead float64 `json:"decode_of_best_read"`
	// DecodeStepMs are single steps, of all rounds.
	DecodeStepMs StepTimes `json:"decode_step_ms"`

	// Median is the middle round of each rate; Spread by how much it is below the best,
	// as a share of that.
	Median Rates `json:"median"`
	Spread Rates `json:"spread"`

	BarrierNs float64 `json:"barrier_ns"`
	// Allocations of a decode step on Go's heap, in the best round.
	AllocsPerStep     float64 `json:"allocs_per_step"`
	AllocBytesPerStep float64 `json:"alloc_bytes_per_step"`

	// Valid is true if the machine was quiet while the limits were measured. Reason says why
	// not.
	Valid  bool   `json:"valid"`
	Reason string `json:"reason,omitempty"`
}

// StepTimes are the shortest step and the middle one, in milliseconds.
type StepTimes struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
}

// sum computes the result of at least one round; after holds the limits measured after the
// last.
func (r *Result) sum(rounds []round, after latency.Limits) {
	var prefill, decode, peak, read, steps, shares, allocs, allocd []float64
	var measured []latency.Limits
	for _, now := range rounds {
		var total time.Duration
		for _, d := range now.steps {
			total += d
			steps = append(steps, d.Seconds()*1e3)
		}
		prefill = append(prefill, float64(r.PromptTokens)/now.prefill.Seconds())
		decode = append(decode, float64(r.Batch*r.DecodeSteps)/total.Seconds())
		allocs = append(allocs, float64(now.allocs)/float64(r.DecodeSteps))
		allocd = append(allocd, float64(now.allocd)/float64(r.DecodeSteps))
		measured = append(measured, now.limits)
		shares = append(shares, ofRead(now.windows, r.DecodeStepBytes)...)
	}
	measured = append(measured, after)
	for _, l := range measured {
		peak, read = append(peak, l.FLOPsPerSecond/1e9), append(read, l.ReadBytesPerSecond/1e9)
	}
	r.PrefillTokens, r.Median.PrefillTokens, r.Spread.PrefillTokens = bestOf(prefill)
	r.DecodeTokens, r.Median.DecodeTokens, r.Spread.DecodeTokens = bestOf(decode)
	r.PeakGFLOPS, r.Median.PeakGFLOPS, r.Spread.PeakGFLOPS = bestOf(peak)
	r.ReadGBytes, r.Median.ReadGBytes, r.Spread.ReadGBytes = bestOf(read)

	prompts := r.PrefillTokens / float64(r.PromptTokens) / 1e9
	r.PrefillGFLOPS, r.PrefillGFLOPSComputed = r.PrefillFLOPs*prompts, r.PrefillFLOPsComputed*prompts
	r.PrefillOfPeak, r.PrefillOfPeakComputed = r.PrefillGFLOPS/r.PeakGFLOPS, r.PrefillGFLOPSComputed/r.PeakGFLOPS
	r.DecodeGBytes = r.DecodeStepBytes * r.DecodeTokens / float64(r.Batch) / 1e9
	r.DecodeOfRead, r.DecodePairs = stats.Median(shares), len(shares)
	r.DecodeOfBestRead = r.DecodeGBytes / r.ReadGBytes

	r.DecodeStepMs = StepTimes{slices.Min(steps), stats.QuantileOf(steps, 0.5)}
	r.AllocsPerStep, r.AllocBytesPerStep = slices.Min(allocs), slices.Min(allocd)
	r.judge(measured)
}

// bestOf returns the largest rate, the median, and how far the median is below the largest.
func bestOf(rates []float64) (best, median, spread float64) {
	best, median = slices.Max(rates), stats.QuantileOf(rates, 0.5)
	return best, median, 1 - median/best
}

// The least that two cores reach whose best instruction is vdpbf16ps at its full rate.
const (
	leastPeakGFLOPS = 900
	leastReadGBytes = 36
)

// judge decides whether the machine was quiet.
func (r *Result) judge(measured []latency.Limits) {
	var reasons []string
	if !profile.Limits(measured...).Valid {
		busy := 0
		for _, l := range measured {
			if !l.Valid {
				busy++
			}
		}
		reasons = append(reasons, fmt.Sprintf("the machine was disturbed: something else used it for more than a tenth of the time in %d of %d measurements of the limits; the peak fell to %.0f%% and reads to %.0f%% of the best",
			busy, len(measured), 100*least(measured, func(l latency.Limits) float64 { return l.FLOPsPerSecond }), 100*least(measured, func(l latency.Limits) float64 { return l.ReadBytesPerSecond })))
	}
	if r.ISA == "avx512bf16" && r.Threads == 2 && (r.PeakGFLOPS < leastPeakGFLOPS || r.ReadGBytes < leastReadGBytes) {
		reasons = append(reasons, fmt.Sprintf("two cores with AVX512-BF16 reach %d GFLOP/s and read %d GB/s when nothing disturbs them", leastPeakGFLOPS, leastReadGBytes))
	}
	r.Valid, r.Reason = len(reasons) == 0, strings.Join(reasons, "; ")
}

// least is the smallest value of a rate as a share of the largest.
func least(measured []latency.Limits, rate func(latency.Limits) float64) float64 {
	by := func(a, b latency.Limits) int { return cmp.Compare(rate(a), rate(b)) }
	return rate(slices.MinFunc(measured, by)) / rate(slices.MaxFunc(measured, by))
}
