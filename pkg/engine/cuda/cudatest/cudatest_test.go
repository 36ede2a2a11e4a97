package cudatest_test

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/cudatest"
)

// TestLibrary says where the emulated driver is, for those who try commands with it:
// go test -v -run TestLibrary.
func TestLibrary(t *testing.T) {
	path := cudatest.New(t).Driver
	devices, err := cuda.Devices(path)
	if err != nil || len(devices) == 0 {
		t.Fatalf("%d devices: %v", len(devices), err)
	}
	t.Log(path)
}
