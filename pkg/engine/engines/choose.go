package engines

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/model"
)

// What Config.Device can be beside a GPU.
const (
	DeviceAuto = "auto"
	DeviceCPU  = "cpu"
)

// gpuPrefix and a number are a GPU.
const gpuPrefix = "cuda:"

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

// wantsGPU is a flag that was given and that only makes sense with a GPU; "" if there is
// none.
func (c *Config) wantsGPU() string {
	given := c.CUDA.Given()
	switch {
	case c.wantsDevice():
		return "--device " + c.Device
	case c.Name == CUDA:
		return "--engine " + c.Name
	case len(given) > 0:
		return given[0]
	}
	return ""
}

// cpuFlags are the flags to pass to run on the CPU instead, and those of GPUs to leave out.
func (c *Config) cpuFlags() string {
	flags := "--device " + DeviceCPU
	switch {
	case c.Name == CUDA && c.wantsDevice():
		flags += " --engine " + CPU
	case c.Name == CUDA:
		flags = "--engine " + CPU
	}
	if given := c.ofGPU(); len(given) > 0 {
		flags += " without " + strings.Join(given, ", ")
	}
	return flags
}

// wantsDevice says whether Device names a GPU.
func (c *Config) wantsDevice() bool {
	gpu, err := GPU(c.Device)
	return err == nil && gpu >= 0
}

// Choose turns Auto into the engine that runs a model here, and Device into the GPU that it
// runs on, if any. Who gives a flag of GPUs gets one or an error; otherwise what stands
// against a GPU is logged, and the CPU computes.
func (c *Config) Choose(spec model.Spec, logger *slog.Logger) error {
	if c.Name == Simulated || c.Name == CPU {
		return nil
	}
	gpu, err := GPU(c.Device)
	if err != nil {
		return err
	}
	wanted := c.wantsGPU()
	c.insteadOfGPU = c.cpuFlags()
	if c.Device == DeviceCPU || len(c.CPU.Given()) > 0 && wanted == "" {
		c.Name = CPU
		return nil
	}
	found, err := c.findGPU(spec, gpu)
	switch {
	case err == nil:
		c.Name, c.Device, c.CUDA.Device = CUDA, gpuPrefix+strconv.Itoa(found.Number), found.Number
		logger.Info("using a GPU", slog.String("device", c.Device), slog.String("name", found.Name), slog.Int64("memory_bytes", found.Memory))
		return nil
	case wanted != "":
		return fmt.Errorf("%s: %w, or run on the CPU with %s", wanted, err, c.insteadOfGPU)
	}
	logger.Info("using the CPU", slog.String("no_gpu", err.Error()))
	c.Name = CPU
	return nil
}

// findGPU is the GPU of a number, or the first one if that is -1.
func (c *Config) findGPU(spec model.Spec, number int) (cuda.Device, error) {
	devices, err := cuda.DevicesFor(c.CUDA.Driver, spec)
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
	return cuda.Device{}, fmt.Errorf("GPU %d cannot be used: use %s", number, strings.Join(names, ", "))
}
