package blaslt_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/blaslt"
	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

func TestMissing(t *testing.T) {
	for name, c := range map[string]struct {
		path string
		says []string
	}{
		"no file":          {"/no/such/libcublasLt.so.12", []string{"no cuBLASLt", "/no/such/libcublasLt.so.12", "install cuBLAS"}},
		"an empty folder":  {t.TempDir(), []string{"no cuBLASLt", "libcublasLt.so.13", "install cuBLAS"}},
		"another library":  {"libc.so.6", []string{"libc.so.6 is not cuBLASLt", "cublasLtGetVersion"}},
		"a file of no use": {os.DevNull, []string{"no cuBLASLt", os.DevNull}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := blaslt.Open(c.path)
			says(t, err, c.says...)
		})
	}
}

func TestOldLibrary(t *testing.T) {
	path := emulationtest.Library(t)
	control := emulationtest.NewControl(t, path)
	control.Set(emulationtest.CublasLt, 110900)
	_, err := blaslt.Open(path)
	says(t, err, "110900", "12.0", "install cuBLAS")
}

// TestFolder: a folder of Python's packages, or of a toolkit, has the library in it.
func TestFolder(t *testing.T) {
	path := emulationtest.Library(t)
	control := emulationtest.NewControl(t, path)
	for _, below := range []string{"nvidia/cublas/lib/libcublasLt.so.12", "nvidia/cu13/lib/libcublasLt.so.13", "lib64/libcublasLt.so.12", "libcublasLt.so.13"} {
		t.Run(below, func(t *testing.T) {
			folder := t.TempDir()
			file := filepath.Join(folder, below)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, file); err != nil {
				t.Fatal(err)
			}
			control.Set(emulationtest.CublasLt, 130102)
			l, err := blaslt.Open(folder)
			if err != nil {
				t.Fatal(err)
			}
			if major, minor, patch := l.Version(); major != 13 || minor != 1 || patch != 2 {
				t.Errorf("version %d.%d.%d", major, minor, patch)
			}
		})
	}
}
