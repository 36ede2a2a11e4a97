package kernels_test

import (
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulation"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/kernels"
)

// rig is a device with the kernels: the GPU of TANDEM_CUDA_DRIVER, or the emulated one.
type rig struct {
	t       *testing.T
	device  *driver.Device
	stream  *driver.Stream
	program *driver.Program
	set     *kernels.Set
	gpu     bool
}

func newRig(t *testing.T) *rig {
	t.Helper()
	library := os.Getenv("TANDEM_CUDA_DRIVER")
	r := &rig{t: t, gpu: library != ""}
	if !r.gpu {
		library = emulation.Library(t)
	}
	opened, err := driver.Open(library)
	r.must(err)
	r.device, err = opened.NewDevice(0)
	r.must(err)
	t.Cleanup(func() { r.must(r.device.Close()) })
	r.stream, err = r.device.NewStream(driver.High)
	r.must(err)
	t.Cleanup(func() { r.must(r.stream.Close()) })
	r.set, err = kernels.Load(r.device)
	r.must(err)
	t.Cleanup(func() { r.must(r.set.Unload()) })
	r.program = r.device.NewProgram()
	t.Cleanup(r.program.Free)
	return r
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// times is how many random shapes a test tries: more where they are quick.
func (r *rig) times(emulated int) int {
	if r.gpu {
		return 20 * emulated
	}
	return emulated
}

// run runs what was added to the program.
func (r *rig) run() {
	r.t.Helper()
	r.must(r.stream.Run(r.program))
	r.program.Reset()
}

// up copies values to new device memory, which is freed with the test.
func up[T any](r *rig, values []T) driver.Address {
	r.t.Helper()
	bytes := len(values) * int(unsafe.Sizeof(values[0]))
	address, err := r.device.Allocate(int64(bytes))
	r.must(err)
	r.t.Cleanup(func() { r.must(r.device.Free(address)) })
	host, err := r.device.AllocateHost(bytes)
	r.must(err)
	copy(unsafe.Slice((*T)(unsafe.Pointer(&host.Bytes()[0])), len(values)), values)
	p := r.device.NewProgram()
	p.CopyIn(address, host, 0, bytes)
	r.must(r.stream.Run(p))
	p.Free()
	r.must(host.Free())
	return address
}

// down copies n values from device memory.
func down[T any](r *rig, from driver.Address, n int) []T {
	r.t.Helper()
	values := make([]T, n)
	bytes := n * int(unsafe.Sizeof(values[0]))
	host, err := r.device.AllocateHost(bytes)
	r.must(err)
	p := r.device.NewProgram()
	p.CopyOut(host, 0, from, bytes)
	r.must(r.stream.Run(p))
	p.Free()
	copy(values, unsafe.Slice((*T)(unsafe.Pointer(&host.Bytes()[0])), n))
	r.must(host.Free())
	return values
}

// bf16s are random numbers of about scale, rounded.
func bf16s(random *rand.Rand, n int, scale float64) []uint16 {
	values := make([]uint16, n)
	for i := range values {
		values[i] = uint16(math.Float32bits(float32(random.NormFloat64()*scale)) >> 16)
	}
	return values
}

func wide(v uint16) float64 { return float64(math.Float32frombits(uint32(v) << 16)) }

func padded(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }
