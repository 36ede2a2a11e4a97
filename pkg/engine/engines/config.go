package engines

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tandem-serving/tandem/pkg/bytesize"
	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/simulated"
)

// Engines that can be asked for. Auto becomes CUDA or CPU, as Config.Device and the
// machine have it.
const (
	Auto      = "auto"
	CPU       = "cpu"
	CUDA      = "cuda"
	Simulated = "simulated"
)

// Config says what computes, and in how much memory.
type Config struct {
	// Name is one of the engines above.
	Name string
	// Device is where a model runs: DeviceAuto, DeviceCPU or a GPU, such as "cuda:0".
	Device string
	// KVMemory is the memory for KV blocks of each worker. bytesize.Auto: on the CPU
	// 1 GiB, less where that is not there, and a full context of the model in any case; on
	// a GPU an equal share of what weights and activations leave of CUDA.Memory.
	KVMemory bytesize.Size
	// BlockTokens is the number of tokens in a block.
	BlockTokens int
	// MaxBatchTokens and MaxSequences bound a step.
	MaxBatchTokens, MaxSequences int
	// ShareKV lets other processes map the pages of decode workers, where engine and system
	// can. The CPU engine takes all of their memory at the start, so that it has to be there.
	ShareKV bool
	// Profile is a file of measured step times, which the simulated engine obeys;
	// empty: Simulated.StepTime says. Of the CPU engine it gives the limits.
	Profile string
	// CPU, CUDA and Simulated are of the one that computes. What is above is written
	// into theirs.
	CPU       cpu.Config
	CUDA      cuda.Config
	Simulated simulated.Config

	// insteadOfGPU are the flags that Choose found to run on the CPU instead.
	insteadOfGPU string
}

// RegisterFlags adds the flags of all engines, with defaults that work.
func (c *Config) RegisterFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Name, "engine", Auto, "engine that runs the model: auto (cpu or cuda, by --device), cpu, cuda, or simulated (takes the time of a real engine, but computes nothing)")
	fs.StringVar(&c.Device, "device", DeviceAuto, "device that runs the model: auto (the first GPU, or else the CPU), cpu, or a GPU such as cuda:0")
	fs.Var(&c.KVMemory, "kv-memory", "memory for the KV cache of each worker, such as 4GiB; auto: on the CPU 1GiB (less if memory is short, but at least one full context), on a GPU what --gpu-memory leaves")
	fs.IntVar(&c.BlockTokens, "block-tokens", 32, "tokens per KV block: 16, 32, 64, 128 or 256 (simulated engine: 1 to 1024)")
	fs.IntVar(&c.MaxBatchTokens, "max-batch-tokens", 1024, "maximum tokens computed in one step")
	fs.IntVar(&c.MaxSequences, "max-sequences", 64, "maximum sequences in one step")
	fs.StringVar(&c.Profile, "profile", "", "profile of step times from 'tandem profile': the simulated engine follows it; metrics compare the CPU engine with its limits")
	c.CPU.RegisterFlags(fs)
	c.CUDA.RegisterFlags(fs)
	c.Simulated.RegisterFlags(fs)
}

// Validate checks ranges, and that the options go together. What depends on the model and
// the machine, Choose and Size check.
func (c *Config) Validate() error {
	for _, of := range []interface{ Validate() error }{&c.CPU, &c.CUDA, &c.Simulated} {
		if err := of.Validate(); err != nil {
			return err
		}
	}
	if err := c.checkDevice(); err != nil {
		return err
	}
	switch {
	case c.KVMemory < 0:
		return fmt.Errorf("--kv-memory: %v is negative", c.KVMemory.String())
	case c.MaxSequences <= 0 || c.MaxSequences > 4096:
		return fmt.Errorf("--max-sequences: %d is outside 1 to 4096", c.MaxSequences)
	case c.MaxBatchTokens < c.MaxSequences || c.MaxBatchTokens > 1<<20:
		return fmt.Errorf("--max-batch-tokens: %d is outside %d (--max-sequences) to %d", c.MaxBatchTokens, c.MaxSequences, 1<<20)
	case c.Name != Simulated && !slices.Contains([]int{16, 32, 64, 128, 256}, c.BlockTokens):
		return fmt.Errorf("--block-tokens: the engine has no blocks of %d tokens: use 16, 32, 64, 128 or 256", c.BlockTokens)
	case c.BlockTokens <= 0 || c.BlockTokens > 1024:
		return fmt.Errorf("--block-tokens: %d is outside 1 to 1024", c.BlockTokens)
	}
	return nil
}

// checkDevice refuses engines that there are none of, and options that contradict the one
// that is asked for.
func (c *Config) checkDevice() error {
	gpu, err := GPU(c.Device)
	switch {
	case err != nil:
		return err
	case !slices.Contains([]string{Auto, CPU, CUDA, Simulated}, c.Name):
		return fmt.Errorf("--engine: %q is neither %s, %s, %s nor %s", c.Name, Auto, CPU, CUDA, Simulated)
	case gpu >= 0 && (c.Name == CPU || c.Name == Simulated):
		return fmt.Errorf("--device: the %s engine does not run on %s: leave out --device or --engine", c.Name, c.Device)
	case c.Device == DeviceCPU && (c.Name == CUDA || c.Name == Simulated):
		return fmt.Errorf("--device: the %s engine does not run on the CPU: leave out --device or --engine", c.Name)
	}
	ofCPU := c.CPU.Given()
	switch {
	case len(ofCPU) == 0:
	case gpu >= 0:
		return fmt.Errorf("%s: applies to the CPU engine only: leave it out, or pass --device %s", ofCPU[0], DeviceCPU)
	case c.Name != CPU && c.Name != Auto:
		return fmt.Errorf("%s: does not apply to the %s engine: leave it out, or pass --engine %s", ofCPU[0], c.Name, CPU)
	}
	if c.Name == CPU || c.Name == Simulated || c.Device == DeviceCPU || len(ofCPU) > 0 {
		if given := c.ofGPU(); len(given) > 0 {
			flag, _, _ := strings.Cut(given[0], " ")
			return fmt.Errorf("%s: needs a GPU: leave it out, or choose a GPU with --device", flag)
		}
	}
	return nil
}

// ofGPU are the flags that were given and that only make sense with a GPU.
func (c *Config) ofGPU() []string {
	return slices.DeleteFunc(c.CUDA.Given(), func(flag string) bool { return flag == "--cuda-driver" }) // which harms nobody
}

// sized is c with what the engines have in common written into the Config of each.
func (c Config) sized() Config {
	kv, block, batch, sequences := int64(c.KVMemory), c.BlockTokens, c.MaxBatchTokens, c.MaxSequences
	c.CPU.KVBytes, c.CPU.BlockTokens, c.CPU.MaxBatchTokens, c.CPU.MaxSequences = kv, block, batch, sequences
	c.CUDA.KVBytes, c.CUDA.BlockTokens, c.CUDA.MaxBatchTokens, c.CUDA.MaxSequences = kv, block, batch, sequences
	c.Simulated.BlockTokens, c.Simulated.MaxBatchTokens, c.Simulated.MaxSequences = block, batch, sequences
	return c
}
