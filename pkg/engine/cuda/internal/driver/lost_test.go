package driver_test

import (
	"errors"
	"strconv"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

// restart closes what was lost with the device, and opens the device anew for the end of
// the test, where nothing may be alive.
func (b *bench) restart() {
	b.t.Helper()
	for _, closer := range b.closers {
		_ = closer() // fails like everything on the device, or has nothing on it
	}
	b.closers = nil
	if err := b.device.Close(); err != nil {
		b.t.Fatal(err)
	}
	if live := b.control.Live(); live != (emulationtest.Live{}) {
		b.t.Fatalf("left alive by a lost device: %+v", live)
	}
	var err error
	if b.device, err = b.driver.NewDevice(0); err != nil {
		b.t.Fatal(err)
	}
}

func TestLostDevice(t *testing.T) {
	for _, code := range []int{214, 700, 714, 719} {
		t.Run(strconv.Itoa(code), func(t *testing.T) { loseDevice(t, code) })
	}
}

func loseDevice(t *testing.T, code int) {
	b := newEmulated(t)
	s, p, e := b.stream(), b.program(), b.event()
	x := b.floats(16)
	host, _ := b.pinned(16)
	p.Fill(x, 0, 64)
	p.Record(e)
	g, err := s.Capture(p)
	must(b, (*driver.Graph).Close, g, err)
	if err := s.Submit(p); err != nil {
		t.Fatal(err)
	}
	b.control.Lose(code)
	for name, call := range map[string]func() error{
		"submit":      func() error { return s.Submit(p) },
		"run":         func() error { return s.Run(p) },
		"capture":     func() error { _, err := s.Capture(p); return err },
		"synchronize": s.Synchronize,
		"event":       e.Synchronize,
		"allocate":    func() error { _, err := b.device.Allocate(4); return err },
		"free":        func() error { return b.device.Free(x) },
		"host":        host.Free,
		"memory":      func() error { _, _, err := b.device.Memory(); return err },
		"load":        func() error { _, err := b.device.Load(ptx); return err },
	} {
		err := call()
		var failure *driver.Error
		if !errors.As(err, &failure) || !failure.Sticky() || failure.Code != code {
			t.Errorf("%s: %v", name, err)
		}
	}
	b.restart()
	s, p = b.stream(), b.program()
	p.Fill(b.floats(16), 0, 64)
	b.run(s, p)
}

// An error of the device shows where somebody waits, not where the work was submitted.
func TestLostDuringWork(t *testing.T) {
	b := newEmulated(t)
	s, p := b.stream(), b.program()
	p.Fill(b.floats(16), 0, 64)
	if err := s.Submit(p); err != nil {
		t.Fatal(err)
	}
	b.control.Fail("cuStreamSynchronize", 0, 719)
	says(t, s.Synchronize(), "wait for a stream", "CUDA_ERROR_LAUNCH_FAILED")
	says(t, s.Submit(p), "CUDA_ERROR_LAUNCH_FAILED")
	b.restart()
}

func TestPrimaryContextIsShared(t *testing.T) {
	b := newEmulated(t)
	second, err := b.driver.NewDevice(0)
	if err != nil {
		t.Fatal(err)
	}
	x := b.floats(1)
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	s, p := b.stream(), b.program()
	p.Fill(x, 0, 4)
	b.run(s, p)
	_, err = second.Allocate(1)
	if !errors.Is(err, driver.ErrClosed) {
		t.Errorf("a closed device answers %v", err)
	}
}

func TestSticky(t *testing.T) {
	for code, sticky := range map[int]bool{
		1: false, 2: false, 100: false, 209: false, 400: false, 600: false, 701: false, 720: false, 801: false, 900: false, 999: false,
		214: true, 220: true, 226: true, 700: true, 702: true, 709: true, 710: true, 714: true, 715: true, 716: true, 717: true,
		718: true, 719: true, 721: true, 810: true, 911: true,
	} {
		if e := (&driver.Error{Code: code}); e.Sticky() != sticky || e.OutOfMemory() != (code == 2) {
			t.Errorf("%d: sticky %v, out of memory %v", code, e.Sticky(), e.OutOfMemory())
		}
	}
}
