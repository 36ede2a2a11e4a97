package emulationtest

import (
	"os"
	"strconv"
	"testing"
)

// GPU is the real GPU that tests are to run on: the driver's library that
// TANDEM_CUDA_DRIVER names, and the number of the device in TANDEM_CUDA_DEVICE, 0 without
// that. No library: they run on the emulated device, which is 0.
func GPU(t testing.TB) (library string, device int) {
	t.Helper()
	library, number := os.Getenv("TANDEM_CUDA_DRIVER"), os.Getenv("TANDEM_CUDA_DEVICE")
	if library == "" || number == "" {
		return library, 0
	}
	device, err := strconv.Atoi(number)
	if err != nil {
		t.Fatalf("TANDEM_CUDA_DEVICE: %q is no number", number)
	}
	return library, device
}
