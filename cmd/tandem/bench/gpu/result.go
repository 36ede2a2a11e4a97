package gpu

import (
	"slices"
	"time"

	"github.com/tandem-serving/tandem/loadtest/stats"
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

// KVRead is the KV pages of the prompt copied to the host by so many goroutines, as a
// transfer copies them: a chunk at a time, into staging buffers.
type KVRead struct {
	Readers int    `json:"readers"`
	Alone   Figure `json:"alone_gbytes_per_s"`
	// Plain is the same into other memory, a layer at a time.
	Plain Figure `json:"plain_gbytes_per_s"`
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
	alone, plain, beside float64 // bytes per second
	steps                steps
}

// figure is of one value of each round, whose best is the largest.
func figure(rounds []round, value func(round) float64) Figure {
	var all []float64
	for _, r := range rounds {
		all = append(all, value(r))
	}
	return Figure{slices.Max(all), stats.QuantileOf(all, 0.5)}
}

// times are those of steps of all rounds; 0 of none.
func times(rounds []round, of func(round) steps) StepTimes {
	var all []float64
	for _, r := range rounds {
		for _, one := range of(r).each {
			all = append(all, 1e3*one.Seconds())
		}
	}
	return StepTimes{stats.QuantileOf(all, 0), stats.QuantileOf(all, 0.5), stats.QuantileOf(all, 0.99)}
}

// sum makes the figures of the rounds, one at least.
func (r *Result) sum(rounds []round, decoders []*decoder, readers []int) {
	r.Limits = Limits{
		CopyGBytes:         figure(rounds, func(r round) float64 { return r.limits.CopyBytes / 1e9 }),
		ReadGBytes:         figure(rounds, func(r round) float64 { return r.limits.ReadBytes / 1e9 }),
		ProductGFLOPS:      figure(rounds, func(r round) float64 { return r.limits.ProductFLOPs / 1e9 }),
		HostToDeviceGBytes: figure(rounds, func(r round) float64 { return r.limits.HostToDeviceBytes / 1e9 }),
		DeviceToHostGBytes: figure(rounds, func(r round) float64 { return r.limits.DeviceToHostBytes / 1e9 }),
		GraphKernelUs:      least(rounds, func(r round) time.Duration { return r.limits.GraphKernel }),
	}
	rate := func(amount float64) Figure {
		return figure(rounds, func(now round) float64 { return amount / now.prefill.Seconds() })
	}
	r.Prefill.Tokens, r.Prefill.GFLOPS = rate(float64(r.PromptTokens)), rate(r.Prefill.FLOPsComputed/1e9)
	product := r.Limits.ProductGFLOPS.Median
	if by := figure(rounds, func(r round) float64 { return r.limits.CublasLtFLOPs / 1e9 }); by.Best > 0 {
		r.Limits.CublasLtGFLOPS = &by
		product = max(product, by.Median)
	}
	r.Prefill.OfProduct = r.Prefill.GFLOPS.Median / product
	floor := max(r.Limits.CopyGBytes.Median, r.Limits.ReadGBytes.Median)
	for i, d := range decoders {
		r.Decode = append(r.Decode, r.decodeOf(rounds, i, d, floor))
	}
	for i, n := range readers {
		read := KVRead{
			Readers: n,
			Alone:   figure(rounds, func(now round) float64 { return now.reads[i].alone / 1e9 }),
			Plain:   figure(rounds, func(now round) float64 { return now.reads[i].plain / 1e9 }),
			Beside:  figure(rounds, func(now round) float64 { return now.reads[i].beside / 1e9 }),
			StepMs:  times(rounds, func(now round) steps { return now.reads[i].steps }),
		}
		read.DecodeWhileCopying = read.StepMs.P50 / r.Decode[0].StepMs.P50
		r.KVRead = append(r.KVRead, read)
	}
}

// decodeOf makes the figures of one batch; floor is in GB/s.
func (r *Result) decodeOf(rounds []round, i int, d *decoder, floor float64) Decode {
	long := func(now round) steps { return now.decode[i].long }
	made := Decode{
		Batch: d.batch, ContextTokens: d.context, StepBytes: d.bytes(d.context, r.DecodeSteps), StepMs: times(rounds, long),
		Tokens: figure(rounds, func(now round) float64 {
			return float64(d.batch*r.DecodeSteps) / long(now).took.Seconds()
		}),
	}
	made.OfFloor = made.StepBytes / 1e6 / floor / made.StepMs.P50
	var cpu, host []float64
	for _, now := range rounds {
		cpu = append(cpu, 1e6*long(now).cpu.Seconds()/float64(r.DecodeSteps))
		host = append(host, 1e6*long(now).host.Seconds()/float64(r.DecodeSteps))
	}
	made.CPUUs, made.HostUs = stats.QuantileOf(cpu, 0.5), stats.QuantileOf(host, 0.5)
	made.ShortTokens = d.short()
	made.ShortStepMs = times(rounds, func(now round) steps { return now.decode[i].short }).P50
	if more := made.StepMs.P50 - made.ShortStepMs; made.ShortTokens > 0 && more > 0 {
		made.AttentionGBytes = (made.StepBytes - d.bytes(made.ShortTokens, r.DecodeSteps)) / 1e6 / more
		made.AttentionOfFloor = made.AttentionGBytes / floor
	}
	return made
}

// least is figure for durations, in microseconds, whose best is the smallest.
func least(rounds []round, value func(round) time.Duration) Figure {
	var all []float64
	for _, r := range rounds {
		all = append(all, 1e6*value(r).Seconds())
	}
	return Figure{slices.Min(all), stats.QuantileOf(all, 0.5)}
}
