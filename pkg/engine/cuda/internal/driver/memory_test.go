package driver_test

import (
	"errors"
	"math"
	"testing"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

func TestOutOfMemory(t *testing.T) {
	b := newEmulated(t)
	b.control.Set(emulationtest.Memory, 1000)
	half := b.floats(125)
	free, total, err := b.device.Memory()
	if free != 500 || total != 1000 || err != nil {
		t.Fatalf("%d of %d bytes are free: %v", free, total, err)
	}
	_, err = b.device.Allocate(501)
	says(t, err, "allocate 501 bytes", "CUDA_ERROR_OUT_OF_MEMORY")
	var failure *driver.Error
	if !errors.As(err, &failure) || !failure.OutOfMemory() || failure.Sticky() {
		t.Errorf("%+v", failure)
	}
	b.floats(125)
	s, p := b.stream(), b.program()
	p.Fill(half, 0, 500)
	b.run(s, p) // nothing is lost
}

func TestAllocateRefuses(t *testing.T) {
	b := newBench(t)
	for _, bytes := range []int64{0, -1} {
		_, err := b.device.Allocate(bytes)
		says(t, err, "at least one")
		_, err = b.device.AllocateHost(int(bytes))
		says(t, err, "at least one")
	}
	_, err := b.device.Allocate(1 << 60)
	says(t, err, "CUDA_ERROR_OUT_OF_MEMORY")
	if err := b.device.Free(0); err != nil {
		t.Error(err)
	}
}

func TestFailedAllocationsOfOtherThings(t *testing.T) {
	b := newEmulated(t)
	m, err := b.device.Load(ptx)
	must(b, (*driver.Module).Unload, m, err)
	for call, make := range map[string]func() error{
		"cuMemHostAlloc":             func() error { _, err := b.device.AllocateHost(1); return err },
		"cuStreamCreateWithPriority": func() error { _, err := b.device.NewStream(driver.Low); return err },
		"cuEventCreate":              func() error { _, err := b.device.NewEvent(); return err },
		"cuModuleLoadDataEx":         func() error { _, err := b.device.Load(ptx); return err },
		"cuModuleGetFunction":        func() error { _, err := m.Function("tdm_test_add"); return err },
		"cuDevicePrimaryCtxRetain":   func() error { _, err := b.driver.NewDevice(0); return err },
		"cuMemGetInfo_v2":            func() error { _, _, err := b.device.Memory(); return err },
		"cuCtxSetCurrent":            func() error { _, err := b.device.Allocate(1); return err },
		"cuDeviceGetAttribute":       func() error { _, err := b.driver.Devices(); return err },
	} {
		b.control.Fail(call, 0, 2)
		says(t, make(), call, "CUDA_ERROR_OUT_OF_MEMORY (2)")
	}
}

// The emulated device finds what on a real one may pass unnoticed.
func TestCopiesMustLieInOneAllocation(t *testing.T) {
	b := newEmulated(t)
	s, p := b.stream(), b.program()
	x, y := b.floats(16), b.floats(16)
	host, values := b.pinned(32)
	pinned := driver.Address(uintptr(unsafe.Pointer(&values[0])))
	for name, add := range map[string]func(){
		"in":                  func() { p.CopyIn(x+4, host, 0, 64) },
		"out":                 func() { p.CopyOut(host, 0, x-4, 64) },
		"from":                func() { p.Copy(x, y+4, 64) },
		"to":                  func() { p.Copy(x+60, y, 5) },
		"fill":                func() { p.Fill(x, 0, 65) },
		"nowhere":             func() { p.Fill(12345, 0, 1) },
		"from nowhere":        func() { p.Copy(x, 12345, 4) },
		"to pinned memory":    func() { p.Copy(pinned, x, 4) },
		"from pinned memory":  func() { p.Copy(x, pinned, 4) },
		"far beyond the last": func() { p.Fill(driver.Address(math.MaxUint64-3), 0, 8) },
	} {
		p.Reset()
		add()
		says(t, s.Run(p), "operation 0", "CUDA_ERROR_INVALID_VALUE")
		if t.Failed() {
			t.Fatal(name)
		}
	}
}

func TestKernelThatWritesBesideItsMemory(t *testing.T) {
	b := newEmulated(t)
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	x, err := b.device.Allocate(64)
	if err != nil {
		t.Fatal(err)
	}
	launchFill(p, fill, x, 17, 0)
	says(t, s.Run(p), "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "kernel tdm_test_fill wrote beside device memory of 64 bytes")
	b.restart()
}

// What is not near the memory's end shows when it is freed.
func TestKernelThatWritesFartherBesideItsMemory(t *testing.T) {
	b := newEmulated(t)
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	x, err := b.device.Allocate(64)
	if err != nil {
		t.Fatal(err)
	}
	launchFill(p, fill, x+1000, 1, 0)
	b.run(s, p)
	says(t, b.device.Free(x), "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "something was written beside device memory of 64 bytes")
	b.restart()
}

func TestKernelThatWritesToFreedMemory(t *testing.T) {
	b := newEmulated(t)
	s, p, fill := b.stream(), b.program(), b.function("tdm_test_fill")
	x, err := b.device.Allocate(64)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.device.Free(x); err != nil {
		t.Fatal(err)
	}
	launchFill(p, fill, x, 1, 0)
	says(t, s.Run(p), "CUDA_ERROR_ILLEGAL_ADDRESS (700)", "kernel tdm_test_fill wrote to freed device memory of 64 bytes")
	b.restart()
}

func TestFreeTwice(t *testing.T) {
	b := newEmulated(t)
	x, err := b.device.Allocate(64)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.device.Free(x); err != nil {
		t.Fatal(err)
	}
	says(t, b.device.Free(x), "free device memory", "CUDA_ERROR_INVALID_VALUE")
}
