package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/driver"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

// says fails the test if the error is not one line with all the words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, where one should say %q", words)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	_, err := driver.Open(filepath.Join(t.TempDir(), "libcuda.so.1"))
	says(t, err, "no CUDA driver", "libcuda.so.1", "install")

	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = driver.Open(text)
	says(t, err, "no CUDA driver", text)
}

func TestOpenAnotherLibrary(t *testing.T) {
	_, err := driver.Open("libm.so.6")
	if err != nil && strings.Contains(err.Error(), "cannot open shared object") {
		t.Skip("no libm.so.6 here")
	}
	says(t, err, "libm.so.6 is not a CUDA driver", "cuDriverGetVersion", "install")
}

func TestOpenRefused(t *testing.T) {
	path := emulationtest.Library(t)
	for name, c := range map[string]struct {
		prepare func(*emulationtest.Control)
		says    []string
	}{
		"an old driver": {
			func(c *emulationtest.Control) { c.Set(emulationtest.Version, 11080); c.Fail("cuInit", 0, 999) },
			[]string{"CUDA 11.8", "12.0", "update"},
		},
		"no device": {
			func(c *emulationtest.Control) { c.Set(emulationtest.Devices, 0) },
			[]string{"cuInit", "CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi"},
		},
		"another kernel module": {
			func(c *emulationtest.Control) { c.Fail("cuInit", 0, 803) },
			[]string{"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "different versions", "restart"},
		},
		"a code nobody knows": {
			func(c *emulationtest.Control) { c.Fail("cuInit", 0, 12345) },
			[]string{"(12345)", "no description"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			control := emulationtest.NewControl(t, path)
			c.prepare(control)
			_, err := driver.Open(path)
			says(t, err, c.says...)
			control.Reset()
			if _, err := driver.Open(path); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	path := emulationtest.Library(t)
	control := emulationtest.NewControl(t, path)
	control.Set(emulationtest.Devices, 2)
	control.Set(emulationtest.Memory, 12345678)
	d, err := driver.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if major, minor := d.Version(); major != 12 || minor != 4 {
		t.Errorf("version %d.%d", major, minor)
	}
	infos, err := d.Devices()
	if err != nil {
		t.Fatal(err)
	}
	want := driver.Info{
		Ordinal: 1, Name: "Emulated GPU", PCI: "0000:01:00.0",
		Memory: 12345678, Capability: 90, Multiprocessors: 4, SharedPerBlock: 227 << 10,
	}
	if len(infos) != 2 || infos[1] != want {
		t.Errorf("devices %+v, and the second is not %+v", infos, want)
	}
	_, err = d.NewDevice(2)
	says(t, err, "device 2", "CUDA_ERROR_INVALID_DEVICE")
}
