package gpu

import (
	"cmp"
	"slices"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
)

// Figure is the best and the middle round of something.
type Figure struct {
	Best   float64 `json:"best"`
	Median float64 `json:"median"`
}

// Limits are what the device reached in the same rounds.
type Limits struct {
	// CopyGBytes are bytes read and bytes written of a copy within device memory;
	// ReadGBytes are weights that the engine's own product of one row reads.
	CopyGBytes Figure `json:"copy_gbytes_per_s"`
	ReadGBytes Figure `json:"read_gbytes_per_s"`
	// ProductGFLOPS is the engine's own product of as many rows as outputs.
	ProductGFLOPS Figure `json:"own_product_gflops"`
	// CublasLtGFLOPS is the same by cuBLASLt, where that was asked for.
	CublasLtGFLOPS *Figure `json:"cublaslt_product_gflops,omitempty"`
	// Copies of pinned memory, one way at a time.
	HostToDeviceGBytes Figure `json:"host_to_device_gbytes_per_s"`
	DeviceToHostGBytes Figure `json:"device_to_host_gbytes_per_s"`
	// GraphKernelUs is what each of many kernels in a graph takes that do nothing; best
	// is the least.
	GraphKernelUs Figure `json:"graph_kernel_us"`
}

// Prefill is a prompt in chunks.
type Prefill struct {
	Tokens Figure `json:"tokens_per_s"`
	// FLOPs of a prompt, and of them what the engine computes, as in bench/engine.
	FLOPs         float64 `json:"flops"`
	FLOPsComputed float64 `json:"flops_computed"`
	GFLOPS        Figure  `json:"gflops_computed"`
	// OfProduct is the share of the higher of Limits.ProductGFLOPS and CublasLtGFLOPS, all
	// middle rounds.
	OfProduct float64 `json:"of_product"`
}

// Decode is one batch with one context.
type Decode struct {
	Batch         int       `json:"batch"`
	ContextTokens int       `json:"context_tokens"`
	Tokens        Figure    `json:"tokens_per_s"`
	StepMs        StepTimes `json:"step_ms"`
	// StepBytes are the weights and the KV that a step reads, the mean over steps.
	StepBytes float64 `json:"step_bytes"`
	// OfFloor is the time that reading them takes at the higher of copying and reading
	// (middle rounds), as a share of the middle step.
	OfFloor float64 `json:"decode_of_floor"`
	// HostUs is what a step takes beside waiting for the device once it has its work: what
	// the processor has to do. CPUUs is the processor time of the thread that called a step, waiting included where
	// the driver waits by spinning.
	HostUs float64 `json:"host_us_per_step"`
	CPUUs  float64 `json:"cpu_us_per_step"`
	// ShortStepMs is the middle step behind ShortTokens of the same context, and
	// AttentionGBytes what the difference of KV bytes over that of the middle steps comes
	// to; 0 where the context is too short, or the difference lost in noise.
	ShortTokens      int     `json:"short_context_tokens,omitempty"`
	ShortStepMs      float64 `json:"short_step_ms,omitempty"`
	AttentionGBytes  float64 `json:"attention_gbytes_per_s,omitempty"`
	AttentionOfFloor float64 `json:"attention_of_floor,omitempty"`
}

// StepTimes are of single steps of all rounds, in milliseconds.
type StepTimes struct {
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// KVRead is the KV pages of the prompt copied to the host by so many goroutines.
type KVRead struct {
	Readers int    `json:"readers"`
	Alone   Figure `json:"alone_gbytes_per_s"`
	// Beside is the same while the first of Decode's batches decodes, and StepMs its steps;
	// DecodeWhileCopying is the middle one of those over the middle one alone.
	Beside             Figure    `json:"beside_decode_gbytes_per_s"`
	StepMs             StepTimes `json:"step_ms"`
	DecodeWhileCopying float64   `json:"decode_while_copying"`
}

// Start is how long it takes until the first step is done, in seconds. The driver keeps
// compiled kernels: the first start after an update takes longer.
type Start struct {
	LoadSeconds      float64 `json:"load_s"`
	EngineSeconds    float64 `json:"engine_s"`
	FirstStepSeconds float64 `json:"first_step_s"`
	TotalSeconds     float64 `json:"total_s"`
}

// Result is what was measured.
type Result struct {
	Plan
	Device string `json:"device"`
	// DriverCUDA is the CUDA version that the driver supports.
	DriverCUDA      string `json:"driver_cuda"`
	Model           string `json:"model"`
	ArithmeticClass string `json:"arithmetic_class"`
	WeightBytes     int64  `json:"weight_bytes"`
	KVBytes         int64  `json:"kv_bytes"`
	WorkspaceBytes  int64  `json:"workspace_bytes"`

	Limits  Limits   `json:"limits"`
	Prefill Prefill  `json:"prefill"`
	Decode  []Decode `json:"decode"`
	KVRead  []KVRead `json:"kv_read"`
	Start   Start    `json:"start"`
}

// round is one of each.
type round struct {
	limits  cuda.Limits
	prefill time.Duration
	decode  []decodeRound
	reads   []readRound
}

type decodeRound struct{ long, short steps }

type readRound struct {
	alone, beside float64 // bytes per second
	steps         steps
}

// figure is of one value of each round, whose best is the largest.
func figure(rounds []round, value func(round) float64) Figure {
	var all []float64
	for _, r := range rounds {
		all = append(all, value(r))
	}
	return Figure{slices.Max(all), quantile(all, 0.5)}
}

// quantile of values, one at least, which it sorts: the least one that so large a share
// of them does not exceed.
func quantile[T cmp.Ordered](values []T, share float64) T {
	slices.Sort(values)
	at := int(share * float64(len(values)))
	return values[min(at, len(values)-1)]
}

// times are those of steps of all rounds.
func times(rounds []round, of func(round) steps) StepTimes {
	var all []float64
	for _, r := range rounds {
		for _, one := range of(r).each {
			all = append(all, 1e3*one.Seconds())
		}
	}
	if len(all) == 0 {
		return StepTimes{}
	}
	return StepTimes{slices.Min(all), quantile(all, 0.5), quantile(all, 0.99)}
}
