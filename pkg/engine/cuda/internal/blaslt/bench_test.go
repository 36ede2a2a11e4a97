package blaslt_test

import (
	"math"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/blaslt"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

const workspaceBytes = 32 << 20

// bench is a device and a handle of cuBLASLt on it: the GPU that the environment names and
// what TANDEM_CUBLASLT names or the system has, or emulated ones. What a test leaves alive
// on those fails it.
type bench struct {
	t         *testing.T
	control   *emulationtest.Control // nil on a real device
	device    *driver.Device
	handle    *blaslt.Handle
	stream    *driver.Stream
	workspace driver.Address
}

func newBench(t *testing.T) *bench {
	t.Helper()
	path, device := emulationtest.GPU(t)
	blasPath := os.Getenv("TANDEM_CUBLASLT")
	if path == "" {
		return newEmulated(t)
	}
	if _, err := blaslt.Open(blasPath); err != nil && blasPath == "" {
		t.Skip(err)
	}
	return openBench(t, path, blasPath, device, nil)
}

func newEmulated(t *testing.T) *bench {
	t.Helper()
	path := emulationtest.Library(t)
	return openBench(t, path, path, 0, emulationtest.NewControl(t, path))
}

func openBench(t *testing.T, path, blasPath string, device int, control *emulationtest.Control) *bench {
	t.Helper()
	b := &bench{t: t, control: control}
	if control != nil {
		t.Cleanup(func() {
			if live := control.Live(); live != (emulationtest.Live{}) {
				t.Errorf("left alive: %+v", live)
			}
		})
	}
	library := must[*driver.Driver](b, nil)(driver.Open(path))
	b.device = must(b, (*driver.Device).Close)(library.NewDevice(device))
	b.handle = must(b, (*blaslt.Handle).Close)(must[*blaslt.Library](b, nil)(blaslt.Open(blasPath)).NewHandle(b.device))
	b.stream = must(b, (*driver.Stream).Close)(b.device.NewStream(driver.Low))
	b.workspace = b.memory(workspaceBytes)
	return b
}

// must ends the test on an error, and closes what was made after the test.
func must[T any](b *bench, closer func(T) error) func(T, error) T {
	b.t.Helper()
	return func(made T, err error) T {
		b.t.Helper()
		if err != nil {
			b.t.Fatal(err)
		}
		if closer != nil {
			b.t.Cleanup(func() {
				if err := closer(made); err != nil {
					b.t.Error(err)
				}
			})
		}
		return made
	}
}

func (b *bench) memory(bytes int64) driver.Address {
	b.t.Helper()
	return must(b, b.device.Free)(b.device.Allocate(bytes))
}

// upload makes device memory of values.
func upload[T any](b *bench, values []T) driver.Address {
	b.t.Helper()
	bytes := len(values) * int(unsafe.Sizeof(values[0]))
	to := b.memory(int64(bytes))
	host := must(b, (*driver.Host).Free)(b.device.AllocateHost(bytes))
	copy(unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(host.Bytes()))), len(values)), values)
	p := b.device.NewProgram()
	defer p.Free()
	p.CopyIn(to, host, 0, bytes)
	if err := b.stream.Run(p); err != nil {
		b.t.Fatal(err)
	}
	return to
}

// download is what device memory holds.
func download[T any](b *bench, from driver.Address, n int) []T {
	b.t.Helper()
	var one T
	bytes := n * int(unsafe.Sizeof(one))
	host := must(b, (*driver.Host).Free)(b.device.AllocateHost(bytes))
	p := b.device.NewProgram()
	defer p.Free()
	p.CopyOut(host, 0, from, bytes)
	if err := b.stream.Run(p); err != nil {
		b.t.Fatal(err)
	}
	return append([]T(nil), unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(host.Bytes()))), n)...)
}

func toBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

func fromBF16(v uint16) float64 { return float64(math.Float32frombits(uint32(v) << 16)) }

// says fails unless an error is one line that has all the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", words)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%v is more than a line", err)
	}
}
