// Package cudatest is a GPU for tests of other packages: the emulated driver that the CUDA
// engine is proved with.
//
// Only tests import it. Its state is one for the process, so tests that use it must not
// run at the same time.
package cudatest

import (
	"testing"

	"github.com/tandem-serving/tandem/pkg/engine/cuda/internal/emulationtest"
)

// illegalAddress is what the driver says of a kernel that read elsewhere.
const illegalAddress = 700

// GPU is an emulated device.
type GPU struct {
	// Driver is the file of the driver's library, for cuda.Config.Driver.
	Driver string
	// CublasLt is the file of a cuBLASLt library for it, for cuda.Config.CublasLt.
	CublasLt string
	// NVML is the file of NVIDIA's management library for it, for cuda.HealthConfig.Library.
	NVML    string
	control *emulationtest.Control
}

// New makes sure that there is one, and takes back what earlier tests did to it. Without a
// C++ compiler the test is skipped: see emulationtest.Library.
func New(t testing.TB) *GPU {
	t.Helper()
	path := emulationtest.Library(t)
	return &GPU{path, path, path, emulationtest.NewControl(t, path)}
}

// Memory sets how much memory the device has, bytes.
func (g *GPU) Memory(bytes uint64) { g.control.Set(emulationtest.Memory, bytes) }

// Lose breaks the device until all who opened it have closed it.
func (g *GPU) Lose() { g.control.Lose(illegalAddress) }

// Copied is what was copied since New, bytes: between the host and the device, and within
// the device.
func (g *GPU) Copied() (in, out, within int64) {
	c := g.control.Copied()
	return c.In, c.Out, c.Within
}

// Report makes NVML report an Xid; no call of the driver fails by it.
func (g *GPU) Report(xid uint64) { g.control.Raise(emulationtest.EventXid, xid) }

// MemoryErrors sets how many errors of memory ECC has corrected, and could not.
func (g *GPU) MemoryErrors(corrected, uncorrected uint64) {
	g.control.Set(emulationtest.Corrected, corrected)
	g.control.Set(emulationtest.Uncorrected, uncorrected)
}

// InUse says whether anything of the device is open.
func (g *GPU) InUse() bool { return g.control.Live() != emulationtest.Live{} }
