package driver_test

import (
	_ "embed"
	"math"
	"slices"
	"testing"
	"unsafe"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

//go:embed testdata/kernels.ptx
var ptx []byte

type fillArgs struct {
	Out   driver.Address
	N     int64
	Value float32
	_     int32
}

type addArgs struct {
	Out, A, B driver.Address
	N         int64
}

type gatherArgs struct {
	Out, In, Index driver.Address
	N              int64
}

// bench is a device with what a test needs. What a test leaves alive on an emulated one
// fails it.
type bench struct {
	t       *testing.T
	control *emulationtest.Control // nil on a real device
	driver  *driver.Driver
	device  *driver.Device
	closers []func() error
}

// newBench opens the GPU that the environment names, or the emulated one.
func newBench(t *testing.T) *bench {
	t.Helper()
	if path, device := emulationtest.GPU(t); path != "" {
		return openBench(t, path, device, nil)
	}
	return newEmulated(t)
}

// newEmulated opens the emulated library, for what only that shows.
func newEmulated(t *testing.T) *bench {
	t.Helper()
	path := emulationtest.Library(t)
	return openBench(t, path, 0, emulationtest.NewControl(t, path))
}

func openBench(t *testing.T, path string, device int, control *emulationtest.Control) *bench {
	t.Helper()
	b := &bench{t: t, control: control}
	var err error
	if b.driver, err = driver.Open(path); err != nil {
		t.Fatal(err)
	}
	if b.device, err = b.driver.NewDevice(device); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// close frees everything in reverse and looks for leaks.
func (b *bench) close() {
	for _, closer := range slices.Backward(b.closers) {
		if err := closer(); err != nil {
			b.t.Errorf("at the end: %v", err)
		}
	}
	if b.control != nil {
		if live := b.control.Live(); live != (emulationtest.Live{Devices: 1}) {
			b.t.Errorf("left alive: %+v", live)
		}
	}
	if err := b.device.Close(); err != nil {
		b.t.Error(err)
	}
}

// must gives what a constructor gave, and has it closed at the end.
func must[T any](b *bench, closer func(T) error, made T, err error) T {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	b.closers = append(b.closers, func() error { return closer(made) })
	return made
}

func (b *bench) stream() *driver.Stream {
	s, err := b.device.NewStream(driver.High)
	return must(b, (*driver.Stream).Close, s, err)
}

func (b *bench) event() *driver.Event {
	e, err := b.device.NewEvent()
	return must(b, (*driver.Event).Close, e, err)
}

func (b *bench) program() *driver.Program {
	p := b.device.NewProgram()
	return must(b, func(p *driver.Program) error { p.Free(); return nil }, p, nil)
}

// floats is device memory of n floats.
func (b *bench) floats(n int) driver.Address {
	a, err := b.device.Allocate(int64(4 * n))
	return must(b, b.device.Free, a, err)
}

// pinned is pinned memory of n floats, and the floats.
func (b *bench) pinned(n int) (*driver.Host, []float32) {
	h, err := b.device.AllocateHost(4 * n)
	must(b, (*driver.Host).Free, h, err)
	return h, unsafe.Slice((*float32)(unsafe.Pointer(&h.Bytes()[0])), n)
}

func (b *bench) function(name string) *driver.Function {
	b.t.Helper()
	m, err := b.device.Load(ptx)
	must(b, (*driver.Module).Unload, m, err)
	f, err := m.Function(name)
	if err != nil {
		b.t.Fatal(err)
	}
	return f
}

// run runs a program to its end.
func (b *bench) run(s *driver.Stream, p *driver.Program) {
	b.t.Helper()
	if err := s.Run(p); err != nil {
		b.t.Fatal(err)
	}
}

func TestRoundTrip(t *testing.T) {
	b := newBench(t)
	const n = 1000
	s, p := b.stream(), b.program()
	in, x := b.pinned(n)
	out, y := b.pinned(n)
	first, second, sum := b.floats(n), b.floats(n), b.floats(n)
	for i := range x {
		x[i] = float32(i)
	}
	p.CopyIn(first, in, 0, 4*n)
	driver.Launch(p, b.function("tdm_test_fill"), [3]int{8, 1, 1}, 128, 0, fillArgs{Out: second, N: n, Value: 0.5})
	driver.Launch(p, b.function("tdm_test_add"), [3]int{8, 1, 1}, 128, 0, addArgs{Out: sum, A: first, B: second, N: n})
	p.Copy(first, sum, 4*n)
	p.Fill(first+4*10, 0, 8)
	p.CopyOut(out, 0, first, 4*n)
	b.run(s, p)
	for i := range y {
		want := float32(i) + 0.5
		if i == 10 || i == 11 {
			want = 0
		}
		if y[i] != want {
			t.Fatalf("element %d is %v, not %v", i, y[i], want)
		}
	}
}

func TestMemoryBeginsAsNaN(t *testing.T) {
	b := newEmulated(t)
	s, p := b.stream(), b.program()
	out, y := b.pinned(2)
	p.CopyOut(out, 0, b.floats(2), 8)
	b.run(s, p)
	if !math.IsNaN(float64(y[0])) || !math.IsNaN(float64(y[1])) {
		t.Errorf("memory begins as %v", y)
	}
}
