package cuda

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
	"github.com/tandem-serving/tandem/pkg/model"
)

// leastCapability is the oldest generation that the kernels are compiled for, times 10.
const leastCapability = 80

// Device is a GPU that engines can run on.
type Device struct {
	// Number is what Config.Device calls it.
	Number int
	// Name is the product's.
	Name string
	// PCI is its address on the bus, by which nvidia-smi lists devices.
	PCI string
	// Memory is how much there is, bytes, whoever uses it.
	Memory int64
}

// Devices are the GPUs that engines can run on. library is as in Config.Driver. Without any
// the error says what is missing: a driver's library, a driver that is new enough, or a
// device.
func Devices(library string) ([]Device, error) { return devices(library, checkDevice) }

// DevicesFor are those of Devices that can run a model.
func DevicesFor(library string, spec model.Spec) ([]Device, error) {
	if err := checkModel(spec); err != nil {
		return nil, err
	}
	return devices(library, func(info driver.Info) error { return checkDeviceFor(info, spec) })
}

func devices(library string, check func(driver.Info) error) ([]Device, error) {
	opened, err := driver.Open(library)
	if err != nil {
		return nil, err
	}
	all, err := opened.Devices()
	if err != nil {
		return nil, err
	}
	var good []Device
	refused := errors.New("the driver finds no GPU: check nvidia-smi")
	for _, info := range all {
		if err := check(info); err != nil {
			refused = err
			continue
		}
		good = append(good, Device{info.Ordinal, info.Name, info.PCI, info.Memory})
	}
	if len(good) == 0 {
		return nil, refused
	}
	return good, nil
}

// checkDevice refuses devices that the kernels are not compiled for.
func checkDevice(info driver.Info) error {
	if info.Capability < leastCapability {
		return fmt.Errorf("%s has compute capability %d.%d, but the CUDA engine needs %d.%d: use a newer GPU, or the CPU engine",
			info.Name, info.Capability/10, info.Capability%10, leastCapability/10, leastCapability%10)
	}
	return nil
}

// checkDeviceFor refuses also those that the model's kernels are too large for.
func checkDeviceFor(info driver.Info, spec model.Spec) error {
	if need := kernels.SharedBytes(shapeOf(spec).stride); info.SharedPerBlock < need {
		return fmt.Errorf("%s has %d KiB of shared memory per block, but heads of %d elements need %d: use another GPU, or the CPU engine",
			info.Name, info.SharedPerBlock>>10, spec.HeadSize, need>>10)
	}
	return checkDevice(info)
}

// FreeBytes is the memory of a device that nobody has taken, bytes, of which opening it
// takes some.
func FreeBytes(library string, device int) (int64, error) {
	opened, err := driver.Open(library)
	if err != nil {
		return 0, err
	}
	d, err := opened.NewDevice(device)
	if err != nil {
		return 0, err
	}
	free, _, err := d.Memory()
	return free, errors.Join(err, d.Close())
}
