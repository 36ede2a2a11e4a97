package nvml_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/nvml"
)

// enough is what nothing here should have to wait.
const enough = time.Minute

// Codes of the library.
const (
	notSupported    = 3
	driverNotLoaded = 9
	gpuIsLost       = 15
)

func emulated(t *testing.T) (path, address string, control *emulationtest.Control) {
	t.Helper()
	path = emulationtest.Library(t)
	control = emulationtest.NewControl(t, path)
	t.Cleanup(func() {
		if live := control.Live(); live != (emulationtest.Live{}) {
			t.Errorf("left alive: %+v", live)
		}
	})
	return path, addressOf(t, path, 0), control
}

func addressOf(t *testing.T, path string, device int) string {
	t.Helper()
	d, err := driver.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	infos, err := d.Devices()
	if err != nil || len(infos) <= device {
		t.Fatalf("%d devices: %v", len(infos), err)
	}
	return infos[device].PCI
}

func open(t *testing.T, path, address string) *nvml.Watch {
	t.Helper()
	w, err := nvml.Open(path, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// TestEvents: each kind comes once, in order, also those from before somebody waited.
func TestEvents(t *testing.T) {
	path, address, control := emulated(t)
	w := open(t, path, address)
	control.Raise(emulationtest.EventXid, 79)
	control.Raise(emulationtest.EventSingleBit, 0)
	control.Raise(emulationtest.EventDoubleBit, 0)
	for _, want := range []nvml.Event{{Kind: nvml.Xid, Xid: 79}, {Kind: nvml.Corrected}, {Kind: nvml.Uncorrected}} {
		if got, err := w.Wait(enough); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	if got, err := w.Wait(0); err != nil || got.Kind != nvml.None {
		t.Errorf("nothing happened: %+v, %v", got, err)
	}
	waits := make(chan nvml.Event)
	go func() {
		got, _ := w.Wait(enough)
		waits <- got
	}()
	control.Raise(emulationtest.EventXid, 31)
	if got := <-waits; got != (nvml.Event{Kind: nvml.Xid, Xid: 31}) {
		t.Errorf("who waited heard %+v", got)
	}
}

// TestFewerEvents: a GPU without ECC tells of Xids alone, and one that tells of nothing is
// not watched.
func TestFewerEvents(t *testing.T) {
	path, address, control := emulated(t)
	control.Set(emulationtest.Events, emulationtest.EventXid)
	w := open(t, path, address)
	control.Raise(emulationtest.EventDoubleBit, 0)
	control.Raise(emulationtest.EventXid, 48)
	if got, err := w.Wait(enough); err != nil || got != (nvml.Event{Kind: nvml.Xid, Xid: 48}) {
		t.Errorf("%+v, %v", got, err)
	}
	control.Set(emulationtest.Events, 4)
	if _, err := nvml.Open(path, address); err == nil || !strings.Contains(err.Error(), "does not report errors") {
		t.Errorf("without events: %v", err)
	}
}

func TestErrors(t *testing.T) {
	path, address, control := emulated(t)
	w := open(t, path, address)
	control.Set(emulationtest.Corrected, 7)
	control.Set(emulationtest.Uncorrected, 1<<40)
	if right, wrong, err := w.Errors(); err != nil || right != 7 || wrong != 1<<40 {
		t.Errorf("%d and %d: %v", right, wrong, err)
	}
	control.Fail("nvmlDeviceGetTotalEccErrors", 1, notSupported)
	var failed *nvml.Error
	if _, _, err := w.Errors(); !errors.As(err, &failed) || failed.Code != notSupported || failed.Lost() {
		t.Errorf("without ECC: %v", err)
	}
	control.Fail("nvmlEventSetWait_v2", 0, gpuIsLost)
	if _, err := w.Wait(enough); !errors.As(err, &failed) || !failed.Lost() || !strings.Contains(err.Error(), "nvmlEventSetWait_v2: GPU is lost (15)") {
		t.Errorf("off the bus: %v", err)
	}
}

// TestCannotOpen says why in one line, and leaves nothing.
func TestCannotOpen(t *testing.T) {
	path, address, control := emulated(t)
	for _, c := range []struct{ path, address, call, says string }{
		{"/nowhere/libnvidia-ml.so.1", address, "", "no NVML: /nowhere"},
		{os.DevNull, address, "", "no NVML"},
		{"libc.so.6", address, "", "libc.so.6 is not NVML, or is too old: it has no nvmlErrorString"},
		{path, "0000:7f:00.0", "", "0000:7f:00.0 through NVML: nvmlDeviceGetHandleByPciBusId_v2"},
		{path, address, "nvmlInit_v2", "nvmlInit_v2: Driver Not Loaded (9)"},
		{path, address, "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetSupportedEventTypes"},
		{path, address, "nvmlEventSetCreate", "nvmlEventSetCreate"},
		{path, address, "nvmlDeviceRegisterEvents", "nvmlDeviceRegisterEvents"},
	} {
		if c.call != "" {
			control.Fail(c.call, 0, driverNotLoaded)
		}
		if _, err := nvml.Open(c.path, c.address); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %v", c, err)
		}
		if live := control.Live(); live.Watches != 0 {
			t.Errorf("%+v leaves %d things", c, live.Watches)
		}
	}
}

// TestGPU watches a real GPU where TANDEM_NVML names a library: nothing bad happens to it
// while nobody uses it.
func TestGPU(t *testing.T) {
	path, device := emulationtest.GPU(t)
	library := os.Getenv("TANDEM_NVML")
	if library == "" || path == "" {
		t.Skip("TANDEM_NVML and TANDEM_CUDA_DRIVER name no libraries")
	}
	w := open(t, library, addressOf(t, path, device))
	if got, err := w.Wait(100 * time.Millisecond); err != nil || got.Kind == nvml.Xid {
		t.Errorf("%+v, %v", got, err)
	}
	right, wrong, err := w.Errors()
	var failed *nvml.Error
	if err != nil && (!errors.As(err, &failed) || failed.Code != notSupported) {
		t.Error(err)
	}
	t.Logf("%d errors of memory corrected, %d not", right, wrong)
}
