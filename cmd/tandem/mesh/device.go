package mesh

import (
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
	}
	return e.checkProducts()
}

// checkProducts checks what computes a GPU's products.
func (e *EngineOptions) checkProducts() error {
	switch {
	case e.CUDAProducts != "" && e.CUDAProducts != cuda.Own && e.CUDAProducts != cuda.CublasLt:
		return fmt.Errorf("--cuda-products: %q is neither %s nor %s", e.CUDAProducts, cuda.Own, cuda.CublasLt)
	case e.CUDAProducts == cuda.CublasLt && e.noGPU():
		return errors.New("--cuda-products: no GPU computes: leave it out, or choose one with --device")
	}
	return nil
}

// noGPU says whether no GPU is asked for, nor may be taken.
func (e *EngineOptions) noGPU() bool {
	return e.Name == EngineCPU || e.Name == EngineSimulated || e.Device == DeviceCPU
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

// chooseEngine turns EngineAuto into the engine that runs a model here, and Device into
// the GPU that it runs on, if any. Who names a GPU gets that or an error; otherwise what
// stands against a GPU is logged, and the CPU computes.
func (e *EngineOptions) chooseEngine(spec model.Spec, logger *slog.Logger) error {
	if e.Name == EngineSimulated || e.Name == EngineCPU {
		return nil
	}
	gpu, err := e.gpu()
	if err != nil {
		return err
	}
	must := gpu >= 0 || e.Name == EngineCUDA
	if !must && (e.Device == DeviceCPU || e.ofCPU() != "") {
		e.Name = EngineCPU
		return nil
	}
	found, err := e.findGPU(spec, gpu)
	switch {
	case err == nil:
		e.Name, e.Device = EngineCUDA, gpuPrefix+strconv.Itoa(found.Number)
		logger.Info("a GPU computes", slog.String("device", e.Device), slog.String("name", found.Name), slog.Int64("memory_bytes", found.Memory))
		return nil
	case must:
		return fmt.Errorf("--device %s: %w", e.Device, err)
	}
	logger.Info("the CPU computes", slog.String("no_gpu", err.Error()))
	e.Name = EngineCPU
	return nil
}

// findGPU is the GPU of a number, or the first one if that is -1.
func (e *EngineOptions) findGPU(spec model.Spec, number int) (cuda.Device, error) {
	if err := cuda.Supports(spec); err != nil {
		return cuda.Device{}, err
	}
	devices, err := cuda.Devices(e.CUDADriver)
	if err != nil {
		return cuda.Device{}, err
	}
	for _, d := range devices {
		if number < 0 || d.Number == number {
			return d, nil
		}
	}
	return cuda.Device{}, fmt.Errorf("there is no GPU %d that can be used, but there are %d others: see nvidia-smi", number, len(devices))
}

// cudaConfig sizes a worker's CUDA engine.
func (e EngineOptions) cudaConfig() cuda.Config {
	return cuda.Config{
		KVBytes: int64(e.KVMemory), BlockTokens: e.BlockTokens, MaxBatchTokens: e.MaxBatchTokens, MaxSequences: e.MaxSequences,
		Products: e.CUDAProducts, CublasLt: e.CublasLt,
	}
}
