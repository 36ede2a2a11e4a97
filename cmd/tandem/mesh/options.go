package mesh

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/latency"
	"github.com/tandem-serving/tandem/services/decode"
	"github.com/tandem-serving/tandem/services/prefill"
	"github.com/tandem-serving/tandem/services/router"
)

// Engines that can be asked for. EngineAuto becomes EngineCUDA or EngineCPU, as
// EngineOptions.Device and the machine have it.
const (
	EngineAuto      = "auto"
	EngineCPU       = "cpu"
	EngineCUDA      = "cuda"
	EngineSimulated = "simulated"
)

// Options are what a process is told, whatever parts it runs.
type Options struct {
	// Model is the model's directory; empty: the bundled model.
	Model string
	// ModelName is what requests call it; empty: the directory's name.
	ModelName string
	// ModelAliases are further names of the model, or patterns of path.Match.
	ModelAliases []string
	// ChatTemplate is a file with a chat template; empty: the model's own.
	ChatTemplate string
	// ContextTokens is the most tokens of prompt and answer together; 0: as many as
	// the model has.
	ContextTokens int
	// Etcd and NATS are the servers' addresses.
	Etcd, NATS []string
	// Metrics and HTTP are where those are served; empty: nowhere.
	Metrics, HTTP string
	// MetricsVLLM shows metrics a second time by the names of vLLM.
	MetricsVLLM bool
	// Trace options.
	Trace TraceOptions
	// Engine options.
	Engine EngineOptions
	// StopTimeout bounds how long running requests may take to finish when the
	// process is asked to stop.
	StopTimeout time.Duration
	// StartTimeout bounds how long etcd may take to answer at the start.
	StartTimeout time.Duration
	// LeaseTTL is how long etcd keeps a worker's record without hearing of it.
	LeaseTTL time.Duration
	// KV options.
	KV KVOptions
	// Store options.
	Store StoreOptions

	Router  router.Config
	Prefill prefill.Config
	Decode  decode.Config
}

// EngineOptions say what computes.
type EngineOptions struct {
	// Name is one of the engines above.
	Name string
	// Device is where a model runs: DeviceAuto, DeviceCPU or a GPU, such as "cuda:0".
	Device string
	// CUDADriver is the file of the CUDA driver's library; empty: the system's.
	CUDADriver string
	// CUDAProducts says what computes the CUDA engine's products of many rows.
	CUDAProducts cuda.Products
	// CublasLt is the file of cuBLASLt, or a folder that has it; empty: the system's.
	CublasLt string
	// GPUMemory is the device memory that all of the process may take. Auto: nine
	// tenths of what is free.
	GPUMemory ByteSize
	// Threads computes; 0: as many as the process may use.
	Threads int
	// CPUWeights is the type of the CPU engine's weights.
	CPUWeights cpu.WeightType
	// CPUKV is the type of the CPU engine's keys and values in memory.
	CPUKV cpu.KVType
	// CPUWeightCache is a folder that keeps them as they are in memory; empty: none.
	CPUWeightCache string
	// KVMemory is the memory for KV blocks of each worker. Auto: on the CPU 1 GiB, less
	// where that is not there, and a full context of the model in any case; on a GPU an
	// equal share of what weights and activations leave of GPUMemory.
	KVMemory ByteSize
	// BlockTokens is the number of tokens in a block.
	BlockTokens int
	// MaxBatchTokens and MaxSequences bound a step.
	MaxBatchTokens, MaxSequences int
	// Profile is a file of measured step times, which the simulated engine obeys;
	// empty: Simulated says. Of the CPU engine it gives the limits.
	Profile string
	// Simulated is the step-time model of the simulated engine.
	Simulated latency.Model
	// SimulatedDevice says how it differs from a perfect one.
	SimulatedDevice SimulatedOptions
	// GPUCopyRate is the most that is copied between the host and KV pages of a GPU while a
	// step of it runs, bytes a second; 0: without a bound.
	GPUCopyRate int64
	// CUDAWeights is the type of the CUDA engine's weights, CUDAKV that of its keys and
	// values; empty: bf16.
	CUDAWeights cuda.WeightType
	CUDAKV      cuda.KVType
	// NVML is the file of NVIDIA's management library; empty: the system's.
	NVML string
}

// RegisterFlags adds the flags of everything but the addresses, with defaults
// that work.
func (o *Options) RegisterFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.StopTimeout, "stop-timeout", 30*time.Second, "how long running requests may take to finish when the process is asked to stop")
	fs.DurationVar(&o.StartTimeout, "start-timeout", 10*time.Second, "how long to try to reach etcd at the start")
	fs.DurationVar(&o.LeaseTTL, "lease-ttl", 10*time.Second, "how long etcd keeps a worker's record without hearing of it")
	fs.BoolVar(&o.MetricsVLLM, "metrics-vllm", true, "show the metrics that dashboards for vLLM expect under their names, vllm:…, as well")
	o.Trace.registerFlags(fs)
	o.KV.registerFlags(fs)
	o.Store.registerFlags(fs)
	o.registerModelFlags(fs)
}

// registerModelFlags adds the flags of what loads the model, computes and routes:
// everything but block stores.
func (o *Options) registerModelFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Model, "model", "", "directory of the model (default: the bundled one)")
	fs.StringVar(&o.ModelName, "model-name", "", "name that requests use for the model (default: the directory's name)")
	fs.StringVar(&o.ChatTemplate, "chat-template", "", "file with a chat template in Jinja, to use instead of the model's own")
	fs.IntVar(&o.ContextTokens, "context-tokens", 0, "most tokens of prompt and answer together, if fewer than the model has; the KV memory that one sequence can take follows from it")
	o.Engine.registerFlags(fs)
	o.Router.RegisterFlags(fs, "router-")
	o.Router.Budget.RegisterFlags(fs, "budget-")
	o.Prefill.RegisterFlags(fs)
	o.Decode.RegisterFlags(fs)
}

func (e *EngineOptions) registerFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.Name, "engine", EngineAuto, "what computes: auto (a GPU or the CPU, as --device says), cpu, cuda, or simulated (time only)")
	fs.StringVar(&e.Device, "device", DeviceAuto, "where the model runs: auto (the first GPU if there is one, else the CPU), cpu, or a GPU, such as cuda:0")
	fs.StringVar(&e.CUDADriver, "cuda-driver", "", "file of the CUDA driver's library (default: libcuda.so.1, where the system finds it)")
	fs.StringVar((*string)(&e.CUDAProducts), "cuda-products", string(cuda.Own), "CUDA engine: what computes products of more than 64 rows: own (its kernels; tokens do not depend on the batch) or cublaslt (faster prompts; tokens may differ with the batch and with how a prompt is cut); all workers that pass KV to each other need the same")
	fs.StringVar(&e.CublasLt, "cublaslt", "", "with --cuda-products cublaslt: file of the library, version 12 or 13, or a folder that has it, such as Python's site-packages (default: libcublasLt.so, where the system finds it)")
	fs.StringVar(&e.NVML, "nvml", "", "file of NVIDIA's management library, by which the GPU is watched for errors (default: libnvidia-ml.so.1, where the system finds it; without it nothing is watched)")
	fs.StringVar((*string)(&e.CUDAWeights), "cuda-weights", string(cuda.BF16), "CUDA engine: type of the layers' weights in device memory: "+Listed(cuda.WeightTypes())+"; 8 bits take about half the memory and time of decode, and give slightly other tokens; all workers that pass KV to each other need the same")
	fs.StringVar((*string)(&e.CUDAKV), "cuda-kv", string(cuda.KVBF16), "CUDA engine: type of keys and values in device memory: "+Listed(cuda.KVTypes())+"; 8 bits hold nearly twice the context, and give slightly other tokens; all workers that pass KV to each other need the same")
	fs.Var(&e.GPUMemory, "gpu-memory", "device memory that this process may take, such as 40GiB; auto: nine tenths of what is free at the start")
	fs.Int64Var(&e.GPUCopyRate, "gpu-copy-rate", 0, "most bytes a second that are copied between the host's memory and KV pages of a GPU while it computes a step, 16777216 or more; 0: without a bound. Copies within the device do not count")
	fs.IntVar(&e.Threads, "threads", 0, "compute threads (default: as many as the process may use)")
	fs.StringVar((*string)(&e.CPUWeights), "cpu-weights", string(cpu.BF16), "CPU engine: type of the weights in memory: bf16; int8, which takes about half the memory and time of decode; or int4, a third of both at a cost in quality; all workers that pass KV to each other need the same")
	fs.StringVar((*string)(&e.CPUKV), "cpu-kv", string(cpu.KVBF16), "CPU engine: type of keys and values in memory: bf16, or int8, about half the memory and the reading behind long contexts, and slightly other tokens; all workers that pass KV to each other need the same, and --decode-kv-encoding stays native")
	fs.StringVar(&e.CPUWeightCache, "cpu-weight-cache", "", "CPU engine: folder that keeps the weights as they are in memory, so that only the first start makes them; as much room on disk as in memory for each model and type")
	fs.Var(&e.KVMemory, "kv-memory", "memory for KV blocks of each worker, such as 4GiB; auto: 1GiB, less where the memory is short, one full context at least; pages that are never used cost nothing; on a GPU auto is what --gpu-memory leaves")
	fs.IntVar(&e.BlockTokens, "block-tokens", 32, "tokens in a KV block: 16, 32, 64, 128 or 256 (simulated engine: 1 to 1024)")
	fs.IntVar(&e.MaxBatchTokens, "max-batch-tokens", 1024, "most tokens computed in one step")
	fs.IntVar(&e.MaxSequences, "max-sequences", 64, "most sequences in one step")
	fs.Float64Var(&e.Simulated.BaseMs, "simulated-base-ms", 5, "simulated engine: milliseconds of any step")
	fs.Float64Var(&e.Simulated.PerTokenMs, "simulated-per-token-ms", 0.05, "simulated engine: milliseconds more for each token computed")
	fs.Float64Var(&e.Simulated.PerContextTokenMs, "simulated-per-context-token-ms", 0.0001, "simulated engine: milliseconds more for each token of context")
	fs.StringVar(&e.Profile, "profile", "", "file of step times that 'tandem profile' wrote: the simulated engine obeys it, the CPU engine is compared with its limits in the metrics")
	e.SimulatedDevice.registerFlags(fs)
}

// Validate checks ranges. What depends on the model is checked when it is loaded.
func (o *Options) Validate() error {
	if err := o.validateShared(); err != nil {
		return err
	}
	return o.validateModel()
}

// validateShared checks what every part has, block stores too.
func (o *Options) validateShared() error {
	switch {
	case o.StopTimeout <= 0:
		return fmt.Errorf("--stop-timeout: %v is not above 0", o.StopTimeout)
	case o.StartTimeout <= 0:
		return fmt.Errorf("--start-timeout: %v is not above 0", o.StartTimeout)
	case o.LeaseTTL < time.Second:
		return fmt.Errorf("--lease-ttl: %v is under 1s", o.LeaseTTL)
	}
	if err := o.Trace.validate(); err != nil {
		return err
	}
	if err := o.KV.validate(); err != nil {
		return err
	}
	return o.Store.validate()
}

// validateModel checks what registerModelFlags sets: everything but block stores.
func (o *Options) validateModel() error {
	e := o.Engine
	if err := e.checkDevice(); err != nil {
		return err
	}
	switch {
	case e.Threads < 0 || e.Threads > 1024:
		return fmt.Errorf("--threads: %d is outside 0 to 1024", e.Threads)
	case e.CPUWeights.Validate() != nil:
		return fmt.Errorf("--cpu-weights: %w", e.CPUWeights.Validate())
	case e.CPUWeights != cpu.BF16 && !e.mayBeCPU():
		return fmt.Errorf("--cpu-weights: the %s engine has no such weights: leave it out, or pass --engine %s", e.Name, EngineCPU)
	case e.CPUKV.Validate() != nil:
		return fmt.Errorf("--cpu-kv: %w", e.CPUKV.Validate())
	case e.CPUKV != cpu.KVBF16 && !e.mayBeCPU():
		return fmt.Errorf("--cpu-kv: the %s engine keeps no such keys and values: leave it out, or pass --engine %s", e.Name, EngineCPU)
	case e.CPUKV != cpu.KVBF16 && o.Decode.KVEncoding == "int8":
		return fmt.Errorf("--decode-kv-encoding: with --cpu-kv %s KV is small already and is sent as it is: leave out one of the two", e.CPUKV)
	case e.CPUWeightCache != "" && !e.mayBeCPU():
		return fmt.Errorf("--cpu-weight-cache: the %s engine has no such weights: leave it out, or pass --engine %s", e.Name, EngineCPU)
	case o.ContextTokens < 0 || o.ContextTokens == 1:
		return fmt.Errorf("--context-tokens: %d holds no prompt and answer: pass 2 or more, or 0 for all that the model has", o.ContextTokens)
	case e.KVMemory < 0:
		return fmt.Errorf("--kv-memory: %v is negative", e.KVMemory.String())
	case e.MaxSequences <= 0 || e.MaxSequences > 4096:
		return fmt.Errorf("--max-sequences: %d is outside 1 to 4096", e.MaxSequences)
	case e.MaxBatchTokens < e.MaxSequences || e.MaxBatchTokens > 1<<20:
		return fmt.Errorf("--max-batch-tokens: %d is outside %d (--max-sequences) to %d", e.MaxBatchTokens, e.MaxSequences, 1<<20)
	}
	for _, alias := range o.ModelAliases {
		if err := router.CheckAlias(alias); err != nil {
			return fmt.Errorf("--model-alias: %w", err)
		}
	}
	if err := e.checkBlocks(); err != nil {
		return err
	}
	for _, f := range []struct {
		flag string
		ms   float64
	}{{"base", e.Simulated.BaseMs}, {"per-token", e.Simulated.PerTokenMs}, {"per-context-token", e.Simulated.PerContextTokenMs}} {
		if !(f.ms >= 0 && f.ms <= maxSimulatedMs) { // so that NaN is refused too
			return fmt.Errorf("--simulated-%s-ms: %v is outside 0 to %v", f.flag, f.ms, maxSimulatedMs)
		}
	}
	if err := e.SimulatedDevice.validate(); err != nil {
		return err
	}
	if err := o.Prefill.Validate(e.BlockTokens); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := o.Decode.Validate(e.BlockTokens); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := o.Router.Budget.Validate(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := o.Router.ValidateGenerationConfig(); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := o.Router.Validate(); err != nil {
		return fmt.Errorf("--router-%w", firstOf(err))
	}
	return nil
}

// firstOf is the first of joined errors: one line says one thing to do.
func firstOf(err error) error {
	if joined, is := err.(interface{ Unwrap() []error }); is && len(joined.Unwrap()) > 0 {
		return joined.Unwrap()[0]
	}
	return err
}

// maxSimulatedMs bounds each term of the simulated step time.
const maxSimulatedMs = 1e6

// DefaultOptions are the options with no flag given.
func DefaultOptions() Options {
	var o Options
	o.RegisterFlags(pflag.NewFlagSet("defaults", pflag.ContinueOnError))
	return o
}
