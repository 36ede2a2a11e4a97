package mesh

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pkg/engine/cpu"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

// What EngineOptions.Device can be beside a GPU.
const (
	DeviceAuto = "auto"
	DeviceCPU  = "cpu"
)

// gpuPrefix and a number are a GPU.
const gpuPrefix = "cuda:"

// gpu is the number of the GPU that Device names; -1 if it names none.
func (e *EngineOptions) gpu() (int, error) { return GPU(e.Device) }

// GPU is the number of the GPU that a device names; -1 for DeviceAuto and DeviceCPU, which
// name none.
func GPU(device string) (int, error) {
	if device == DeviceAuto || device == DeviceCPU || device == "" {
		return -1, nil
	}
	digits, is := strings.CutPrefix(device, gpuPrefix)
	number, err := strconv.ParseUint(digits, 10, 8)
	if !is || err != nil {
		return -1, fmt.Errorf("--device: %q is neither %s, %s nor a GPU such as %s0", device, DeviceAuto, DeviceCPU, gpuPrefix)
	}
	return int(number), nil
}

// checkDevice refuses engines that there are none of, and devices that contradict them.
func (e *EngineOptions) checkDevice() error {
	gpu, err := e.gpu()
	switch {
	case err != nil:
		return err
	case e.Name != EngineAuto && e.Name != EngineCPU && e.Name != EngineCUDA && e.Name != EngineSimulated:
		return fmt.Errorf("--engine: %q is neither %s, %s, %s nor %s", e.Name, EngineAuto, EngineCPU, EngineCUDA, EngineSimulated)
	case gpu >= 0 && (e.Name == EngineCPU || e.Name == EngineSimulated):
		return fmt.Errorf("--device: the %s engine does not run on %s: leave one of the two out", e.Name, e.Device)
	case e.Device == DeviceCPU && (e.Name == EngineCUDA || e.Name == EngineSimulated):
		return fmt.Errorf("--device: the %s engine does not run on the CPU's cores: leave one of the two out", e.Name)
	case gpu >= 0 && e.ofCPU() != "":
		return fmt.Errorf("%s is of the CPU engine: leave it out, or pass --device %s", e.ofCPU(), DeviceCPU)
	case e.GPUMemory < 0:
		return fmt.Errorf("--gpu-memory: %v is negative", e.GPUMemory.String())
	case e.GPUMemory != Auto && e.noGPU():
		return errors.New("--gpu-memory: no GPU computes: leave it out, or choose one with --device")
	case e.NVML != "" && e.noGPU():
		return errors.New("--nvml: no GPU computes: leave it out, or choose one with --device")
	}
	if err := e.checkCUDATypes(); err != nil {
		return err
	}
	if err := e.checkCopyRate(); err != nil {
		return err
	}
	return e.checkProducts()
}

// checkCopyRate checks what copies beside steps are held to.
func (e *EngineOptions) checkCopyRate() error {
	switch {
	case e.GPUCopyRate != 0 && e.GPUCopyRate < cuda.LeastCopyRate:
		return fmt.Errorf("--gpu-copy-rate: %d is neither 0, which is without a bound, nor %d or more", e.GPUCopyRate, cuda.LeastCopyRate)
	case e.GPUCopyRate != 0 && e.noGPU():
		return errors.New("--gpu-copy-rate: no GPU computes: leave it out, or choose one with --device")
	}
	return nil
}

// cudaWeights and cudaKV are the types of a GPU's weights, and of its keys and values.
func (e *EngineOptions) cudaWeights() cuda.WeightType { return cmp.Or(e.CUDAWeights, cuda.BF16) }
func (e *EngineOptions) cudaKV() cuda.KVType          { return cmp.Or(e.CUDAKV, cuda.KVBF16) }

// checkCUDATypes checks them.
func (e *EngineOptions) checkCUDATypes() error {
	weights, kv := e.cudaWeights(), e.cudaKV()
	if err := weights.Validate(); err != nil {
		return fmt.Errorf("--cuda-weights: %w", err)
	}
	if err := kv.Validate(); err != nil {
		return fmt.Errorf("--cuda-kv: %w", err)
	}
	switch {
	case weights != cuda.BF16 && e.noGPU():
		return errors.New("--cuda-weights: no GPU computes: leave it out, or choose one with --device")
	case weights != cuda.BF16 && e.CUDAProducts == cuda.CublasLt:
		return fmt.Errorf("--cuda-weights: cuBLASLt's products take %s only: leave out --cuda-products %s, or this", cuda.BF16, e.CUDAProducts)
	case kv != cuda.KVBF16 && e.noGPU():
		return errors.New("--cuda-kv: no GPU computes: leave it out, or choose one with --device")
	}
	return nil
}

// checkProducts checks what computes a GPU's products.
func (e *EngineOptions) checkProducts() error {
	switch {
	case e.CublasLt != "" && e.CUDAProducts != cuda.CublasLt:
		return fmt.Errorf("--cublaslt: nothing computes by that library without --cuda-products %s: pass it too, or leave this out", cuda.CublasLt)
	case e.CUDAProducts != "" && e.CUDAProducts != cuda.Own && e.CUDAProducts != cuda.CublasLt:
		return fmt.Errorf("--cuda-products: %q is neither %s nor %s", e.CUDAProducts, cuda.Own, cuda.CublasLt)
	case e.CUDAProducts == cuda.CublasLt && e.noGPU():
		return errors.New("--cuda-products: no GPU computes: leave it out, or choose one with --device")
	}
	return nil
}

// noGPU says whether no GPU is asked for, nor may be taken.
func (e *EngineOptions) noGPU() bool {
	return e.Name == EngineCPU || e.Name == EngineSimulated || e.Device == DeviceCPU || e.ofCPU() != ""
}

// mayBeCPU says whether the CPU engine may compute.
func (e *EngineOptions) mayBeCPU() bool { return e.Name == EngineCPU || e.Name == EngineAuto }

// ofCPU is a flag that was given and that only the CPU engine has; "" if there is none.
func (e *EngineOptions) ofCPU() string {
	switch {
	case e.CPUWeights != cpu.BF16:
		return "--cpu-weights"
	case e.CPUKV != cpu.KVBF16:
		return "--cpu-kv"
	case e.CPUWeightCache != "":
		return "--cpu-weight-cache"
	}
	return ""
}

// ofGPU is a flag that was given and that only makes sense with a GPU; "" if there is none.
func (e *EngineOptions) ofGPU() string {
	switch {
	case e.Device != DeviceAuto && e.Device != DeviceCPU && e.Device != "":
		return "--device " + e.Device
	case e.Name == EngineCUDA:
		return "--engine " + e.Name
	case e.GPUMemory != Auto:
		return "--gpu-memory"
	case e.GPUCopyRate != 0:
		return "--gpu-copy-rate"
	case e.CUDADriver != "":
		return "--cuda-driver"
	case e.NVML != "":
		return "--nvml"
	case e.CUDAProducts == cuda.CublasLt:
		return "--cuda-products " + string(e.CUDAProducts)
	case e.cudaWeights() != cuda.BF16:
		return "--cuda-weights " + string(e.CUDAWeights)
	case e.cudaKV() != cuda.KVBF16:
		return "--cuda-kv " + string(e.CUDAKV)
	}
	return ""
}

// chooseEngine turns EngineAuto into the engine that runs a model here, and Device into
// the GPU that it runs on, if any. Who gives a flag of GPUs gets one or an error;
// otherwise what stands against a GPU is logged, and the CPU computes.
func (e *EngineOptions) chooseEngine(spec model.Spec, logger *slog.Logger) error {
	if e.Name == EngineSimulated || e.Name == EngineCPU {
		return nil
	}
	gpu, err := e.gpu()
	if err != nil {
		return err
	}
	if e.Device == DeviceCPU || e.ofCPU() != "" && e.ofGPU() == "" {
		e.Name = EngineCPU
		return nil
	}
	found, err := e.findGPU(spec, gpu)
	switch {
	case err == nil:
		e.Name, e.Device = EngineCUDA, gpuPrefix+strconv.Itoa(found.Number)
		logger.Info("a GPU computes", slog.String("device", e.Device), slog.String("name", found.Name), slog.Int64("memory_bytes", found.Memory))
		return nil
	case e.ofGPU() != "":
		return fmt.Errorf("%s: %w; or pass --device %s", e.ofGPU(), err, DeviceCPU)
	}
	logger.Info("the CPU computes", slog.String("no_gpu", err.Error()))
	e.Name = EngineCPU
	return nil
}

// findGPU is the GPU of a number, or the first one if that is -1.
func (e *EngineOptions) findGPU(spec model.Spec, number int) (cuda.Device, error) {
	devices, err := cuda.DevicesFor(e.CUDADriver, spec)
	if err != nil {
		return cuda.Device{}, err
	}
	var names []string
	for _, d := range devices {
		if number < 0 || d.Number == number {
			return d, nil
		}
		names = append(names, fmt.Sprintf("%s%d (%s, %s)", gpuPrefix, d.Number, d.Name, d.PCI))
	}
	return cuda.Device{}, fmt.Errorf("there is no GPU %d that can be used: use %s", number, strings.Join(names, ", "))
}

// cudaConfig sizes a worker's CUDA engine.
func (e EngineOptions) cudaConfig() cuda.Config {
	return cuda.Config{
		KVBytes: int64(e.KVMemory), BlockTokens: e.BlockTokens, MaxBatchTokens: e.MaxBatchTokens, MaxSequences: e.MaxSequences,
		Products: e.CUDAProducts, CublasLt: e.CublasLt, KV: e.cudaKV(),
	}
}

// Listed is a list for people, as in "bf16, int8 or fp8".
func Listed[T ~string](types []T) string {
	var text strings.Builder
	for i, t := range types {
		switch {
		case i > 0 && i == len(types)-1:
			text.WriteString(" or ")
		case i > 0:
			text.WriteString(", ")
		}
		text.WriteString(string(t))
	}
	return text.String()
}
