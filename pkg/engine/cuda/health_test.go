package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine"
	"github.com/tandem-serving/tandem/pkg/engine/cuda"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

// gpuIsLost is what NVML answers of a device that is off the bus.
const gpuIsLost = 15

// watched is an engine on weights whose device is watched, and what is told of it. The
// second engine is one more on the same weights.
func watched(t *testing.T) (control *emulationtest.Control, engines [2]engine.Engine, health *cuda.Health, events chan cuda.HealthEvent) {
	t.Helper()
	path, control := emulated(t)
	w := load(t, familiesDir+"/llama")
	for i := range engines {
		engines[i] = newEngine(t, w, small())
	}
	events = make(chan cuda.HealthEvent, 8)
	health, err := w.Watch(cuda.HealthConfig{Library: path, Event: func(e cuda.HealthEvent) { events <- e }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := health.Close(); err != nil {
			t.Error(err)
		}
		if n := control.Live().Watches; n != 0 {
			t.Errorf("%d things of NVML are left", n)
		}
	})
	return control, engines, health, events
}

// isLost says whether who waits for an engine's loss is told.
func isLost(e engine.Engine) bool {
	select {
	case <-e.(engine.LossNotifier).Lost():
		return true
	default:
		return false
	}
}

// TestFatalEvents: what the device is lost by fails all engines on it, though no call of
// the driver does; what is another process's business, or was put right, is only told.
func TestFatalEvents(t *testing.T) {
	cases := map[string]struct {
		event, data uint64
		kind        cuda.HealthKind
		fatal       bool
		says        string
	}{
		"a bug in some kernel":      {emulationtest.EventXid, 13, cuda.HealthXid, false, "kernel"},
		"another's page fault":      {emulationtest.EventXid, 31, cuda.HealthXid, false, "page fault"},
		"a process was stopped":     {emulationtest.EventXid, 43, cuda.HealthXid, false, "a process"},
		"a process ended":           {emulationtest.EventXid, 45, cuda.HealthXid, false, "a process"},
		"memory":                    {emulationtest.EventXid, 48, cuda.HealthXid, true, "reset the GPU"},
		"a row to remap":            {emulationtest.EventXid, 63, cuda.HealthXid, false, "next reset"},
		"a row not remapped":        {emulationtest.EventXid, 64, cuda.HealthXid, true, "could not be remapped"},
		"NVLink":                    {emulationtest.EventXid, 74, cuda.HealthXid, false, "NVLink"},
		"off the bus":               {emulationtest.EventXid, 79, cuda.HealthXid, true, "fell off the bus"},
		"memory, contained":         {emulationtest.EventXid, 94, cuda.HealthXid, false, "contained to one process"},
		"memory, not contained":     {emulationtest.EventXid, 95, cuda.HealthXid, true, "not contained"},
		"firmware":                  {emulationtest.EventXid, 119, cuda.HealthXid, true, "firmware"},
		"something new":             {emulationtest.EventXid, 12345, cuda.HealthXid, false, "catalogue"},
		"an error put right by ECC": {emulationtest.EventSingleBit, 0, cuda.HealthCorrected, false, "was corrected"},
		"an error not put right":    {emulationtest.EventDoubleBit, 0, cuda.HealthUncorrected, true, "could not correct"},
	}
	s := engine.Sequence{Tokens: []int32{1, 2, 3}, Blocks: table(0, 1), Sample: &engine.Sample{}}
	try := func(t *testing.T, name string, control *emulationtest.Control, engines [2]engine.Engine, events chan cuda.HealthEvent) {
		t.Helper()
		c := cases[name]
		slice := make([]byte, engines[0].Capacity().Layout.SliceBytes)
		control.Raise(c.event, c.data)
		got := <-events
		if got.Kind != c.kind || got.Fatal != c.fatal || !strings.Contains(got.Means, c.says) || c.kind == cuda.HealthXid && got.Xid != c.data {
			t.Errorf("told %+v", got)
		}
		for _, e := range engines {
			if isLost(e) != c.fatal {
				t.Errorf("the engine's device is lost: %v", isLost(e))
			}
			if _, err := e.Step(t.Context(), engine.Batch{Sequences: []engine.Sequence{s}}); errors.Is(err, engine.ErrDeviceLost) != c.fatal || (err != nil) != c.fatal {
				t.Errorf("a step: %v", err)
			} else if c.fatal && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v does not say why", err)
			}
			if err := e.Pages().Read(0, table(0, 1), slice); errors.Is(err, engine.ErrDeviceLost) != c.fatal {
				t.Errorf("reading pages: %v", err)
			}
		}
	}
	for name, c := range cases {
		if c.fatal {
			t.Run(name, func(t *testing.T) {
				control, engines, _, events := watched(t)
				try(t, name, control, engines, events)
			})
		}
	}
	t.Run("others", func(t *testing.T) {
		control, engines, _, events := watched(t)
		for name, c := range cases {
			if !c.fatal {
				t.Run(name, func(t *testing.T) { try(t, name, control, engines, events) })
			}
		}
	})
}

// TestGone: a device that NVML does not reach is lost; that NVML fails otherwise is told,
// and the engines go on.
func TestGone(t *testing.T) {
	for code, want := range map[int]cuda.HealthKind{gpuIsLost: cuda.HealthGone, unknown: cuda.HealthUnwatched} {
		t.Run(string(want), func(t *testing.T) {
			control, engines, _, events := watched(t)
			control.Fail("nvmlEventSetWait_v2", 0, code)
			if got := <-events; got.Kind != want || got.Fatal != (want == cuda.HealthGone) || !strings.Contains(got.Means, "nvmlEventSetWait_v2") {
				t.Errorf("told %+v", got)
			}
			if isLost(engines[0]) != (want == cuda.HealthGone) {
				t.Errorf("the device is lost: %v", isLost(engines[0]))
			}
		})
	}
}

// TestLaterEngines: an engine that is made after the device was lost is lost as well.
func TestLaterEngines(t *testing.T) {
	path, control := emulated(t)
	w := load(t, familiesDir+"/llama")
	told := make(chan struct{}, 1)
	health, err := w.Watch(cuda.HealthConfig{Library: path, Event: func(cuda.HealthEvent) { told <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Watch(cuda.HealthConfig{Library: path}); err == nil {
		t.Error("it is watched twice")
	}
	control.Raise(emulationtest.EventXid, 79)
	<-told
	if e := newEngine(t, w, small()); !isLost(e) {
		t.Error("it is not lost")
	}
	if err := health.Close(); err != nil {
		t.Error(err)
	}
	again, err := w.Watch(cuda.HealthConfig{Library: path})
	if err != nil {
		t.Fatalf("after the first was closed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// TestECC: counts are those of the start, and new when something happened; a device without
// ECC has none.
func TestECC(t *testing.T) {
	control, _, health, events := watched(t)
	if right, wrong, known := health.ECC(); right != 0 || wrong != 0 || !known {
		t.Errorf("%d, %d, %v at the start", right, wrong, known)
	}
	control.Set(emulationtest.Corrected, 3)
	control.Set(emulationtest.Uncorrected, 1)
	control.Raise(emulationtest.EventSingleBit, 0)
	<-events
	if right, wrong, known := health.ECC(); right != 3 || wrong != 1 || !known {
		t.Errorf("%d, %d, %v after an event", right, wrong, known)
	}

	path, control := emulated(t)
	w := load(t, familiesDir+"/llama")
	control.Fail("nvmlDeviceGetTotalEccErrors", 0, 3)
	without, err := w.Watch(cuda.HealthConfig{Library: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, known := without.ECC(); known {
		t.Error("a device without ECC has counts")
	}
	if err := without.Close(); err != nil {
		t.Error(err)
	}
}

func TestCheckHealth(t *testing.T) {
	path, control := emulated(t)
	if err := cuda.CheckHealth(path, 0, path); err != nil || control.Live() != (emulationtest.Live{}) {
		t.Errorf("%v, left %+v", err, control.Live())
	}
	for _, c := range []struct {
		driver, nvml string
		device       int
		says         string
	}{
		{path, "/nowhere", 0, "no NVML"},
		{"/nowhere", path, 0, "no CUDA driver"},
		{path, path, 1, "no device 1"},
	} {
		if err := cuda.CheckHealth(c.driver, c.device, c.nvml); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
