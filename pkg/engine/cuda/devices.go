package cuda

import (
	"errors"
	"fmt"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/model"
)

// leastCapability is the oldest generation that the kernels are compiled for, times 10.
const leastCapability = 80

// Device is a GPU that engines can run on.
type Device struct {
	// Number is what LoadConfig.Device calls it.
	Number int
	// Name is the product's.
	Name string
	// Memory is how much there is, bytes, whoever uses it.
	Memory int64
}

// Devices are the GPUs that engines can run on. library is as in LoadConfig. Without any
// the error says what is missing: a driver's library, a driver that is new enough, or a
// device.
func Devices(library string) ([]Device, error) {
	opened, err := driver.Open(library)
	if err != nil {
		return nil, err
	}
	all, err := opened.Devices()
	if err != nil {
		return nil, err
	}
	var devices []Device
	var refused error
	for _, info := range all {
		if err := checkDevice(info); err != nil {
			refused = err
			continue
		}
		devices = append(devices, Device{info.Ordinal, info.Name, info.Memory})
	}
	if len(devices) == 0 && refused == nil {
		refused = fmt.Errorf("the driver knows no GPU: see what nvidia-smi says")
	}
	if len(devices) == 0 {
		return nil, refused
	}
	return devices, nil
}

// checkDevice refuses what the kernels are not compiled for.
func checkDevice(info driver.Info) error {
	if info.Capability < leastCapability {
		return fmt.Errorf("%s has compute capability %d.%d, the CUDA engine needs %d.%d: use a newer GPU, or the CPU engine",
			info.Name, info.Capability/10, info.Capability%10, leastCapability/10, leastCapability%10)
	}
	return nil
}

// Supports says why the CUDA engine cannot run a model; nil if it can.
func Supports(spec model.Spec) error { return checkModel(spec) }

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
