package driver_test

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

func closed(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, driver.ErrClosed) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestClosedThingsRefuse(t *testing.T) {
	b := newBench(t)
	s, p, e, fill := b.stream(), b.program(), b.event(), b.function("tdm_test_fill")
	x := b.floats(1)
	host, _ := b.pinned(1)
	p.Fill(x, 0, 4)
	g, err := s.Capture(p)
	must(b, (*driver.Graph).Close, g, err)
	module, err := b.device.Load(ptx)
	if err != nil {
		t.Fatal(err)
	}
	add, err := module.Function("tdm_test_add")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(e.Close(), host.Free(), g.Close(), module.Unload()); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, "event", e.Synchronize())
	_, err = module.Function("tdm_test_add")
	closed(t, "module", err)
	closed(t, "function", add.AllowShared(1))
	_, err = add.BlocksPerMultiprocessor(1, 1)
	closed(t, "function", err)
	if host.Bytes() != nil {
		t.Error("freed memory has bytes")
	}
	for name, append := range map[string]func(){
		"record":                 func() { p.Record(e) },
		"graph":                  func() { p.Graph(g) },
		"copy in":                func() { p.CopyIn(x, host, 0, 4) },
		"copy out":               func() { p.CopyOut(host, 0, x, 4) },
		"launch of tdm_test_add": func() { driver.Launch(p, add, [3]int{1, 1, 1}, 1, 0, addArgs{}) },
	} {
		p.Reset()
		launchFill(p, fill, x, 1, 0)
		append()
		err := s.Submit(p)
		closed(t, name, err)
		says(t, err, "operation 1", name)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, "stream", s.Synchronize())
	closed(t, "stream", s.Submit(p))
	_, err = s.Capture(p)
	closed(t, "stream", err)
}

func TestClosedDevice(t *testing.T) {
	b := newEmulated(t)
	device, err := b.driver.NewDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := device.NewStream(driver.Low)
	if err != nil {
		t.Fatal(err)
	}
	p := device.NewProgram()
	defer p.Free()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	other := b.stream()
	says(t, other.Submit(p), "another device")
	for range 2 {
		if err := device.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = device.NewStream(driver.Low)
	closed(t, "device", err)
	_, _, err = device.Memory()
	closed(t, "device", err)
	_, err = device.Load(ptx)
	closed(t, "device", err)
	if device.Info().Name == "" {
		t.Error("a closed device forgets what it is")
	}
}

// A thread works on the device that is asked for, whichever it worked on before.
func TestTwoDevices(t *testing.T) {
	path := emulationtest.Library(t)
	control := emulationtest.NewControl(t, path)
	control.Set(emulationtest.Devices, 2)
	b := openBench(t, path, 0, nil)
	other, err := b.driver.NewDevice(1)
	must(b, (*driver.Device).Close, other, err)
	stream, err := other.NewStream(driver.Low)
	must(b, (*driver.Stream).Close, stream, err)
	memory, err := other.Allocate(4)
	must(b, other.Free, memory, err)
	program := other.NewProgram()
	must(b, func(p *driver.Program) error { p.Free(); return nil }, program, nil)
	program.Fill(memory, 0, 4)
	s, p := b.stream(), b.program()
	p.Fill(b.floats(1), 0, 4)
	for range 3 {
		b.run(s, p)
		b.run(stream, program)
	}
}

// Any goroutine may use a stream, and several of them several streams at once.
func TestManyGoroutines(t *testing.T) {
	b := newBench(t)
	fill := b.function("tdm_test_fill")
	var wait sync.WaitGroup
	for worker := range 4 {
		s, p, x := b.stream(), b.program(), b.floats(32)
		out, y := b.pinned(32)
		wait.Go(func() {
			runtime.LockOSThread() // each on a thread of its own
			defer runtime.UnlockOSThread()
			for i := range 25 {
				want := float32(100*worker + i)
				p.Reset()
				launchFill(p, fill, x, 32, want)
				p.CopyOut(out, 0, x, 128)
				if err := s.Run(p); err != nil {
					t.Error(err)
					return
				}
				for _, v := range y {
					if v != want {
						t.Errorf("worker %d read %v, not %v", worker, v, want)
						return
					}
				}
			}
		})
	}
	wait.Wait()
}

func TestLoadSaysWhatTheCompilerSaid(t *testing.T) {
	b := newEmulated(t)
	_, err := b.device.Load([]byte("this is no PTX"))
	says(t, err, "CUDA_ERROR_INVALID_PTX (218)",
		": ptxas application ptx input, line 1; fatal   : no PTX: .version or .target is missing; ptxas fatal   : Ptx assembly aborted")
	b.control.Set(emulationtest.Capability, 75)
	_, err = b.device.Load(ptx)
	says(t, err, "CUDA_ERROR_NO_BINARY_FOR_GPU (209)", "sm_80")
	b.control.Set(emulationtest.Capability, 80)
	other := bytes.Replace(ptx, []byte(".entry tdm_test_fill"), []byte(".entry tdm_test_other"), 1)
	_, err = b.device.Load(other)
	says(t, err, "kernel tdm_test_other cannot be emulated")
	other = bytes.Replace(ptx, []byte("tdm_test_fill_param_0[24]"), []byte("tdm_test_fill_param_0[32]"), 1)
	_, err = b.device.Load(other)
	says(t, err, "kernel tdm_test_fill takes other arguments", "24 bytes")
}

func TestLoadRefuses(t *testing.T) {
	b := newBench(t)
	_, err := b.device.Load([]byte("this is no PTX"))
	says(t, err, "load PTX", "cuModuleLoadDataEx")
	m, err := b.device.Load(ptx)
	must(b, (*driver.Module).Unload, m, err)
	_, err = m.Function("tdm_test_unknown")
	says(t, err, "tdm_test_unknown", "CUDA_ERROR_NOT_FOUND")
}
